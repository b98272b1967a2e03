"""Lanes: order, acknowledgement, gaps, retries, stop (T-A1, T-A2)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from qim_streams.errors import Outcome, RecordError, StoreUnavailable
from qim_streams.streaming.lanes import OVERTAKE_S, PartitionLanes
from qim_streams.streaming.source import SourceBatch, SourceRole, one_by_one
from qim_streams.streaming.spec import SourceSpec
from tests.support.waiting import eventually
from tests.unit.streaming.fakes import Died, chunk, event, settle, spec

Handle = Callable[[SourceBatch], Awaitable[None]]


async def _zero(_: int) -> int:
    return 0


def lanes_with(
    handle: Handle, acks: list[int] | None = None, *, compacted: bool = False, **changes: object
) -> PartitionLanes:
    """Lanes of source `in` with a handler; the last offset of each acknowledgement goes to `acks`."""
    role = SourceRole(_zero, one_by_one(handle))
    return noting(acks, PartitionLanes(spec(**changes), SourceSpec("in", 4, compacted=compacted), role))


def noting(acks: list[int] | None, lanes: PartitionLanes) -> PartitionLanes:
    """Lanes whose acknowledgements are written down."""
    if acks is not None:
        lanes.acknowledge = lambda partition, offset: acks.append(offset - 1)
    return lanes


async def ended(lanes: PartitionLanes) -> None:
    """Wait for what is in flight; raises what the process would have died of."""
    await asyncio.gather(*lanes._tasks)


def deadline(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_batches_are_contiguous_and_acked_in_order() -> None:
    batches: list[SourceBatch] = []
    acks: list[int] = []

    async def handle(batch: SourceBatch) -> None:
        batches.append(batch)

    lanes = lanes_with(handle, acks)
    lanes.open(0, 1, 10, 9)
    for first in (10, 15, 20):
        lanes.offer(event(chunk(first, first + 4)))
    await settle(lambda: acks and acks[-1] == 24)
    assert acks == sorted(acks)
    assert [r.offset for batch in batches for r in batch.records] == list(range(10, 25))
    previous = 9
    for batch in batches:
        assert batch.previous_offset == previous
        previous = batch.last_offset
    await lanes.stop(deadline())


async def test_what_is_queued_comes_in_one_batch_up_to_the_bound() -> None:
    sizes: list[int] = []
    gate = asyncio.Event()

    async def handle(batch: SourceBatch) -> None:
        sizes.append(len(batch.records))
        await gate.wait()

    lanes = lanes_with(handle, batch_records_max=12)
    lanes.open(0, 1, 0, -1)
    for first in range(0, 30, 5):
        lanes.offer(event(chunk(first, first + 4)))
    await settle(lambda: sizes)
    gate.set()
    await settle(lambda: sum(sizes) == 30)
    assert sizes == [5, 10, 10, 5]
    await lanes.stop(deadline())


@pytest.mark.parametrize("at", [11, 16])
async def test_a_chunk_that_does_not_continue_ends_the_process(at: int, exits: list[int]) -> None:
    """The alarm for a record lost between the broker and the lane."""

    async def handle(batch: SourceBatch) -> None:
        await asyncio.Event().wait()

    lanes = lanes_with(handle)
    lanes.open(0, 1, 10, 9)
    lanes.offer(event(chunk(10, 14)))
    with pytest.raises(Died):
        lanes.offer(event(chunk(at, at + 4)))
    assert exits == [70]
    lanes._closing.set()
    for task in lanes._tasks:
        task.cancel()


async def test_a_hole_needs_its_proof(exits: list[int]) -> None:
    """H6, T-B3: offsets may be missing in the log; the first of a chunk only with proof."""
    seen: list[int] = []

    async def handle(batch: SourceBatch) -> None:
        seen.extend(record.offset for record in batch.records)

    lanes = lanes_with(handle)
    lanes.open(0, 1, 10, 9)
    lanes.offer(event(chunk(12, 14, at=10, proved=True)))
    await settle(lambda: seen == [12, 13, 14])
    with pytest.raises(Died):
        lanes.offer(event(chunk(17, 18, at=15)))
    assert exits == [70]
    await lanes.stop(deadline())


async def test_a_compacted_source_has_honest_holes() -> None:
    seen: list[int] = []

    async def handle(batch: SourceBatch) -> None:
        seen.append(batch.first_offset)

    lanes = lanes_with(handle, compacted=True)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(40, 44, at=0)))
    await settle(lambda: seen == [40])
    await lanes.stop(deadline())


async def test_chunks_of_another_assignment_are_dropped_unacked() -> None:
    acks: list[int] = []

    async def handle(batch: SourceBatch) -> None:
        raise AssertionError("must not be handled")

    lanes = lanes_with(handle, acks)
    lanes.offer(event(chunk(0, 4)))
    lanes.open(0, 2, 0, -1)
    lanes.offer(event(chunk(0, 4, epoch=1)))
    await lanes.stop(deadline())
    lanes.offer(event(chunk(0, 4, epoch=2)))
    assert acks == []


async def test_a_handler_error_ends_the_process_and_acks_nothing(exits: list[int]) -> None:
    """T-A1: not acked, not skipped."""
    acks: list[int] = []

    async def handle(batch: SourceBatch) -> None:
        raise RecordError("a poison record that the role let through")

    lanes = lanes_with(handle, acks)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    with pytest.raises(Died):
        await ended(lanes)
    assert (exits, acks) == ([70], [])


async def test_transient_errors_are_retried_in_place() -> None:
    """T-A2: same batch, not acked meanwhile, then on."""
    calls: list[int] = []
    acks: list[int] = []

    async def handle(batch: SourceBatch) -> None:
        calls.append(batch.first_offset)
        if len(calls) < 3:
            assert acks == []
            raise StoreUnavailable("down")

    lanes = lanes_with(handle, acks, retry_delay_max_s=0.001)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    lanes.offer(event(chunk(5, 9)))
    await eventually(lambda: acks[-1:] == [9], 5.0, "both chunks")
    assert calls == [0, 0, 0, 5]
    await lanes.stop(deadline())


async def test_retries_have_a_bound(exits: list[int]) -> None:
    async def handle(batch: SourceBatch) -> None:
        raise StoreUnavailable("down for good")

    lanes = lanes_with(handle, retry_total_s=0.0)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    with pytest.raises(Died):
        await ended(lanes)
    assert exits == [70]


async def test_a_stop_ends_the_wait_of_a_retry_without_ack() -> None:
    acks: list[int] = []
    tried = asyncio.Event()

    async def handle(batch: SourceBatch) -> None:
        tried.set()
        raise StoreUnavailable("down")

    lanes = lanes_with(handle, acks, retry_delay_max_s=3600.0, retry_total_s=3600.0)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    await tried.wait()
    await asyncio.wait_for(lanes.stop(deadline(30)), 30)
    assert acks == []


async def test_a_stop_lets_the_batch_in_flight_end_and_drops_the_rest() -> None:
    acks: list[int] = []
    gate, started = asyncio.Event(), asyncio.Event()

    async def handle(batch: SourceBatch) -> None:
        started.set()
        await gate.wait()

    lanes = lanes_with(handle, acks, batch_records_max=5)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    await started.wait()
    lanes.offer(event(chunk(5, 9)))
    stopping = asyncio.ensure_future(lanes.stop(deadline()))
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert acks == [4]


async def test_a_batch_that_outlasts_the_deadline_ends_the_process(exits: list[int]) -> None:
    """T-B2: the rebalance has one deadline; a batch of unknown outcome may not be left running."""
    started = asyncio.Event()

    async def handle(batch: SourceBatch) -> None:
        started.set()
        await asyncio.Event().wait()

    lanes = lanes_with(handle)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    await started.wait()
    with pytest.raises(Died):
        await lanes.stop(deadline(0.01))
    assert exits == [70]


async def test_a_full_lane_is_named_until_it_has_room() -> None:
    gate = asyncio.Event()

    async def handle(batch: SourceBatch) -> None:
        await gate.wait()

    lanes = lanes_with(handle, batch_records_max=5, lane_records_max=15)
    lanes.open(0, 1, 0, -1)
    lanes.open(1, 1, 0, -1)
    for first in (0, 5, 10):
        lanes.offer(event(chunk(first, first + 4)))
    assert lanes.full == {0}
    assert lanes.queued(0) == 15
    gate.set()
    await settle(lambda: not lanes.full)
    assert lanes.queued(1) == 0
    await lanes.stop(deadline())


async def test_lanes_do_not_wait_for_each_other() -> None:
    """A slow partition holds up no other one (T-W2)."""
    acks: list[int] = []

    async def handle(batch: SourceBatch) -> None:
        if batch.partition == 0:
            await asyncio.Event().wait()

    lanes = lanes_with(handle, acks)
    lanes.open(0, 1, 0, -1)
    lanes.open(1, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    lanes.offer(event(chunk(0, 4, partition=1)))
    await eventually(lambda: acks == [4], 5.0, "the other partition")
    lanes._closing.set()
    for task in lanes._tasks:
        task.cancel()


async def test_a_lane_opens_once(exits: list[int]) -> None:
    async def handle(batch: SourceBatch) -> None: ...

    lanes = lanes_with(handle)
    lanes.open(0, 1, 0, -1)
    with pytest.raises(Died):
        lanes.open(0, 1, 0, -1)
    await lanes.stop(deadline())


# -- sweeps


class Sweeps:
    """A role that holds each of its calls until told: what was handed over, call by call."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[int, int, int]]] = []
        self.gates: list[asyncio.Event] = []

    async def handle(self, batches: Sequence[SourceBatch]) -> None:
        self.calls.append([(one.partition, one.first_offset, one.last_offset) for one in batches])
        self.gates.append(asyncio.Event())
        await self.gates[-1].wait()

    def lanes(self, count: int = 2, **changes: object) -> PartitionLanes:
        """Lanes of `count` partitions with this role."""
        lanes = PartitionLanes(spec(**changes), SourceSpec("in", 4), SourceRole(_zero, self.handle))
        for partition in range(count):
            lanes.open(partition, 1, 0, -1)
        return lanes

    def release(self) -> None:
        for gate in self.gates:
            gate.set()


async def test_a_fetch_of_several_partitions_is_one_call() -> None:
    role = Sweeps()
    lanes = role.lanes()
    lanes.offer(event(chunk(0, 4), chunk(0, 1, partition=1)))
    await settle(lambda: role.calls)
    assert sorted(role.calls[0]) == [(0, 0, 4), (1, 0, 1)]
    role.release()
    await lanes.stop(deadline())


async def test_what_comes_during_a_sweep_makes_up_the_next() -> None:
    """No timer: batches grow with the load."""
    role = Sweeps()
    lanes = role.lanes()
    lanes.offer(event(chunk(0, 0)))
    await settle(lambda: role.calls)
    for offset in range(1, 4):
        lanes.offer(event(chunk(offset, offset), chunk(offset - 1, offset - 1, partition=1)))
    role.gates[0].set()
    await settle(lambda: len(role.calls) == 2)
    assert sorted(role.calls[1]) == [(0, 1, 3), (1, 0, 2)]
    role.release()
    await lanes.stop(deadline())


async def test_a_slow_sweep_is_overtaken_by_the_other_lanes() -> None:
    """T-W2: a huge record or a slow store holds only the partitions of its own sweep."""
    role = Sweeps()
    lanes = role.lanes()
    lanes.offer(event(chunk(0, 0)))
    await settle(lambda: role.calls)
    lanes.offer(event(chunk(1, 1), chunk(0, 3, partition=1)))
    await settle(lambda: True)
    assert len(role.calls) == 1, "not at once: most sweeps are short"
    await eventually(lambda: len(role.calls) == 2, OVERTAKE_S + 5.0, "the other lane")
    assert role.calls[1] == [(1, 0, 3)], "the lane of the slow sweep stays in order"
    role.release()
    await settle(lambda: len(role.calls) == 3)
    assert role.calls[2] == [(0, 1, 1)]
    role.release()
    await lanes.stop(deadline())


async def test_a_sweep_is_bounded_and_nobody_is_always_last() -> None:
    role = Sweeps()
    lanes = role.lanes(count=3, batch_records_max=10)
    lanes.offer(event(chunk(0, 0)))
    await settle(lambda: role.calls)
    role.gates[0].set()
    for partition in range(3):
        first = 0 if partition else 1
        for start in range(first, first + 40, 8):
            lanes.offer(event(chunk(start, start + 7, partition=partition)))
    firsts = []
    for number in range(1, 4):
        await settle(lambda number=number: len(role.calls) > number)
        assert sum(last - first + 1 for _, first, last in role.calls[number]) <= 10
        firsts.append(role.calls[number][0][0])
        role.gates[number].set()
    assert len(set(firsts)) == 3
    role.release()
    stopping = asyncio.ensure_future(lanes.stop(deadline()))
    await settle(lambda: role.release() or stopping.done())


async def test_a_stop_waits_for_what_a_failing_sweep_leaves_behind() -> None:
    """The sweep is split while the lanes stop: nothing of it may run on after they are gone."""
    started, gate = asyncio.Event(), asyncio.Event()
    running: set[int] = set()

    async def handle(batches: Sequence[SourceBatch]) -> None:
        if len(batches) > 1:
            started.set()
            await gate.wait()
            raise StoreUnavailable("down")
        running.add(batches[0].partition)
        for _ in range(5):
            await asyncio.sleep(0)
        running.discard(batches[0].partition)

    lanes = PartitionLanes(spec(), SourceSpec("in", 4), SourceRole(_zero, handle))
    lanes.open(0, 1, 0, -1)
    lanes.open(1, 1, 0, -1)
    lanes.offer(event(chunk(0, 4), chunk(0, 4, partition=1)))
    await started.wait()
    stopping = asyncio.ensure_future(lanes.stop(deadline()))
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert not running
    assert not lanes._tasks


async def test_an_outage_of_one_partition_holds_no_other_one() -> None:
    """T-A2: what was swept together is tried again apart."""
    acks: list[int] = []
    down = True

    async def handle(batch: SourceBatch) -> None:
        if batch.partition == 1 and down:
            raise StoreUnavailable("the store of partition 1 is down")

    lanes = lanes_with(handle, acks, retry_delay_max_s=0.001)
    lanes.open(0, 1, 0, -1)
    lanes.open(1, 1, 0, -1)
    lanes.offer(event(chunk(0, 6, partition=1), chunk(0, 4)))
    await eventually(lambda: acks == [4], 5.0, "partition 0")
    lanes.offer(event(chunk(5, 5)))
    await eventually(lambda: acks == [4, 5], 5.0, "partition 0 again")
    down = False
    await eventually(lambda: acks == [4, 5, 6], 5.0, "partition 1")
    await lanes.stop(deadline())


async def test_an_error_is_raised_when_every_call_has_ended() -> None:
    """A sweep that is tried again must not run beside its first try."""
    running: set[int] = set()

    async def handle(batch: SourceBatch) -> None:
        running.add(batch.partition)
        try:
            if batch.partition == 0:
                raise StoreUnavailable("down")
            await asyncio.sleep(0.01)
        finally:
            running.discard(batch.partition)

    batches = [SourceBatch("in", partition, 1, [], -1) for partition in (0, 1)]
    with pytest.raises(StoreUnavailable):
        await one_by_one(handle)(batches)
    assert not running


# -- checkpoints


class Checkpoints:
    """A role that keeps its position: what was handled, and which checkpoints were taken after what."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.taken: list[int] = []
        self.failures = 0
        self.reached: int | None = None  # what a checkpoint says is done, if not all

    async def handle(self, batch: SourceBatch) -> None:
        self.handled += [record.offset for record in batch.records]

    async def checkpoint(self, partitions: Sequence[int]) -> dict[int, int] | None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the log does not answer", Outcome.UNKNOWN)
        self.taken.append(self.handled[-1])
        return None if self.reached is None else dict.fromkeys(partitions, self.reached)

    def lanes(self, acks: list[int], **changes: object) -> PartitionLanes:
        """Lanes of source `in` with this role."""
        role = SourceRole(_zero, one_by_one(self.handle), checkpoint=self.checkpoint)
        return noting(acks, PartitionLanes(spec(**changes), SourceSpec("in", 4), role))


async def test_nothing_is_acked_before_its_checkpoint() -> None:
    role, acks = Checkpoints(), list[int]()
    lanes = role.lanes(acks, checkpoint_s=10.0, checkpoint_records_max=12)
    lanes.open(0, 1, 0, -1)
    for first in range(0, 10, 5):
        lanes.offer(event(chunk(first, first + 4)))
    await settle(lambda: len(role.handled) == 10)
    assert (role.taken, acks) == ([], [])
    lanes.offer(event(chunk(10, 14)))
    await settle(lambda: acks == [14])
    assert role.taken == [14]
    await lanes.stop(deadline())
    assert role.taken == [14], "nothing was handled since"


async def test_a_checkpoint_comes_when_no_record_does() -> None:
    role, acks = Checkpoints(), list[int]()
    lanes = role.lanes(acks, checkpoint_s=0.01)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    await eventually(lambda: acks == [4], 5.0, "a checkpoint")
    lanes.offer(event(chunk(5, 6)))
    await eventually(lambda: acks == [4, 6], 5.0, "the next one")
    assert role.taken == [4, 6]
    await lanes.stop(deadline())


async def test_a_checkpoint_that_reached_a_part_acknowledges_that_and_comes_again() -> None:
    """The role goes on with a batch after it returned: nothing of that is acknowledged before it is done."""
    role, acks = Checkpoints(), list[int]()
    role.reached = 2
    lanes = role.lanes(acks, checkpoint_s=0.01)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    await eventually(lambda: len(role.taken) > 2, 20.0, "checkpoints without a new record")
    assert set(acks) == {2}
    role.reached = 4
    await eventually(lambda: acks[-1] == 4, 20.0, "the rest")
    taken = len(role.taken)
    await lanes.stop(deadline())
    assert (acks[-1], len(role.taken)) == (4, taken), "all was done: none is due any more"


async def test_a_lane_that_stops_takes_its_last_checkpoint() -> None:
    """A clean hand-over leaves nothing to do twice."""
    role, acks = Checkpoints(), list[int]()
    lanes = role.lanes(acks, checkpoint_s=10.0)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    await settle(lambda: role.handled)
    await lanes.stop(deadline())
    assert (role.taken, acks) == ([4], [4])


async def test_a_checkpoint_that_fails_is_taken_again() -> None:
    role, acks = Checkpoints(), list[int]()
    role.failures = 2
    lanes = role.lanes(acks, checkpoint_s=0.01)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    await eventually(lambda: acks == [4], 5.0, "the third try")
    await lanes.stop(deadline())


async def test_a_stop_does_not_wait_for_a_checkpoint_that_fails() -> None:
    """What it would have covered is handed out again to the next owner."""
    role, acks = Checkpoints(), list[int]()
    role.failures = 1_000
    lanes = role.lanes(acks, checkpoint_s=10.0)
    lanes.open(0, 1, 0, -1)
    lanes.offer(event(chunk(0, 4)))
    await settle(lambda: role.handled)
    await lanes.stop(deadline())
    assert acks == []
