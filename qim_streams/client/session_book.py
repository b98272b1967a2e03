"""SessionBook: a user's conversations as a device knows them, from pages, answers and deltas.

The rule for deltas (Spec: §9): one is applied only if (projection_mailbox_seq, version) is greater than that
of the last one applied, or of the page that began the book; else it is dropped whole. Within a frame a row
replaces a known one unless its `version` is lower, or equal with an older conversation; and `read_seq` and
`deleted_to_seq` never go back.

Invariants: every row is absolute, so repeats and stragglers change nothing; no I/O, no clock.
"""

from collections.abc import Iterable

from qim_streams.wire.frames_sessions import ReadReceipt, SessionDelta, SessionList, SessionRow

NOTHING = (-1, -1)


class SessionBook:
    """Rows by conversation. `dropped` counts deltas that came late or twice."""

    def __init__(self) -> None:
        self.rows: dict[str, SessionRow] = {}
        self.applied = NOTHING
        self.dropped = 0

    @property
    def total_unread(self) -> int:
        """Unread of all listed conversations, muted ones included."""
        return sum(row.unread for row in self.rows.values() if not row.hidden)

    @property
    def muted_unread(self) -> int:
        """The part of it that is muted."""
        return sum(row.unread for row in self.rows.values() if row.muted and not row.hidden)

    def begin(self, page: SessionList) -> None:
        """A first page of the whole list: the book starts from it."""
        self.rows.clear()
        self.applied = max(self.applied, (page.projection_mailbox_seq, NOTHING[1]))
        self.take(page.rows)

    def take(self, rows: Iterable[SessionRow]) -> None:
        """Rows of a page or of the answer to an own change."""
        for row in rows:
            known = self.rows.get(row.conversation_id)
            self.rows[row.conversation_id] = row if known is None else _newer(known, row)

    def take_delta(self, frame: SessionDelta) -> bool:
        """What another device did; False when it was dropped."""
        order = (frame.projection_mailbox_seq, frame.version)
        if order <= self.applied:
            self.dropped += 1
            return False
        self.applied = order
        self.take(frame.rows)
        return True

    def take_receipt(self, frame: ReadReceipt) -> bool:
        """The peer of a direct chat has read; False when that was known."""
        row = self.rows.get(frame.conversation_id)
        if row is None or row.peer_user_id != frame.user_id or (row.peer_read_seq or 0) >= frame.read_seq:
            return False
        self.rows[frame.conversation_id] = row._replace(peer_read_seq=frame.read_seq)
        return True


def _newer(known: SessionRow, row: SessionRow) -> SessionRow:
    if (row.version, row.latest_seq) < (known.version, known.latest_seq):
        return known
    return row._replace(
        read_seq=max(known.read_seq, row.read_seq),
        deleted_to_seq=max(known.deleted_to_seq, row.deleted_to_seq),
        peer_read_seq=max(known.peer_read_seq or 0, row.peer_read_seq or 0)
        if row.peer_read_seq is not None or known.peer_read_seq is not None
        else None,
    )
