"""MailboxNode: from dispatches to mailbox entries, the watermark and pushes.

Run: ``faust -A agents.mailbox_node worker``.

Spec: §5, §6.
"""

from typing import Any

from qim_streams.roles.mailbox import DISPATCH_TOPIC, build_mailbox

app, _dispatch, _, _ = build_mailbox()


@app.agent(app.source_topic(DISPATCH_TOPIC), concurrency=1)
async def mailbox_node(stream: Any) -> None:
    """Give every chunk of a dispatch partition to its shard's lane."""
    await _dispatch.drain(stream)
