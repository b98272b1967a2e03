"""The table ``conversation_progress``: up to which Outbox offset a partition is dispatched.

Layout: ``qim_streams.fanout.progress``. Partition = Outbox partition.

Spec: §4.
"""

from typing import Any

from qim_streams.fanout.progress import decode_outbox_page
from qim_streams.streaming.app import StreamApp
from qim_streams.streaming.table import AckedTable
from tables.views import TableView

NAME = "conversation_progress"


def declare(app: StreamApp, outbox_partitions: int) -> AckedTable:
    """The table of a worker."""
    return app.acked_table(NAME, outbox_partitions, "W of each Outbox partition")


def row(key: bytes, value: bytes) -> dict[str, Any]:
    """W of an Outbox partition."""
    page = decode_outbox_page(value)
    return {"dispatched_through": page.dispatched_through, "at_ms": page.at_ms, "fence": page.fence}


VIEW = TableView(NAME, "the Outbox offset up to which everything is dispatched", row)
