"""What one session has covered: which pulls are legal, which cursor may be issued, when sync is complete.

The session starts with everything up to `after_seq` covered (the cursor's claim) and has to reach
`sync_to_seq`. Batches may be answered in any order; their ranges are merged, and only the contiguous
prefix counts. A cursor is issued when a batch moves the prefix, and stands for everything that was sent
in this session so far; issued positions therefore only grow.

An empty cursor means "from now": the prefix is `sync_to_seq` at once. If such a device pulls from the
trim watermark before anything else, its prefix starts there instead, so that the first sync of a new
device can be resumed; SYNC_COMPLETE stays legal at any time for it.

Invariants: pure; at most `RANGES_MAX` ranges are remembered (forgetting one costs a pull, never an
entry); push does not appear here at all, so it cannot move a cursor.

Spec: §7, §8.
"""

from bisect import insort
from typing import Final

from qim_streams.errors import ProtocolError, SyncVerdict
from qim_streams.ids import NOTHING_COVERED

RANGES_MAX: Final = 64


class SyncSession:
    """Coverage of one authenticated connection. `after_seq` None stands for an empty cursor."""

    __slots__ = ("_from_now", "_moved", "_ranges", "_trim", "online", "prefix", "sync_to_seq")

    def __init__(self, after_seq: int | None, sync_to_seq: int, trim: int) -> None:
        self.sync_to_seq = sync_to_seq
        self.prefix = sync_to_seq if after_seq is None else after_seq
        self.online = False
        self._from_now = after_seq is None
        self._trim = trim
        self._moved = False
        self._ranges: list[tuple[int, int]] = []

    def check_pull(self, after_seq: int, up_to_seq: int, lane_watermark: int) -> None:
        """ProtocolError PULL_OUT_OF_RANGE unless (after_seq, up_to_seq] may be pulled now.

        Up to sync_to_seq before ONLINE_READY, up to W[lane] afterwards. An empty range is legal.
        """
        bound = lane_watermark if self.online else self.sync_to_seq
        if after_seq > up_to_seq:
            raise ProtocolError("PULL_OUT_OF_RANGE", "after_seq is above up_to_seq", field="after_seq")
        if up_to_seq > bound:
            raise ProtocolError("PULL_OUT_OF_RANGE", f"up_to_seq is above {bound}", field="up_to_seq")

    def cover(self, after_seq: int, through_seq: int) -> int | None:
        """A batch with all of (after_seq, through_seq] is being sent.

        Returns the position that its cursor may claim, None when the prefix did not move.
        """
        if self._from_now and not self._moved and not self.online and after_seq == self._trim:
            self.prefix = min(self.prefix, after_seq)
        if through_seq > after_seq:
            self._moved = True
            insort(self._ranges, (after_seq, through_seq))
        before = self.prefix
        self._absorb()
        del self._ranges[RANGES_MAX:]  # the far ones: what is near the prefix is needed first
        return self.prefix if self.prefix > before else None

    def check_complete(self, sync_to_seq: int) -> None:
        """SyncVerdict SYNC_INCOMPLETE unless the barrier may be lifted."""
        if sync_to_seq != self.sync_to_seq:
            raise SyncVerdict("SYNC_INCOMPLETE", f"sync_to_seq of this session is {self.sync_to_seq}")
        if not self._from_now and self.prefix < self.sync_to_seq:
            raise SyncVerdict("SYNC_INCOMPLETE", f"covered without a gap up to {self.prefix} only")

    def complete(self) -> int:
        """Lift the barrier; returns the position that the cursor of ONLINE_READY claims."""
        self.online = True
        self.prefix = max(self.prefix, self.sync_to_seq, int(NOTHING_COVERED))
        self._absorb()
        return self.prefix

    def _absorb(self) -> None:
        used = 0
        for after, through in self._ranges:
            if after > self.prefix:
                break
            self.prefix = max(self.prefix, through)
            used += 1
        del self._ranges[:used]
