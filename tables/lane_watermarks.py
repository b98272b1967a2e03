"""The table ``lane_watermarks``: what W of a MailboxShard must never be found below, 64 lanes.

Layout: ``qim_streams.mailbox.floors``. Partition = MailboxShard.

Spec: §5, §11 rule 2.
"""

from typing import Any

from qim_streams.mailbox.floors import decode_floor
from qim_streams.mailbox.watermark import coverage
from qim_streams.streaming.app import StreamApp
from qim_streams.streaming.table import AckedTable
from tables.views import TableView

NAME = "lane_watermarks"


def declare(app: StreamApp, mailbox_shards: int) -> AckedTable:
    """The table of a worker."""
    return app.acked_table(NAME, mailbox_shards, "W[64 lanes] of each MailboxShard")


def row(key: bytes, value: bytes) -> dict[str, Any]:
    """W of a shard: the lowest lane, and all 64 of them."""
    floor = decode_floor(value)
    return {
        "shard": int.from_bytes(key[1:5], "big"),
        "covered": coverage(floor.lanes),
        "uniform": len(set(floor.lanes)) == 1,
        "lanes": list(floor.lanes),
        "epoch": floor.epoch,
        "at_ms": floor.at_ms,
    }


VIEW = TableView(NAME, "W of each MailboxShard, one strip of 64 lanes", row)
