"""The table ``dispatch_progress``: which dispatches of a MailboxShard are done, a page per batch.

Layout of keys and values: ``qim_streams.mailbox.pages``. Partition = MailboxShard.

Spec: §5.
"""

from typing import Any

from qim_streams.mailbox.pages import OPEN_KEY, decode_open, decode_page, page_end, page_key
from qim_streams.streaming.app import StreamApp
from qim_streams.streaming.table import AckedTable
from tables.views import TableView

NAME = "dispatch_progress"
IDS_SHOWN_MAX = 8


def declare(app: StreamApp, mailbox_shards: int) -> AckedTable:
    """The table of a worker."""
    return app.acked_table(NAME, mailbox_shards, "which dispatches are done, a page per batch")


def row(key: bytes, value: bytes) -> dict[str, Any]:
    """A page, or the record that is being written in steps, for people; the first dispatch_ids only."""
    if key == OPEN_KEY:
        opened = decode_open(value)
        done = {str(lane): bits.bit_count() for lane, bits in sorted(opened.done.items())}
        return {"kind": "open", "offset": opened.offset, "record": opened.record, "chunks_done_by_lane": done}
    page = decode_page(value)
    return {
        "kind": "page",
        "first": page.first,
        "last": page.last,
        "written_at_ms": page.written_at_ms,
        "dispatches": len(page.rows),
        "dispatch_ids": [one.dispatch_id.hex() for one in page.rows[:IDS_SHOWN_MAX]],
    }


def start_of(offset: int) -> bytes:
    """The key from which the page that holds `offset` is the first one."""
    return page_key(0, offset)


VIEW = TableView(
    NAME,
    "one page per batch: the offsets that are done, and their dispatch_ids",
    row,
    first_key=OPEN_KEY,
    is_shown=lambda key: key == OPEN_KEY or page_end(key) is not None,
    start_of=start_of,
)
