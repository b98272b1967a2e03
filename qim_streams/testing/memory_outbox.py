"""The Outbox and the change log in memory, with acknowledgements under the test's control.

Records lie in `log` from the call on, as they would in a broker that has them and whose answer is under way.
`hold` keeps acknowledgements back until `acknowledge`; with `dead` nothing more arrives, as for a producer
that died with records in its buffer.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence

from qim_streams.commit.ports import OutboxAppend
from qim_streams.errors import LogAppendError, Outcome
from qim_streams.membership.ports import MembershipRow


class MemoryOutbox:
    """`Outbox` in memory. `log` may be shared by several, as one broker is by several producers."""

    def __init__(self, log: list[OutboxAppend]) -> None:
        self.log = log
        self.hold = False
        self.dead = False
        self.full = 0  # calls to refuse
        self._held: deque[tuple[asyncio.Future[list[int]], list[int]]] = deque()

    @property
    def unacknowledged(self) -> int:
        """Calls whose acknowledgement is held back."""
        return len(self._held)

    def append(self, records: Sequence[OutboxAppend]) -> Awaitable[list[int]]:
        """See the port."""
        if self.full:
            self.full -= 1
            raise LogAppendError("memory: full", Outcome.NOT_APPLIED)
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        if self.dead:
            return future  # never answered: its process is gone
        offsets = list(range(len(self.log), len(self.log) + len(records)))
        self.log.extend(records)
        self._held.append((future, offsets))
        if not self.hold:
            self.acknowledge()
        return future

    def acknowledge(self, count: int | None = None) -> None:
        """Acknowledge the oldest `count` calls that are held back (all when None)."""
        for _ in range(len(self._held) if count is None else min(count, len(self._held))):
            future, offsets = self._held.popleft()
            if not future.done():
                future.set_result(offsets)

    def fail(self) -> None:
        """Fail what is held back with an unknown outcome."""
        while self._held:
            future, _ = self._held.popleft()
            if not future.done():
                future.set_exception(LogAppendError("memory: not acknowledged", Outcome.UNKNOWN))


class MemoryMembershipLog:
    """`MembershipLog` in memory."""

    def __init__(self) -> None:
        self.rows: list[MembershipRow] = []

    def append(self, rows: Sequence[MembershipRow]) -> Awaitable[object]:
        """See the port."""
        self.rows.extend(rows)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def latest(self) -> dict[bytes, bytes]:
        """The value that stands for each key."""
        return {row.key: row.value for row in self.rows}
