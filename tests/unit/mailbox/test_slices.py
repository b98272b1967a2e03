"""Turns: who waits for whom, and for how long at most. Spec: §13 (lane isolation, fair scheduling)."""

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest
from pyroaring import BitMap

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.mailbox.members import Addressed, Members
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.open_lanes import OpenLanes
from qim_streams.mailbox.shards import Shard
from qim_streams.mailbox.slices import Slices
from qim_streams.mailbox.tail import NoTail
from qim_streams.mailbox.watermark import Marks
from qim_streams.mailbox.writer import EntryWriter
from tests.support.waiting import eventually
from tests.unit.mailbox.dispatches import dispatch

LIMIT = 10
FOR_EVER_S = 3_600.0


class Pushes:
    """A `Pusher`; fails while `broken`."""

    def __init__(self) -> None:
        self.pushed: list[tuple[int, int]] = []  # (offset, members)
        self.broken = False

    async def attach(self, shard: Shard) -> None:
        """See `Pusher`."""

    async def push(self, work: Sequence[tuple[Shard, Sequence[Addressed]]]) -> None:
        """See `Pusher`."""

    async def push_lanes(self, shard: Shard, records: Sequence[Addressed], through: Marks) -> None:
        """See `Pusher`."""
        if self.broken:
            raise StoreUnavailable("no bodies", Outcome.NOT_APPLIED)
        self.pushed += [(one.offset, len(one.members)) for one in records]

    async def detach(self, shards: frozenset[int]) -> None:
        """See `Pusher`."""


class Bench:
    def __init__(self, wait_s: float = FOR_EVER_S) -> None:
        self.store, self.pushes = MemoryMailboxStore(), Pushes()
        self.deaths: list[str] = []
        self.writer = EntryWriter(self.store, LIMIT)
        self.slices = Slices(
            self.writer, self.pushes, NoTail(), size_max=LIMIT, wait_s=wait_s, now_ms=lambda: 2_000,
            die=self._die,
        )  # fmt: skip

    def _die(self, why: str) -> NoReturn:
        self.deaths.append(why)
        raise SystemExit(70)

    async def open(self, number: int, *records: tuple[int, Members]) -> Shard:
        """A shard with these records queued."""
        self.store.grant(number, 1)
        shard = Shard(number, 1, -1, -1, -1, -1)
        lanes = await self.writer.open(shard, -1)
        for before, (offset, members) in enumerate(records, -1):
            one = Addressed(offset, dispatch(offset + 1), members)
            lanes.take(one, before, is_large=len(members) > LIMIT, now_s=0.0)
        return shard

    def begin(self, shard: Shard) -> None:
        assert shard.open is not None
        self.slices.begin(shard, shard.open)

    async def lanes(self, number: int) -> tuple[int, ...]:
        return (await self.store.watermark(number)).lanes


HUGE = BitMap(range(40))


async def test_low_slices_wait_for_batches_and_urgent_ones_do_not() -> None:
    """A direct chat waits for the part of its lane only; the rest of the group gives way."""
    bench = Bench()
    shard = await bench.open(0, (0, HUGE), (1, [3]))
    with bench.slices.batch():
        bench.begin(shard)
        assert await eventually(lambda: (1, 1) in bench.pushes.pushed, 10)
        for _ in range(20):
            await asyncio.sleep(0)
        lanes = await bench.lanes(0)
        assert (lanes[3], lanes[4], lanes[50]) == (1, -1, 1)
    assert await eventually(lambda: shard.open is None, 10)
    assert set(await bench.lanes(0)) == {1}
    assert (shard.coverage, shard.pushed_through) == (1, 1)
    assert sum(count for offset, count in bench.pushes.pushed if offset == 0) == 40


async def test_low_slices_do_not_starve() -> None:
    """However long batches are under way, a slice waits no longer than it was told to."""
    bench = Bench(wait_s=0.0)
    shard = await bench.open(0, (0, HUGE))
    with bench.slices.batch():
        bench.begin(shard)
        assert await eventually(lambda: shard.open is None, 10)
    assert set(await bench.lanes(0)) == {0}


async def test_low_slices_do_not_starve_behind_urgent_ones() -> None:
    """A small record always waits somewhere: lanes in which none does get their part as well."""
    bench = Bench()
    now_s = 0.0
    bench.slices._monotonic = lambda: now_s
    bench.slices._turns.wait_s = 1.0
    shard = await bench.open(0, (0, HUGE), *((offset, [3]) for offset in range(1, 200)))
    lanes = shard.open
    assert lanes is not None
    for offset in range(200, 400):
        one = Addressed(offset, dispatch(offset + 1), [3])
        lanes.take(one, offset - 1, is_large=False, now_s=now_s)
        await bench.slices.step(shard, lanes)
        now_s += 0.4
        if (await bench.lanes(0))[39] > -1:
            break
    assert (await bench.lanes(0))[39] > -1
    assert lanes.is_urgent(now_s), "somebody waited all the time"


async def test_one_low_slice_at_a_time_in_a_worker() -> None:
    """Large records of several shards take turns: the store gets one call of theirs, not one of each."""
    bench = Bench(wait_s=0.0)
    busy = most = 0
    write = bench.store.write_and_advance

    async def slow(*args: Any, **more: Any) -> Marks:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        for _ in range(5):
            await asyncio.sleep(0)
        busy -= 1
        return await write(*args, **more)

    bench.store.write_and_advance = slow  # type: ignore[method-assign]
    shards = [await bench.open(number, (0, HUGE)) for number in range(4)]
    for shard in shards:
        bench.begin(shard)
    assert await eventually(lambda: all(shard.open is None for shard in shards), 10)
    assert most == 1


async def test_a_store_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(wait_s=0.0)
    shard = await bench.open(0, (0, HUGE))
    write, failures = bench.store.write_and_advance, iter(range(3))

    async def shaky(*args: Any, **more: Any) -> Marks:
        if next(failures, None) is not None:
            raise StoreUnavailable("away", Outcome.UNKNOWN)
        return await write(*args, **more)

    monkeypatch.setattr(bench.store, "write_and_advance", shaky)
    bench.begin(shard)
    assert await eventually(lambda: shard.open is None, 20)
    assert set(await bench.lanes(0)) == {0}
    assert not bench.deaths


async def test_what_could_not_be_pushed_is_pushed_later() -> None:
    """W is not held by push; nothing of it is left out, and lanes stay apart till it is done."""
    bench = Bench(wait_s=0.0)
    bench.pushes.broken = True
    shard = await bench.open(0, (0, HUGE))
    bench.begin(shard)
    assert await eventually(lambda: shard.coverage == -1 and not bench.slices._tasks[0][1][0].done(), 10)
    bench.pushes.broken = False
    assert await eventually(lambda: shard.open is None, 20)
    assert sum(count for _, count in bench.pushes.pushed) == 40


async def test_a_failure_that_nobody_foresaw_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(wait_s=0.0)
    shard = await bench.open(0, (0, HUGE))

    def broken(self: OpenLanes, *_: Any, **__: Any) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(OpenLanes, "slice", broken)
    bench.slices._die = bench.deaths.append  # type: ignore[assignment]
    bench.begin(shard)
    assert await eventually(lambda: bench.deaths, 10)
    assert "KeyError" in bench.deaths[0]


async def test_a_released_shard_is_written_no_more() -> None:
    bench = Bench()
    shard = await bench.open(0, (0, HUGE))
    with bench.slices.batch():
        bench.begin(shard)
        await asyncio.sleep(0)
        await bench.slices.end(frozenset({0}))
    for _ in range(5):
        await asyncio.sleep(0)
    assert set(await bench.lanes(0)) == {-1}


async def test_who_waits_for_his_turn_is_there_for_what_is_urgent() -> None:
    """A batch under way holds low slices back; a small record that comes meanwhile is not held with them."""
    bench = Bench()
    shard = await bench.open(0, (0, HUGE))
    lanes = shard.open
    assert lanes is not None
    with bench.slices.batch():
        bench.begin(shard)
        for _ in range(20):
            await asyncio.sleep(0)
        assert set(await bench.lanes(0)) == {-1}
        lanes.take(Addressed(1, dispatch(2), [3]), 0, is_large=False, now_s=0.0)
        bench.slices.wake(shard)
        assert await eventually(lambda: (1, 1) in bench.pushes.pushed, 10)
        stands = await bench.lanes(0)
        assert (stands[3], stands[4]) == (1, -1)


async def test_what_goes_at_once_shares_a_bound() -> None:
    """Calls of several shards go in one round trip: each takes its part of what a slice may hold."""
    bench = Bench()
    sizes: list[int] = []
    write = bench.writer.write_slice

    async def noted(shard: Shard, lanes: OpenLanes, size_max: int, now_s: float, **more: Any) -> int:
        sizes.append(size_max)
        return await write(shard, lanes, size_max, now_s, **more)

    bench.writer.write_slice = noted  # type: ignore[method-assign]
    shards = [await bench.open(number, (0, HUGE), (1, [3])) for number in range(4)]
    with bench.slices.batch():
        for shard in shards:
            bench.begin(shard)
        assert await eventually(lambda: len(bench.pushes.pushed) >= 4, 10)
    assert set(sizes) == {LIMIT // 4}
    assert await eventually(lambda: all(shard.open is None for shard in shards), 10)
    assert LIMIT in sizes, "low slices have all of it"


async def test_a_shard_that_is_released_in_line_holds_nobody_up() -> None:
    """It asks once more while its release waits for the call that is under way."""
    bench = Bench()
    gone, left = await bench.open(0, (0, HUGE), (1, [3])), await bench.open(1, (0, HUGE))
    write, under_way, go_on = bench.writer.write_slice, asyncio.Event(), asyncio.Event()

    async def slow(shard: Shard, *args: Any, **more: Any) -> int:
        if shard is gone:
            under_way.set()
            await go_on.wait()
        return await write(shard, *args, **more)

    bench.writer.write_slice = slow  # type: ignore[method-assign]
    with bench.slices.batch():
        bench.begin(gone)
        await under_way.wait()
        ending = asyncio.create_task(bench.slices.end(frozenset({0})))
        await asyncio.sleep(0)
        go_on.set()
        await ending
        bench.begin(left)
        for _ in range(5):
            await asyncio.sleep(0)
    assert await eventually(lambda: left.open is None, 10)


async def test_a_shard_that_a_batch_closed_holds_nobody_up() -> None:
    """A lane was held, the batch under way writes its piece: the shard does not come back to the line."""
    bench = Bench()
    shut, left = await bench.open(0, (0, [3])), await bench.open(1, (0, HUGE))
    lanes = shut.open
    assert lanes is not None
    lanes.hold(3, FOR_EVER_S * 1e6)
    with bench.slices.batch():
        bench.begin(shut)
        for _ in range(5):
            await asyncio.sleep(0)
        assert bench.slices._turns.first == 0, "it waits in line"
        async with shut.writing:
            await bench.writer.flush(shut, lanes, FOR_EVER_S * 1e6)
        await bench.slices.follow(shut, lanes)
        assert shut.open is None
        bench.begin(left)
    assert await eventually(lambda: left.open is None, 10)
