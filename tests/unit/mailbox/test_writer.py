"""The write path: how many calls, in which order, and what an answer means."""

import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pytest
from pyroaring import BitMap

from qim_streams.errors import EntryRefused, InvariantViolation, Outcome, StoreError, StoreUnavailable
from qim_streams.mailbox import watermark
from qim_streams.mailbox.members import Addressed, Members
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.mailbox.shards import Shard
from qim_streams.mailbox.watermark import Marks
from qim_streams.mailbox.writer import EntryWriter
from tests.unit.mailbox.dispatches import dispatch

LIMIT = 10


class Counted(MemoryMailboxStore):
    """Writes down its calls: ("advance", mailboxes, expected, observed) or ("step", mailboxes, number)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self.refuse: Exception | None = None

    async def write_step(
        self, shard: int, epoch: int, groups: Sequence[EntryGroup], expected: Marks, record: str, step: int
    ) -> int:
        self.calls.append(("step", sum(len(g.ordinals) for g in groups), step))
        return await super().write_step(shard, epoch, groups, expected, record, step)

    async def write_and_advance(
        self,
        shard: int,
        epoch: int,
        groups: Sequence[EntryGroup],
        expected: Marks,
        observed: Marks,
        **more: Any,
    ) -> Marks:
        self.calls.append(("advance", sum(len(g.ordinals) for g in groups), expected, observed))
        if self.refuse:
            raise self.refuse
        return await super().write_and_advance(shard, epoch, groups, expected, observed, **more)


class Bench:
    def __init__(self) -> None:
        self.store = Counted()
        self.store.grant(0, 1)
        self.writer = EntryWriter(self.store, LIMIT)
        self.shard = Shard(0, 1, -1, -1, -1, -1)

    async def write(self, *records: Addressed) -> list[tuple[Any, ...]]:
        """Everything, slices included; the calls that it took."""
        self.store.calls.clear()
        await self.batch(records)
        while (lanes := self.shard.open) is not None:
            if not await self.writer.write_slice(self.shard, lanes, LIMIT, 0.0):
                lanes.unpushed.clear()
                lanes.feed()
                assert lanes.is_even
                self.shard.coverage, self.shard.open = lanes.known, None
        return self.store.calls

    async def batch(self, records: Sequence[Addressed], before: int = -1) -> None:
        """What a batch does before it returns; `before` was read last."""
        shard = self.shard
        if shard.open is None and await self.writer.write(shard, records):
            return
        lanes = shard.open or await self.writer.open(shard, before)
        for one in records:
            if one.offset > lanes.known:
                lanes.take(one, before, is_large=len(one.members) > LIMIT, now_s=0.0)
            before = one.offset
        await self.writer.flush(shard, lanes, 0.0)

    async def held(self, ordinal: int) -> list[int]:
        return [row.mailbox_seq for row in await self.store.read(0, "acme", ordinal, -1, 10**6, 100)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def to(offset: int, members: Members) -> Addressed:
    return Addressed(offset, dispatch(offset + 1), members)


def nobody(offset: int) -> Addressed:
    return Addressed(offset, None, [])


async def test_small_records_share_calls(bench: Bench) -> None:
    """As few calls as the bound allows; W moves from read offset to read offset, over holes and poison."""
    calls = await bench.write(
        to(0, [1, 2, 3, 4]), nobody(1), to(4, [1, 2, 3, 4]), to(5, [5, 6]), to(9, [1]), nobody(12)
    )
    assert calls == [("advance", 10, -1, 5), ("advance", 1, 5, 12)]
    assert bench.shard.coverage == 12
    assert await bench.held(1) == [0, 4, 9]


async def test_only_poison_still_moves_w(bench: Bench) -> None:
    assert await bench.write(nobody(0), nobody(3)) == [("advance", 0, -1, 3)]
    assert await bench.write(nobody(0), nobody(3)) == []


async def test_a_large_record_is_written_lane_by_lane(bench: Bench) -> None:
    """W moves in the lanes that are written; small records go first where they may, and are last nowhere."""
    calls = await bench.write(to(0, [1]), to(1, BitMap(range(25))), to(2, [30]), to(3, [3]))
    assert [call[:2] for call in calls] == [
        ("advance", 1), ("advance", 1), ("advance", 2), ("advance", 10), ("advance", 10), ("advance", 4),
    ]  # fmt: skip
    seen = [call[3] for call in calls]
    assert seen[0] == 0
    assert [seen[1][lane] for lane in (0, 3, 24, 30, 63)] == [0, 0, 0, 3, 3]
    assert [seen[2][lane] for lane in (0, 3, 24)] == [0, 3, 0], "the lane in which somebody waits"
    assert [seen[3][lane] for lane in (0, 10, 24)] == [3, 3, 0]
    assert seen[-1] == 3
    assert await bench.held(3) == [1, 3]


async def test_a_lane_with_more_members_than_a_call_is_written_in_steps(bench: Bench) -> None:
    """The lane's W moves with its last part, when the store has counted all before; others go in between."""
    many = BitMap(range(0, 64 * 25, 64))
    calls = await bench.write(to(0, many), to(1, [1]))
    assert [call[:2] for call in calls] == [("advance", 1), ("step", 10), ("step", 10), ("advance", 5)]
    assert calls[-1][3] == 1
    assert [len(await bench.held(one)) for one in many] == [1] * 25


async def test_steps_go_on_where_they_stand(bench: Bench) -> None:
    """DispatchProgress: a part that stands is not written again by the next owner."""
    many = to(0, BitMap(range(0, 64 * 25, 64)))
    await bench.batch([many])
    assert bench.shard.open is not None
    await bench.writer.write_slice(bench.shard, bench.shard.open, LIMIT, 0.0)
    bench.shard = Shard(0, 1, -1, -1, -1, -1)
    assert [call[:2] for call in await bench.write(many)] == [("step", 10), ("advance", 5)]


async def test_steps_of_another_plan_do_not_count(bench: Bench) -> None:
    """entries_max was changed between two attempts: the parts are others, so all are written again."""
    many = to(0, BitMap(range(0, 64 * 25, 64)))
    await bench.batch([many])
    assert bench.shard.open is not None
    await bench.writer.write_slice(bench.shard, bench.shard.open, LIMIT, 0.0)
    bench.shard = Shard(0, 1, -1, -1, -1, -1)
    bench.writer = EntryWriter(bench.store, 20)
    bench.store.calls.clear()
    await bench.batch([many])
    lanes = bench.shard.open
    assert lanes is not None
    while await bench.writer.write_slice(bench.shard, lanes, 20, 0.0):
        pass
    assert [call[:2] for call in bench.store.calls] == [("step", 20), ("advance", 5)]


async def test_the_sender_in_a_large_record_has_his_own_value(bench: Bench) -> None:
    await bench.write(to(0, BitMap(range(25))))
    values = {o: (await bench.store.read(0, "acme", o, -1, 9, 1))[0].value for o in range(25)}
    assert len({values[o] for o in values if o != 1}) == 1
    assert values[1] != values[0]


async def test_an_unknown_outcome_is_resolved_by_reading_back(bench: Bench) -> None:
    await bench.write(to(0, [1]))
    bench.shard.unsure = True
    await bench.store.write_and_advance(0, 1, [], 0, 3)  # the call whose answer was lost
    await bench.writer.settle(bench.shard)
    assert (bench.shard.coverage, bench.shard.unsure) == (3, False)


async def test_a_store_that_fell_back_is_not_written_to(bench: Bench) -> None:
    """W is never lowered, and nothing is put above what was lost."""
    old = bench.store.snapshot()
    await bench.write(to(0, [1]), to(1, [2]))
    bench.store.restore(old)
    for records in ((to(2, [1]),), (to(2, BitMap(range(25))),)):
        with pytest.raises(StoreError, match="lost its last writes"):
            await bench.write(*records)
        assert await bench.held(1) == []
    bench.shard.unsure = True
    with pytest.raises(StoreError, match="lost its last writes"):
        await bench.writer.settle(bench.shard)


async def test_a_refused_entry_moves_nothing(bench: Bench) -> None:
    """B11: W stays, nothing is skipped; the caller lets the lanes go on one by one."""
    bench.store.refuse = StoreError("WRONGTYPE", Outcome.NOT_APPLIED)
    for _ in range(20):
        with pytest.raises(EntryRefused, match="refused"):
            await bench.write(to(0, [1]))
    assert (bench.shard.coverage, bench.shard.unsure) == (-1, False)


async def test_somebody_else_moving_w_under_our_epoch_stops_us(bench: Bench) -> None:
    await bench.store.write_and_advance(0, 1, [], -1, 7)
    with pytest.raises(InvariantViolation, match="although the epoch is ours"):
        await bench.write(to(3, [1]))


class Doubtful(Counted):
    """Every call may time out, with what it wrote or without; `draw` decides."""

    draw: random.Random | None = None

    async def write_step(self, *args: Any) -> int:
        return int(await self._maybe(super().write_step, *args))

    async def write_and_advance(self, *args: Any, **more: Any) -> Marks:
        stands: Marks = await self._maybe(super().write_and_advance, *args, **more)
        return stands

    async def _maybe(self, call: Any, *args: Any, **more: Any) -> Any:
        fate = self.draw.random() if self.draw else 1.0
        if fate < 0.25:
            raise StoreUnavailable("timed out before", Outcome.UNKNOWN)
        answer = await call(*args, **more)
        if fate < 0.5:
            raise StoreUnavailable("timed out after", Outcome.UNKNOWN)
        return answer


@pytest.mark.parametrize("seed", range(20))
async def test_time_outs_applied_or_not_leave_w_and_entries_exact(bench: Bench, seed: int) -> None:
    """T-R5, I6: half of all calls time out, applied or not, CAS and steps. No lane's W ever stands above what
    is durable in it, and in the end each entry is there once and W at the last record."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    bench.store = Doubtful()
    bench.store.grant(0, 1)
    bench.store.draw = rng
    bench.writer = EntryWriter(bench.store, LIMIT)
    universe = [*range(40), *range(64, 64 * 30, 64)]
    sizes = (1, 1, 2, 3, 25)
    members = [set(rng.sample(universe, rng.choice(sizes))) for _ in range(60)]
    members[20] |= set(universe[39:])  # one lane takes several calls
    records = [
        to(2 * n, BitMap(some) if len(some) > LIMIT else sorted(some)) for n, some in enumerate(members)
    ]
    for _ in range(5_000):
        through = bench.shard.coverage if bench.shard.open is None else bench.shard.open.known
        upcoming = [one for one in records if one.offset > through][: rng.randint(1, 9)]
        with contextlib.suppress(StoreUnavailable):  # the stage repeats
            await bench.writer.settle(bench.shard)
            await bench.batch(upcoming, through)
            if bench.shard.open is not None:
                await bench.writer.write_slice(bench.shard, bench.shard.open, LIMIT, 0.0)
        lanes = (await bench.store.watermark(0)).lanes
        assert not watermark.is_below(watermark.marks(lanes), bench.shard.stands)
        for ordinal in universe[::13]:
            stands = lanes[ordinal % 64]
            due = [2 * n for n, some in enumerate(members) if ordinal in some and 2 * n <= stands]
            assert [seq for seq in await bench.held(ordinal) if seq <= stands] == due
        if set(lanes) == {2 * 59}:
            break
    assert set((await bench.store.watermark(0)).lanes) == {2 * 59}
    for ordinal in universe:
        assert await bench.held(ordinal) == [2 * n for n, some in enumerate(members) if ordinal in some]
