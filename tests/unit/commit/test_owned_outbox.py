"""An acknowledgement proves ownership: what is appended behind another owner's barrier is not acknowledged.

T-Z1, I14, P1, P14.
"""

import asyncio
from typing import NoReturn

import pytest

from qim_streams.commit.owned_outbox import OwnedOutbox
from qim_streams.commit.ports import OutboxAppend
from qim_streams.errors import FencedError, InvariantViolation, LogAppendError, Outcome, StoreUnavailable
from qim_streams.ownership.log_fence import BARRIER_KEY, barrier_epoch
from qim_streams.records import OutboxRecord
from qim_streams.testing.memory_outbox import Hold, MemoryOutbox, MemoryOutboxReader


def record(epoch: int, body: bytes = b"m") -> OutboxAppend:
    return OutboxAppend(0, b"acme\0room", OutboxRecord(body, epoch, 0, None).encode())


def doubt(why: str, error: BaseException | None) -> NoReturn:
    raise AssertionError(f"{why}: {error}")


class Flaky(MemoryOutboxReader):
    """A reader that fails at first."""

    failures = 0

    async def read(self, partition, start):  # type: ignore[no-untyped-def]
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("not now", Outcome.NOT_APPLIED)
        async for batch in super().read(partition, start):
            yield batch


class Writer:
    """A writer of the one log."""

    def __init__(self, log: list[OutboxAppend]) -> None:
        self.broker, self.reader = MemoryOutbox(log), Flaky(log)
        self.owned = OwnedOutbox(self.broker, self.reader, doubt, lambda _: asyncio.sleep(0))


async def test_a_barrier_first_and_offsets_that_follow() -> None:
    log: list[OutboxAppend] = [record(1)]
    one = Writer(log)
    assert await one.owned.begin(0, 5) == 1
    assert (log[1].key, barrier_epoch(log[1].key, log[1].value)) == (BARRIER_KEY, 5)
    assert await one.owned.append([record(5), record(5)]) == [2, 3]
    assert await one.owned.append([record(5)]) == [4]


async def test_behind_a_newer_barrier_nothing_is_acknowledged_any_more() -> None:
    log: list[OutboxAppend] = []
    old, new = Writer(log), Writer(log)
    await old.owned.begin(0, 5)
    old.broker.hold = Hold.BUFFERED
    before = [asyncio.ensure_future(old.owned.append([record(5)])) for _ in range(2)]
    old.broker.arrive(1)
    assert await new.owned.begin(0, 6) == 2
    assert await new.owned.append([record(6)]) == [3]
    old.broker.acknowledge()
    assert await before[0] == [1], "it was there before the barrier"
    with pytest.raises(FencedError):
        await before[1]
    with pytest.raises(FencedError):
        old.owned.append([record(5)])
    assert len(log) == 5, "nothing is handed over any more"
    old.broker.hold = Hold.NONE
    assert await old.owned.begin(0, 7) == 5
    assert await old.owned.append([record(7)]) == [6]
    new.broker.hold = Hold.ARRIVED
    late = asyncio.ensure_future(new.owned.append([record(6)]))
    new.broker.acknowledge()
    with pytest.raises(FencedError):
        await late


async def test_an_old_owner_that_wakes_up_disturbs_nobody() -> None:
    """Its records do not count; the owner looks at them, however often that takes, and goes on in order."""
    log: list[OutboxAppend] = []
    one = Writer(log)
    await one.owned.begin(0, 6)
    log.append(record(5))
    one.reader.failures = 3
    answers = await asyncio.gather(*(one.owned.append([record(6)]) for _ in range(3)))
    assert answers == [[2], [3], [4]]
    one.broker.hold = Hold.BUFFERED
    split = asyncio.ensure_future(one.owned.append([record(6), record(6)]))
    log.append(record(5))
    one.broker.acknowledge()
    assert await split == [6, 7]


async def test_who_appended_in_between_is_not_known_any_more() -> None:
    """Retention took the foreign records: the owner may have been another's, so it is fenced."""
    log: list[OutboxAppend] = []
    one = Writer(log)
    await one.owned.begin(0, 6)
    log.append(record(5))

    async def gone(partition, start):  # type: ignore[no-untyped-def]
        raise InvariantViolation("not there any more")
        yield

    one.reader.read = gone  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        await one.owned.append([record(6)])


async def test_a_failed_append_fails_and_the_ones_behind_it_are_looked_at() -> None:
    log: list[OutboxAppend] = []
    one = Writer(log)
    await one.owned.begin(0, 6)
    one.broker.hold = Hold.BUFFERED
    failed = asyncio.ensure_future(one.owned.append([record(6)]))
    one.broker.fail()
    with pytest.raises(LogAppendError):
        await failed
    one.broker.full = 1
    with pytest.raises(LogAppendError):
        one.owned.append([record(6)])
    one.broker.hold = Hold.NONE
    assert await one.owned.append([record(6)]) == [1]
