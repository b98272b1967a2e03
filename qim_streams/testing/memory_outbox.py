"""The Outbox and the change log in memory, with the broker under the test's control.

A call is handed over, then its records arrive in `log`, then it is acknowledged. By default all of that
happens at once. `hold` stops it: `ARRIVED` keeps acknowledgements back (the broker has the records, its
answer is under way), `BUFFERED` keeps the records back too (they are in the producer's memory and die with
it). With `dead` nothing moves any more, as for a producer whose process is gone.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from qim_streams.commit.ports import OutboxAppend
from qim_streams.errors import LogAppendError, Outcome
from qim_streams.membership.ports import MembershipRow
from qim_streams.ownership.log_fence import BARRIER_KEY


class Hold(Enum):
    """How far a call gets by itself."""

    NONE = "none"
    ARRIVED = "arrived"
    BUFFERED = "buffered"


@dataclass(slots=True)
class _Call:
    future: "asyncio.Future[list[int]]"
    records: Sequence[OutboxAppend]
    offsets: list[int] = field(default_factory=list)
    arrived: bool = False


def without_barriers(log: Sequence[OutboxAppend]) -> list[OutboxAppend]:
    """The messages of a log."""
    return [one for one in log if one.key != BARRIER_KEY]


class MemoryOutbox:
    """`Outbox` in memory. `log` may be shared by several, as one broker is by several producers."""

    def __init__(self, log: list[OutboxAppend]) -> None:
        self.log = log
        self.hold = Hold.NONE
        self.dead = False
        self.full = 0  # calls to refuse
        self._calls: deque[_Call] = deque()

    @property
    def messages(self) -> list[OutboxAppend]:
        """What lies in the log, without barriers."""
        return without_barriers(self.log)

    @property
    def unacknowledged(self) -> int:
        """Calls whose acknowledgement is held back."""
        return len(self._calls)

    def append(self, records: Sequence[OutboxAppend]) -> Awaitable[list[int]]:
        """See the port."""
        if self.full:
            self.full -= 1
            raise LogAppendError("memory: full", Outcome.NOT_APPLIED)
        call = _Call(asyncio.get_running_loop().create_future(), records)
        self._calls.append(call)
        if self.hold is Hold.ARRIVED:
            self.arrive()
        elif self.hold is Hold.NONE:
            self.acknowledge()
        return call.future

    def arrive(self, count: int | None = None) -> None:
        """Let the records of the oldest `count` calls that are buffered arrive (all when None)."""
        for call in list(self._calls)[:count]:
            if not call.arrived and not self.dead:
                call.arrived = True
                call.offsets = list(range(len(self.log), len(self.log) + len(call.records)))
                self.log.extend(call.records)

    def acknowledge(self, count: int | None = None) -> None:
        """Let the oldest `count` calls arrive and acknowledge them (all when None)."""
        self.arrive(count)
        for call in [] if self.dead else list(self._calls)[:count]:
            self._calls.popleft()
            if not call.future.done():
                call.future.set_result(call.offsets)

    def fail(self) -> None:
        """Fail what is held back with an unknown outcome."""
        while self._calls:
            call = self._calls.popleft()
            if not call.future.done():
                call.future.set_exception(LogAppendError("memory: not acknowledged", Outcome.UNKNOWN))


class MemoryOutboxReader:
    """`OutboxReader` on such a log. The log may hold several partitions; offsets count over all of them."""

    def __init__(self, log: Sequence[OutboxAppend]) -> None:
        self.log = log
        self.first = 0  # what lies below was removed by retention

    async def begin(self, partition: int) -> int:
        """See the port."""
        return self.first

    async def read(self, partition: int, start: int) -> AsyncIterator[list[tuple[int, bytes, bytes]]]:
        """See the port."""
        found = [
            (offset, one.key, one.value)
            for offset, one in enumerate(self.log[start:], start)
            if one.partition == partition
        ]
        if found:
            yield found


class MemoryMembershipLog:
    """`MembershipLog` and `ChangeLogReader` in memory; may be shared by several writers."""

    def __init__(self) -> None:
        self.rows: list[MembershipRow] = []

    def append(self, rows: Sequence[MembershipRow]) -> Awaitable[list[int]]:
        """See the port."""
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        future.set_result(list(range(len(self.rows), len(self.rows) + len(rows))))
        self.rows.extend(rows)
        return future

    async def read(self, partition: int, start: int) -> AsyncIterator[list[tuple[int, bytes, bytes]]]:
        """See the port. Rows of other partitions come too: their versions are there, so nothing happens."""
        found = [(offset, row.key, row.value) for offset, row in enumerate(self.rows[start:], start)]
        if found:
            yield found

    def latest(self) -> dict[bytes, bytes]:
        """The value that stands for each key."""
        return {row.key: row.value for row in self.rows}
