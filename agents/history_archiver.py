"""HistoryArchiver: a consumer group of its own on the Outbox, every message into the archive.

Run: ``faust -A agents.history_archiver worker``.

Spec: §1 ARCHIVED, §3.
"""

from typing import Any

from qim_streams.roles.archiver import OUTBOX_TOPIC, build_archiver

app, _outbox = build_archiver()


@app.agent(app.source_topic(OUTBOX_TOPIC), concurrency=1)
async def history_archiver(stream: Any) -> None:
    """Give every chunk of the Outbox to its partition's lane."""
    await _outbox.drain(stream)
