"""FanoutCoordinator: from the Outbox to one dispatch per MailboxShard.

Run: ``faust -A agents.fanout_coordinator worker``.

Spec: §4.
"""

from typing import Any

from qim_streams.roles.fanout import OUTBOX_TOPIC, build_fanout

app, _outbox, _ = build_fanout()


@app.agent(app.source_topic(OUTBOX_TOPIC), concurrency=1)
async def fanout_coordinator(stream: Any) -> None:
    """Give every chunk of the Outbox to its partition's lane."""
    await _outbox.drain(stream)
