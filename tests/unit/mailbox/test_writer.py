"""The write path: how many calls, in which order, and what an answer means."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from pyroaring import BitMap

from qim_streams.errors import InvariantViolation, Outcome, StoreError, StoreUnavailable
from qim_streams.mailbox.members import Addressed, Members
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.memory_table import MemoryTable
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.mailbox.progress import DispatchProgress
from qim_streams.mailbox.shards import Shard
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
        self, shard: int, epoch: int, groups: Sequence[EntryGroup], expected: int, record: str, step: int
    ) -> int:
        self.calls.append(("step", sum(len(g.ordinals) for g in groups), step))
        return await super().write_step(shard, epoch, groups, expected, record, step)

    async def write_and_advance(
        self, shard: int, epoch: int, groups: Sequence[EntryGroup], expected: int, observed: int, **more: Any
    ) -> int:
        self.calls.append(("advance", sum(len(g.ordinals) for g in groups), expected, observed))
        if self.refuse:
            raise self.refuse
        return await super().write_and_advance(shard, epoch, groups, expected, observed, **more)


class Bench:
    def __init__(self) -> None:
        self.store, self.table = Counted(), MemoryTable()
        self.store.grant(0, 1)
        self.progress = DispatchProgress(self.table, 10**9)
        self.writer = EntryWriter(self.store, self.progress, LIMIT)
        self.shard = Shard(0, 1, -1, -1, -1, -1)

    async def write(self, *records: Addressed) -> list[tuple[Any, ...]]:
        self.store.calls.clear()
        await self.writer.write(self.shard, records)
        return self.store.calls

    async def held(self, ordinal: int) -> list[int]:
        return [row.mailbox_seq for row in await self.store.read(0, "acme", ordinal, -1, 10**6, 100)]


@pytest.fixture
async def bench() -> Bench:
    bench = Bench()
    await bench.progress.recover(0)
    return bench


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


async def test_a_large_record_is_written_in_steps_between_the_others(bench: Bench) -> None:
    calls = await bench.write(to(0, [1]), to(1, BitMap(range(25))), to(2, [1]))
    assert calls == [
        ("advance", 1, -1, 0), ("step", 10, 0), ("step", 10, 1), ("step", 5, 2), ("advance", 0, 0, 1),
        ("advance", 1, 1, 2),
    ]  # fmt: skip
    assert await bench.held(24) == [1]


async def test_a_large_record_goes_on_after_its_marked_steps(bench: Bench) -> None:
    """DispatchProgress: a done chunk is not written again by the next owner."""
    bench.store.refuse = StoreUnavailable("gone", Outcome.NOT_APPLIED)
    with pytest.raises(StoreUnavailable):
        await bench.write(to(0, BitMap(range(25))))
    opened = bench.progress.open(0)
    assert opened is not None
    assert sum(bits.bit_count() for bits in opened.done.values()) == 25
    bench.store.refuse = None
    assert await bench.write(to(0, BitMap(range(25)))) == [("advance", 0, -1, 0)]


async def test_marks_of_another_plan_do_not_count(bench: Bench) -> None:
    """entries_max was changed between two attempts: the chunks are others, so all are written again."""
    bench.store.refuse = StoreUnavailable("gone", Outcome.NOT_APPLIED)
    with pytest.raises(StoreUnavailable):
        await bench.write(to(0, BitMap(range(25))))
    bench.store.refuse = None
    bench.writer = EntryWriter(bench.store, bench.progress, 20)
    assert [call[:2] for call in await bench.write(to(0, BitMap(range(25))))] == [
        ("step", 20), ("step", 5), ("advance", 0),
    ]  # fmt: skip


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
        with pytest.raises((StoreError, StoreUnavailable)):
            await bench.write(*records)
        assert await bench.held(1) == []
    with pytest.raises(StoreError, match="lost its last writes"):
        await bench.writer.settle(bench.shard)


async def test_a_refused_entry_holds_the_shard_only(bench: Bench) -> None:
    """B11: retried in place, W stays, nothing is skipped."""
    bench.store.refuse = StoreError("WRONGTYPE", Outcome.NOT_APPLIED)
    for _ in range(20):
        with pytest.raises(StoreUnavailable, match="refused"):
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

    async def write_and_advance(self, *args: Any, **more: Any) -> int:
        return int(await self._maybe(super().write_and_advance, *args, **more))

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
    """T-R5, I6: half of all calls time out, applied and not, CAS and steps. W never stands above what is
    durable, and in the end each entry is there once and W at the last record."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    bench.store = Doubtful()
    bench.store.grant(0, 1)
    bench.store.draw = rng
    bench.writer = EntryWriter(bench.store, bench.progress, LIMIT)
    sizes = (1, 1, 2, 3, 25)
    members = [set(rng.sample(range(40), rng.choice(sizes))) for _ in range(60)]
    records = [
        to(2 * n, BitMap(some) if len(some) > LIMIT else sorted(some)) for n, some in enumerate(members)
    ]
    for _ in range(3_000):
        batch = records[: rng.randint(1, len(records))]
        try:
            await bench.writer.settle(bench.shard)
            await bench.writer.write(bench.shard, batch)
        except StoreUnavailable:
            pass  # the stage repeats
        stands = (await bench.store.watermark(0)).lanes[0]
        assert bench.shard.coverage <= stands
        for ordinal in range(0, 40, 13):
            due = [2 * n for n, some in enumerate(members) if ordinal in some and 2 * n <= stands]
            assert [seq for seq in await bench.held(ordinal) if seq <= stands] == due
        if bench.shard.coverage == 2 * 59:
            break
    assert set((await bench.store.watermark(0)).lanes) == {2 * 59}
    for ordinal in range(40):
        assert await bench.held(ordinal) == [2 * n for n, some in enumerate(members) if ordinal in some]
