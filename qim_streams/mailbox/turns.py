"""LowTurns: whose low slice is next in a worker, and when it may go.

One at a time, in the order in which shards asked; not beside batches that are under way, but never later than
`wait_s` after it asked, or after the one before it ended.

A shard that has something urgent meanwhile leaves the line. Nothing here waits, so what is urgent does not.

Pure: time comes in as an argument (a monotonic clock, seconds). Spec: §13.
"""


class LowTurns:
    """The line of the shards of one worker."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.batches = 0  # under way
        self._asked_s: dict[int, float] = {}  # shard -> when it asked, in that order
        self._writes = False
        self._ended_s = float("-inf")  # of the last one that was taken

    @property
    def first(self) -> int | None:
        """Whose turn comes next; None when nobody waits, or one is taken."""
        return None if self._writes else next(iter(self._asked_s), None)

    def take(self, shard: int, now_s: float) -> bool:
        """Ask for a turn, and take it if it may go now; `done` ends it."""
        self._asked_s.setdefault(shard, now_s)
        if self.first != shard or (self.batches and now_s < self._due_s(shard)):
            return False
        del self._asked_s[shard]
        self._writes = True
        return True

    def done(self, now_s: float) -> None:
        """The turn that was taken has ended."""
        self._writes, self._ended_s = False, now_s

    def leave(self, shard: int) -> None:
        """It waits no longer."""
        self._asked_s.pop(shard, None)

    def due_s(self, shard: int) -> float | None:
        """When to ask again at the latest; None: not while another turn is taken, or it does not wait."""
        return None if self._writes or shard not in self._asked_s else self._due_s(shard)

    def _due_s(self, shard: int) -> float:
        return max(self._asked_s[shard], self._ended_s) + self.wait_s
