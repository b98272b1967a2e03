"""qsession: from dispatches to the rows of session lists.

Run: ``faust -A agents.qsession worker``.

Spec: §9.
"""

from typing import Any

from qim_streams.roles.qsession import DISPATCH_TOPIC, build_qsession

app, _dispatch = build_qsession()


@app.agent(app.source_topic(DISPATCH_TOPIC), concurrency=1)
async def qsession(stream: Any) -> None:
    """Give every chunk of a dispatch partition to its shard's lane."""
    await _dispatch.drain(stream)
