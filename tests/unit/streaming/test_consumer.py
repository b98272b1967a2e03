"""The consumer's rules on a stand-in for its thread: early, stale, behind, ahead, holes, starts, drain."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from faust.types import TP

from qim_streams.errors import StoreUnavailable
from qim_streams.streaming.app import StreamApp, build_app
from qim_streams.streaming.consumer import StreamConsumer
from qim_streams.streaming.source import SourceBatch, SourceRole, one_by_one
from qim_streams.streaming.spec import SourceSpec
from qim_streams.streaming.transport import Drained
from tests.unit.streaming.fakes import Died, settle, spec

P0, P1 = TP("in", 0), TP("in", 1)
LOG = TP("qim-unit-t-changelog", 0)


class Rec:
    """A consumed record as the consumer turns it into a message."""

    timestamp, timestamp_type, headers, checksum = 0, 0, (), None
    serialized_key_size = serialized_value_size = 0
    key: bytes | None = None
    value: bytes | None = b"v"

    def __init__(self, offset: int, tp: TP = P0) -> None:
        self.topic, self.partition = tp
        self.offset = offset


class FakeThread:
    """Answers what the consumer asks of its thread; records the seeks."""

    def __init__(self) -> None:
        self.assigned: set[TP] = {P0, P1}
        self.answers: list[list[Drained]] = []
        self.seeks: list[tuple[TP, int, int]] = []
        self.numbers: dict[TP, int] = {}
        self.begins: dict[TP, int] = {}
        self.ends: dict[TP, int] = {}
        self.commits: list[dict[TP, int]] = []
        self.commit_result = True
        self.paused: set[TP] = set()
        self.assignments = 1

    def assignment(self) -> set[TP]:
        return set(self.assigned)

    async def fetch(self, partitions: frozenset[TP], timeout_s: float) -> list[Drained]:
        return self.answers.pop(0) if self.answers else []

    async def seek_numbered(self, tp: TP, offset: int, number: int) -> bool:
        self.seeks.append((tp, offset, number))
        self.numbers[tp] = number
        return tp in self.assigned

    async def pause_fetching(self, partitions: Iterable[TP], assignment: int) -> None:
        self.paused.update(partitions)

    async def earliest_offsets(self, *tps: TP) -> dict[TP, int]:
        return {tp: self.begins.get(tp, 0) for tp in tps}

    async def highwaters(self, *tps: TP) -> dict[TP, int]:
        return {tp: self.ends.get(tp, 1_000_000) for tp in tps}

    async def commit(self, offsets: Mapping[TP, int]) -> bool:
        self.commits.append(dict(offsets))
        return self.commit_result

    def fetch_position(self, tp: TP) -> int | None:
        return None


class World:
    """A consumer with a fake thread and a role whose answers tests choose."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.starts: dict[int, Any] = {}
        self.handled: list[SourceBatch] = []
        self.released: list[frozenset[int]] = []
        self.gate: asyncio.Event | None = None
        self.app: StreamApp = build_app(spec(datadir=directory, chunk_records_max=3, **changes))
        self.lanes = self.app.add_source(
            "in", SourceRole(self.start_position, one_by_one(self.handle), self.on_released)
        )
        self.app.finalize()
        self.consumer: StreamConsumer = self.app.consumer
        self.thread = FakeThread()
        self.consumer._thread = self.thread  # type: ignore[assignment]
        self.consumer.epoch = 1
        self.app.consumer_generation_id = 7
        self.consumer._active_partitions = {P0, P1}

    async def start_position(self, partition: int) -> int:
        answer = self.starts.get(partition, 0)
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Future):
            answer = await answer
        result: int = answer
        return result

    async def handle(self, batch: SourceBatch) -> None:
        self.handled.append(batch)
        if self.gate is not None:
            await self.gate.wait()

    async def on_released(self, partitions: frozenset[int]) -> None:
        self.released.append(partitions)

    def answer(self, tp: TP, offsets: Iterable[int], number: int | None = None) -> None:
        """Let the next fetch bring records of `tp`."""
        seen = self.thread.numbers.get(tp, 0) if number is None else number
        self.thread.answers.append([Drained(tp, seen, [Rec(offset, tp) for offset in offsets])])

    async def delivered(self) -> list[tuple[TP, list[int]]]:
        """What one round of the consumer hands out."""
        return [
            (TP("in", chunk.partition), [record.offset for record in chunk.records])
            async for _, message in self.consumer.getmany(1.0)
            for chunk in message.value
        ]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    if made.gate is not None:
        made.gate.set()
    await made.consumer.quiesce("end of test")


async def begin(world: World, **starts: int) -> None:
    """Start both partitions and wait for it."""
    world.starts.update({int(name[1:]): value for name, value in starts.items()})
    world.consumer.starts.begin(world.consumer.epoch, [P0, P1])
    await settle(lambda: set(world.consumer.positions) == {P0, P1} and len(world.thread.seeks) >= 2)


async def test_chunks_are_slices_of_a_partition(world: World) -> None:
    await begin(world, p0=5)
    world.answer(P0, range(5, 13))
    assert await world.delivered() == [(P0, [5, 6, 7]), (P0, [8, 9, 10]), (P0, [11, 12])]
    assert world.consumer.positions[P0] == 13


async def test_records_before_the_start_are_early(world: World) -> None:
    """FS#596: the flow runs before the start position is known."""
    world.answer(P0, range(900, 905), number=0)
    assert await world.delivered() == []
    assert world.consumer.branches["early"] == 1


async def test_records_drained_before_the_seek_are_stale(world: World) -> None:
    """B2: a prefetched record from before the rebalance, far ahead."""
    await begin(world, p0=5)
    world.answer(P0, range(5, 8), number=0)
    assert await world.delivered() == []
    assert world.consumer.branches["stale"] == 1
    assert world.consumer.positions[P0] == 5


async def test_records_behind_the_position_are_cut(world: World) -> None:
    await begin(world, p0=5)
    world.answer(P0, range(2, 7))
    assert await world.delivered() == [(P0, [5, 6])]
    world.answer(P0, range(2, 7))
    assert await world.delivered() == []


async def test_a_gap_is_read_again_once_and_heals(world: World) -> None:
    """B1: what was skipped on the way comes after one seek back."""
    await begin(world, p0=5)
    world.answer(P0, [7, 8])
    assert await world.delivered() == []
    assert world.thread.seeks[-1][:2] == (P0, 5)
    world.answer(P0, [5, 6, 7, 8])
    assert await world.delivered() == [(P0, [5, 6, 7]), (P0, [8])]
    assert world.consumer.branches["hole"] == 0


async def test_the_same_answer_twice_proves_a_hole(world: World) -> None:
    """H6, T-B3: control records leave offsets without a record."""
    await begin(world, p0=5)
    world.answer(P0, [7, 8])
    assert await world.delivered() == []
    world.answer(P0, [7, 8])  # after the seek back
    [message] = [message async for _, message in world.consumer.getmany(1.0)]
    assert [(one.from_offset, one.hole_proved) for one in message.value] == [(5, True)]
    assert world.consumer.branches["hole"] == 1


async def test_a_hole_inside_an_answer_needs_no_second_look(world: World) -> None:
    await begin(world, p0=0)
    world.answer(P0, [0, 1, 2, 5, 6])
    [chunks] = [message.value async for _, message in world.consumer.getmany(1.0)]
    assert [(chunk.from_offset, chunk.hole_proved) for chunk in chunks] == [(0, False), (3, True)]


async def test_removed_records_are_not_a_hole(world: World, exits: list[int]) -> None:
    """Retention passed our position: an operator decides, nothing is skipped in silence."""
    await begin(world, p0=5)
    world.thread.begins[P0] = 7
    world.answer(P0, [7, 8])
    assert await world.delivered() == []
    world.answer(P0, [7, 8])  # after the seek back
    with pytest.raises(Died):
        await world.delivered()
    assert exits == [70]


async def test_changelog_records_pass_one_by_one(world: World) -> None:
    world.consumer._seek_floor[LOG] = 3
    world.answer(LOG, [1, 2], number=2)
    assert [message async for _, message in world.consumer.getmany(1.0)] == []
    world.answer(LOG, [1, 2], number=3)
    assert [message.offset async for _, message in world.consumer.getmany(1.0)] == [1, 2]


async def test_a_revocation_in_the_middle_stops_the_delivery(world: World) -> None:
    await begin(world, p0=0)
    world.answer(P0, range(9))
    round_ = world.consumer.getmany(1.0)
    await anext(round_)
    await world.consumer.quiesce("revoked")
    assert [item async for item in round_] == []


async def test_sources_stay_held_until_recovery_ends(world: World) -> None:
    consumer = world.consumer
    consumer.pause_partitions({P0, P1, LOG})
    consumer.resume_partitions({LOG})
    consumer.resume_flow()  # recovery begins to replay
    assert consumer._active_partitions == {LOG}
    consumer.resume_partitions({P0, P1})
    assert consumer._active_partitions == {LOG}
    consumer.resume_flow()  # recovery ends
    assert consumer._active_partitions == {LOG, P0, P1}


async def test_a_full_lane_is_not_fetched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[TP]] = []

    async def fetch(partitions: frozenset[TP], timeout_s: float) -> list[Drained]:
        asked.append(partitions)
        return []

    monkeypatch.setattr(world.thread, "fetch", fetch)
    world.lanes.full.add(0)
    await world.delivered()
    world.lanes.full.add(1)
    await world.delivered()  # an empty set would mean "all" to the driver: nothing is asked
    world.lanes.full.clear()
    assert asked == [frozenset({P1})]


async def test_starts_do_not_wait_for_each_other(world: World) -> None:
    """A partition whose lease is not there yet holds up no other one."""
    waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    world.starts[0] = waiting
    world.consumer.starts.begin(1, [P0, P1])
    await settle(lambda: P1 in world.consumer.positions)
    assert P0 not in world.consumer.positions
    assert not world.consumer.ready
    waiting.set_result(40)
    await settle(lambda: world.consumer.positions.get(P0) == 40)
    assert world.consumer.ready


async def test_no_partition_is_an_answer_of_the_group_and_silence_is_none(world: World) -> None:
    """B7: who gets nothing, for there are more workers than partitions, is ready; who was not told is not."""
    world.thread.assigned, world.thread.assignments = set(), 0
    assert (world.consumer.given, world.consumer.ready) == (None, False)
    world.thread.assignments = 1
    assert (world.consumer.given, world.consumer.ready) == (set(), True)
    world.thread.assigned = {LOG}  # of a table, which it follows
    assert (world.consumer.given, world.consumer.ready) == (set(), True)
    world.thread.assigned = {P0}
    assert (world.consumer.given, world.consumer.ready) == ({P0}, False)


async def test_a_start_retries_what_is_transient(tmp_path: Path) -> None:
    world = World(tmp_path, retry_delay_max_s=0.001)
    world.starts[0] = [StoreUnavailable("down"), StoreUnavailable("down"), 12]
    world.consumer.starts.begin(1, [P0])
    await settle(lambda: world.consumer.positions.get(P0) == 12, turns=100_000)
    await world.consumer.quiesce("end of test")


@pytest.mark.parametrize("answer", [ValueError("no"), -1])
async def test_an_unknown_start_ends_the_process(world: World, exits: list[int], answer: Any) -> None:
    world.starts[0] = answer
    world.consumer.starts.begin(1, [P0])
    task = world.consumer.starts._tasks.pop(P0)
    with pytest.raises(Died):
        await task
    assert exits == [70]


async def test_a_fresh_group_starts_where_the_log_starts(world: World) -> None:
    world.thread.begins[P0] = 33
    await begin(world, p0=0)
    assert world.consumer.positions[P0] == 33


async def test_a_start_below_the_log_is_an_operators_decision(world: World, exits: list[int]) -> None:
    world.thread.begins[P0] = 33
    world.starts[0] = 20
    world.consumer.starts.begin(1, [P0])
    task = world.consumer.starts._tasks.pop(P0)
    with pytest.raises(Died):
        await task
    assert exits == [70]


async def test_a_lossy_source_goes_on_above_the_lost_range(tmp_path: Path) -> None:
    world = World(tmp_path, sources=(SourceSpec("in", 4, on_lost_range="skip"),))
    world.thread.begins[P0] = 33
    world.starts[0] = 20
    world.consumer.starts.begin(1, [P0])
    await settle(lambda: world.consumer.positions.get(P0) == 33)
    assert world.lanes.previous(0) == 19  # the coverage point, as expected_previous
    await world.consumer.quiesce("end of test")


async def test_a_start_above_the_log_is_a_replaced_topic(
    world: World, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T-B4, H6: offsets started again; serving would mean a wrong W."""
    monkeypatch.setattr("qim_streams.streaming.starts._BEHIND_WAIT_S", 0.0)
    world.thread.ends[P0] = 5
    world.starts[0] = 6
    world.consumer.starts.begin(1, [P0])
    task = world.consumer.starts._tasks.pop(P0)
    with pytest.raises(Died):
        await task
    assert exits == [70]


async def test_a_revocation_cancels_starts_and_opens_nothing_later(world: World) -> None:
    """B7: a partition lost in the rebalance is not sought."""
    waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    world.starts[0] = waiting
    world.consumer.starts.begin(1, [P0])
    await asyncio.sleep(0)
    await world.consumer.quiesce("revoked")
    assert waiting.cancelled()
    assert not await world.consumer.start_source(P0, 1, 5, 4)
    assert world.thread.seeks == []
    assert world.released == [frozenset({0})]


async def feed_lane(world: World, offsets: Iterable[int]) -> list[Any]:
    """Deliver records of P0 to the lanes as the stream would; returns the messages."""
    world.answer(P0, offsets)
    messages = []

    class Event:
        def __init__(self, message: Any) -> None:
            self.message, self.value = message, message.value

        def ack(self) -> bool:
            return bool(world.consumer.ack(self.message))

    async for _, message in world.consumer.getmany(1.0):
        messages.append(message)
        world.lanes.offer(Event(message))
    return messages


async def test_commits_follow_acknowledgements_and_skip_what_is_committed(world: World) -> None:
    await begin(world, p0=5)
    await feed_lane(world, range(5, 12))
    await settle(lambda: world.consumer._processed.get(P0) == 12)
    assert await world.consumer.force_commit()
    assert not await world.consumer.force_commit()
    assert world.thread.commits == [{P0: 12}]


async def test_a_failed_commit_is_covered_by_the_next(world: World) -> None:
    """B8: the bookkeeping does not believe a commit that failed."""
    await begin(world, p0=0)
    await feed_lane(world, range(3))
    await settle(lambda: world.consumer._processed.get(P0) == 3)
    world.thread.commit_result = False
    assert not await world.consumer.force_commit()
    world.thread.commit_result = True
    assert await world.consumer.force_commit()
    assert world.thread.commits == [{P0: 3}, {P0: 3}]


async def test_a_duplicate_ack_changes_nothing(world: World) -> None:
    """B4: a duplicate in the acknowledgements must not stop the commits."""
    await begin(world, p0=0)
    messages = await feed_lane(world, range(9))
    await settle(lambda: world.consumer._processed.get(P0) == 9)
    assert not world.consumer.ack(messages[0])
    await world.consumer.force_commit()
    await feed_lane(world, range(9, 12))
    await settle(lambda: world.consumer._processed.get(P0) == 12)
    await world.consumer.force_commit()
    assert world.thread.commits == [{P0: 9}, {P0: 12}]


async def test_a_drain_ends_the_batch_commits_and_releases_in_that_order(world: World) -> None:
    """H11: acknowledgements are committed before Faust forgets them."""
    await begin(world, p0=0)
    world.gate = asyncio.Event()
    await feed_lane(world, range(3))
    await settle(lambda: world.handled)
    draining = asyncio.ensure_future(world.consumer.quiesce("revoked"))
    await asyncio.sleep(0)
    assert world.consumer.positions == {}
    assert (world.thread.commits, world.released) == ([], [])
    world.gate.set()
    await draining
    assert world.thread.commits == [{P0: 3}]
    assert world.released == [frozenset({0, 1})]
    assert world.consumer._processed == {}


async def test_a_release_that_fails_does_not_hold_up_the_rebalance(world: World) -> None:
    async def broken(partitions: frozenset[int]) -> None:
        raise StoreUnavailable("down")

    object.__setattr__(world.lanes.role, "on_released", broken)
    await begin(world)
    await world.consumer.quiesce("revoked")
    assert world.consumer.epoch == 2


async def test_a_half_filled_table_is_never_served(world: World, exits: list[int], tmp_path: Path) -> None:
    world.app.acked_table("t", 4)
    world.app.tables.recovery.active_highwaters[LOG] = 50
    world.app.tables.recovery.active_offsets[LOG] = 20
    with pytest.raises(Died):
        await world.consumer.seek_to_committed()
    assert exits == [70]
