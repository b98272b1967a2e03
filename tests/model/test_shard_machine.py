"""T-M1: one shard under crashes, takeovers, zombies, lost answers and a store that forgets. I3 I5 I6 I8 I14.

Lanes go on one by one: slices of large records are written between batches, or not, and whatever happens
happens between slices, too. The machine drives the real services over stores in memory
(`tests.support.shard_world`) and checks every mailbox against the world's own account after every rule.
`test_seeded_bugs_are_found` plants known bugs and demands that the same machine finds each of them.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from qim_streams.errors import FencedError, InvariantViolation, StoreError, StoreUnavailable
from qim_streams.log_ports import LogRecord
from qim_streams.mailbox import intake, service, watermark
from qim_streams.mailbox.intake import Kind, Lookup, Taken
from qim_streams.mailbox.members import Addressed
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.open_lanes import Cut, OpenLanes
from qim_streams.mailbox.progress import DispatchProgress
from qim_streams.mailbox.service import MailboxMaterialiser
from qim_streams.mailbox.shards import Shard
from qim_streams.mailbox.watermark import Marks
from qim_streams.mailbox.writer import EntryWriter
from tests.support.shard_world import ENTRIES_MAX, ORDINALS, SHARD, Crash, Died, ShardWorld, Worker

THING_LISTS = st.lists(
    st.sampled_from(["small"] * 3 + ["large", "repeat"] * 2 + ["poison", "hole", "forged"]), max_size=4
)
TROUBLE = st.sampled_from(["crash", "power", "power", "pause", "zombie", "zombie", "refuse", "refuse"])
KINDS = st.sampled_from(["crash_before", "crash_after", "lost_request", "lost_answer", "forget"])


class ShardMachine(RuleBasedStateMachine):
    """The rules. A worker that dies is replaced by the next `start`."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()

    def run_async(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.run_async(self.finish())
        finally:
            self.loop.close()

    @initialize()
    def create(self) -> None:
        self.world = ShardWorld()
        self.boots = 0
        self.worker: Worker | None = None
        self.zombies: list[Worker] = []
        self.snapshots: list[Any] = []
        self.w_seen: Marks = -1
        self.lossy = False  # the store fell back and has not been caught up

    # -- the rules: every one makes sure that there is a worker and something to do

    @rule(
        things=THING_LISTS,
        count=st.integers(1, 6),
        slices=st.integers(0, 3),
        checkpoint=st.booleans(),
        data=st.data(),
    )
    def work(self, things: list[str], count: int, slices: int, checkpoint: bool, data: st.DataObject) -> None:
        self.prepare(things, data)
        if self.run_async(self.try_work(count, 1, slices, checkpoint)):
            assert self.lossy
            self.worker = None
        elif not self.lossy:
            self.snapshots = [*self.snapshots[-2:], self.world.store.snapshot()]

    @rule(
        things=THING_LISTS,
        count=st.integers(1, 6),
        at=st.integers(0, 9),
        kind=KINDS,
        attempts=st.integers(1, 2),
        slices=st.integers(0, 4),
        checkpoint=st.booleans(),
        data=st.data(),
    )
    def work_badly(
        self,
        things: list[str],
        count: int,
        at: int,
        kind: str,
        attempts: int,
        slices: int,
        checkpoint: bool,
        data: st.DataObject,
    ) -> None:
        """The `at`-th call of the batch and its slices fails, before or after it was done."""
        self.prepare(things, data)
        self.world.faults.arm(at, kind)
        died = self.run_async(self.try_work(count, attempts, slices, checkpoint))
        self.world.faults.arm(None, "crash_before")
        self.notice()
        if died:
            self.lose_worker(data)

    @rule(trouble=TROUBLE, data=st.data())
    def suffer(self, trouble: str, data: st.DataObject) -> None:
        if trouble == "crash" and self.worker is not None:
            self.lose_worker(data)
        elif trouble == "pause" and self.worker is not None:
            # The owner is paused; another worker, without its disk, takes the shard over. Spec: §11.
            self.zombies.append(self.worker)
            self.world.lose_disk()
            self.run_async(self.take_over())
        elif trouble == "zombie" and self.zombies:
            self.run_async(self.wake(self.zombies.pop(), data.draw(st.integers(1, 4))))
        elif trouble == "refuse":
            # A mailbox takes no entries, or does again.
            self.world.store.refusing ^= {data.draw(st.sampled_from(ORDINALS))}
        elif trouble == "power" and self.snapshots:
            self.lose_power(data)

    def prepare(self, things: list[str], data: st.DataObject) -> None:
        for thing in things:
            self.append_one(thing, data)
        if self.worker is None:
            self.run_async(self.take_over())

    def append_one(self, thing: str, data: st.DataObject) -> None:
        world = self.world
        if thing == "poison":
            world.append_bytes(data.draw(st.sampled_from([None, b"", b"\x01\xc0", b"\x09junk"])))
        elif thing == "hole":
            world.skip_offsets(data.draw(st.integers(1, 3)))
        elif thing in ("repeat", "forged") and world.messages:
            number = world.messages - 1 - data.draw(st.integers(0, min(3, world.messages - 1)))
            if thing == "forged":
                world.append_forged(number)
            else:
                world.append_repeat(number, inline=data.draw(st.booleans()))
        else:
            size = (4, len(ORDINALS)) if thing == "large" else (1, 2)
            members = st.lists(st.sampled_from(ORDINALS), min_size=size[0], max_size=size[1], unique=True)
            chosen, sender = data.draw(members), data.draw(st.sampled_from(ORDINALS))
            world.append_message(chosen, sender=sender, inline=data.draw(st.booleans()))

    # -- what happens to workers and store

    async def take_over(self) -> None:
        self.boots += 1
        self.world.faults.arm(None, "crash_before")
        worker = Worker(self.world, self.boots, slice_max=1 + self.boots % ENTRIES_MAX)
        await worker.start()
        self.worker = worker
        if self.lossy and min(await self.world.watermark()) >= worker.leases.served[SHARD].floor:
            self.lossy = False

    async def try_work(self, count: int, attempts: int, slices: int, checkpoint: bool) -> bool:
        """One batch with retries, as a lane does it, and slices behind it; True when the worker died."""
        assert self.worker is not None
        handled = False
        for _ in range(attempts):
            try:
                if not handled:
                    handled = await self.worker.work(count, checkpoint=False) or True
                for _ in range(slices):
                    await self.worker.slice()
                if checkpoint:
                    await self.worker.checkpoint()
            except StoreUnavailable:
                continue
            except Crash:
                return True
            except StoreError:
                self.notice()
                assert self.lossy, "a store error without a store that lost anything"
                return True
            return False
        return False  # the lane would go on trying

    def notice(self) -> None:
        """The store may have fallen back in the middle of a batch."""
        if self.world.store.fell_back:
            self.world.store.fell_back, self.lossy, self.w_seen = False, True, -1

    def watch(self, data: st.DataObject) -> None:
        """The background look at W: it ends a worker whose store fell back."""
        try:
            if self.worker is not None:
                self.run_async(self.worker.leases.compare())
        except Died:
            self.lose_worker(data)

    def lose_worker(self, data: st.DataObject) -> None:
        """Crash: memory is gone; the log got some of the changelog records; the disk may be gone, too."""
        self.worker = None
        for table in (self.world.progress_table, self.world.floor_table):
            table.crash(SHARD, sent=data.draw(st.integers(0, 3), "sent"))
        if data.draw(st.booleans(), "wipe"):
            self.world.lose_disk()

    async def wake(self, zombie: Worker, count: int) -> None:
        """I14: a paused owner that wakes changes nothing in the store."""
        before = self.world.store.snapshot()
        with contextlib.suppress(FencedError, InvariantViolation, StoreError):  # it ends itself
            await zombie.work(count)
        assert repr(self.world.store.snapshot()) == repr(before), "a zombie wrote"

    def lose_power(self, data: st.DataObject) -> None:
        """The store falls back to an earlier state of itself; epochs are the lease store's and stay."""
        owner = self.world.store._shard(SHARD).owner
        self.world.store.restore(self.snapshots[data.draw(st.integers(0, len(self.snapshots) - 1))])
        self.world.store.grant(SHARD, owner)
        self.snapshots, self.w_seen, self.lossy = [], -1, True
        if data.draw(st.booleans()):
            self.watch(data)

    # -- what must hold

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "world"):
            self.run_async(self.check())

    async def check(self) -> None:
        await self.world.check()
        lanes = await self.world.watermark()
        covered = min(lanes)
        assert not watermark.is_below(watermark.marks(lanes), self.w_seen), "W went back"
        self.w_seen = watermark.marks(lanes)
        assert set(self.world.graveyard.offsets) >= self.world.poison_offsets(covered) or self.lossy
        worker = self.worker
        self.world.check_pages(covered if not self.lossy else None)
        if worker is not None and not self.lossy:
            assert worker.acknowledged <= covered, "acknowledged before every lane has it"
        if worker is not None:
            self.world.check_memory(worker)

    async def finish(self) -> None:
        """I7: after healing W reaches the log's end, and everything is where it belongs."""
        self.world.faults.arm(None, "crash_before")
        self.world.store.refusing.clear()
        self.world.clock_s += 10
        if self.worker is None or self.lossy:
            await self.take_over()
        assert self.worker is not None
        while await self.worker.work(4):
            pass
        await self.worker.drain()
        await self.worker.checkpoint()
        assert self.worker.shard.open is None, "everything is written, and lanes stand apart"
        self.lossy = False
        await self.check()
        end = self.world.log[-1].offset if self.world.log else -1
        assert min(await self.world.watermark()) == end
        assert set(self.world.graveyard.offsets) == self.world.poison_offsets(end)


def run_machine(examples: int, steps: int, machine: type[ShardMachine] = ShardMachine) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_shard_machine() -> None:
    """T-M1, the everyday form: 10,000 steps, no violation."""
    run_machine(examples=200, steps=50)


@pytest.mark.slow
def test_shard_machine_long() -> None:
    """T-M1: 100,000 steps, no violation."""
    run_machine(examples=2_000, steps=50)


# -- seeded bugs: what a careless change could make of the stage


async def _w_covers_what_was_not_written(
    self: EntryWriter, shard: Shard, records: Sequence[Addressed]
) -> bool:
    """W is the largest offset seen."""
    if records[-1].offset > shard.coverage:
        await self._store.write_and_advance(shard.shard, shard.epoch, (), shard.coverage, records[-1].offset)
        shard.coverage = records[-1].offset
    return True


async def _w_before_entries(self: EntryWriter, shard: Shard, groups: list[Any], observed: int) -> None:
    """W moves first, entries follow."""
    await self._store.write_and_advance(shard.shard, shard.epoch, (), shard.coverage, observed)
    shard.coverage = observed
    await self._store.write_step(shard.shard, shard.epoch, groups, observed, "later", 0)


async def _offset_minus_one(self: EntryWriter, shard: Shard, groups: list[Any], observed: int) -> None:
    """expected_previous is computed, not read: offsets have holes (H6)."""
    await self._store.write_and_advance(shard.shard, shard.epoch, groups, observed - 1, observed)
    shard.coverage = observed


async def _page_before_entries(self: MailboxMaterialiser, batches: Any) -> None:
    """The batch is written down as done, then done."""
    work = (await self._intake(batches))[0]
    await self._bury(work.shard, work.taken)
    self._note(work)
    await self.checkpoint([SHARD])
    await self._write(work, {})


async def _push_before_w(self: MailboxMaterialiser, batches: Any) -> None:
    """Push does not wait for W."""
    work = (await self._intake(batches))[0]
    await self._pusher.push([(work.shard, work.records)])
    await self._write(work, {})
    self._note(work)


async def _bury_nothing(self: MailboxMaterialiser, shard: Shard, taken: Sequence[Taken]) -> None:
    """A record that cannot be decoded is skipped."""


def _lanes_overtake(self: OpenLanes, one: Addressed, before: int, **more: Any) -> None:
    """A small record goes before the large one that waits in its lane."""
    _lanes_take(self, one, before, **more)
    for queue in self._queues:
        if len(queue) > 1 and queue[-1].record.offset == one.offset and not queue[-1].record.is_large:
            queue.rotate(1)


def _w_over_what_waits(self: OpenLanes, cut: Cut) -> Marks:
    """W of every lane goes to the last record read."""
    return max(self.known, watermark.highest(self.stands))


def _done_is_what_was_noted(self: Shard) -> int:
    """A page ends where reading does, not where the slowest lane is."""
    return self.noted_through


def _everything_read_is_visible(self: OpenLanes) -> Marks:
    """Devices are told of what still waits."""
    return self.known


def _feed_everything(self: OpenLanes) -> Sequence[Addressed]:
    """The tail gets what some lanes do not have."""
    found = list(self.unfed)
    self.unfed.clear()
    return found


def _newest_pushed_first(self: OpenLanes, one: Addressed) -> None:
    """Pushes of a user change places."""
    self.unpushed.appendleft(one)


def _lowest_lanes_are_compared(one: Marks, other: Marks) -> bool:
    """A lane that fell back behind the others' backs is not seen."""
    return watermark.lowest(one) < watermark.lowest(other)


def _lanes_have_what_the_lowest_has(self: OpenLanes, lane: int) -> int:
    """After a takeover everything above min(W) is queued anew, also where the lane has it."""
    return watermark.lowest(self.stands)


async def _steps_anywhere(
    self: MemoryMailboxStore, shard: int, epoch: int, groups: Any, expected: Marks, record: str, step: int
) -> int:
    """A step does not ask where W stands."""
    stands = watermark.marks(self._shard(shard).lanes)
    return await _write_step(self, shard, epoch, groups, stands, record, step)


async def _believe(
    self: MemoryMailboxStore, shard: int, epoch: int, groups: Any, e: Marks, o: Marks, **_: Any
) -> Marks:
    """W moves over a large record without asking whether its steps are there."""
    state = self._fenced(shard, epoch)
    if watermark.marks(state.lanes) != e:
        return watermark.marks(state.lanes)
    self._write(state, groups)
    state.epoch, state.lanes = epoch, watermark.lanes_of(o)
    return o


def _take_all(records: Sequence[LogRecord], shard: int, lookup: Lookup) -> list[Taken]:
    """No deduplication."""
    return _take(records, shard, lambda wanted: [None] * len(wanted))


def _take_across_batches_only(records: Sequence[LogRecord], shard: int, lookup: Lookup) -> list[Taken]:
    """Repeats inside one batch are not seen."""
    return [one for record in records for one in _take([record], shard, lookup)]


def _replay_is_repeat(records: Sequence[LogRecord], shard: int, lookup: Lookup) -> list[Taken]:
    """A dispatch_id that is known is never written again, not even after the store lost it."""
    taken = _take(records, shard, lookup)
    return [one._replace(kind=Kind.REPEAT) if one.kind is Kind.REPLAY else one for one in taken]


def _repeats_are_not_compared(one: Taken, dispatch: Any, first: Any) -> Taken:
    """A forged repeat passes for an honest one."""
    judged = _judged(one, dispatch, first)
    return one._replace(kind=Kind.REPEAT) if judged.forged else judged


async def _index_nothing(self: DispatchProgress, partition: int) -> int:
    """The index is not rebuilt from the pages of another worker."""
    return 0


async def _newest_page_is_not_sent_again(self: DispatchProgress, partition: int) -> int:
    """A page that only this disk has stays a secret."""
    table, written = self._table, self._table.write_batch
    table.write_batch = lambda *_: None  # type: ignore[method-assign]
    try:
        return await _recover(self, partition)
    finally:
        table.write_batch = written  # type: ignore[method-assign]


async def _start_at_the_table(self: MailboxMaterialiser, shard: int) -> int:
    """The store's own W is not asked."""
    await _start_position(self, shard)
    served = self._leases.served[shard]
    served.coverage = max(served.coverage, served.floor)
    return served.floor + 1


async def _start_at_the_store(self: MailboxMaterialiser, shard: int) -> int:
    """Pages that were not written are not made up for."""
    await _start_position(self, shard)
    return self._leases.served[shard].coverage + 1


async def _start_at_the_highest_lane(self: MailboxMaterialiser, shard: int) -> int:
    """Not at min(W) + 1."""
    await _start_position(self, shard)
    return watermark.highest(self._leases.served[shard].stands) + 1


def _fence_nobody(self: MemoryMailboxStore, shard: int, epoch: int) -> Any:
    """Any epoch may write."""
    return self._shard(shard)


def _w_goes_back(self: EntryWriter, shard: Shard, was: Marks, stands: Marks) -> None:
    """A lower W is taken for an answer like any other."""
    shard.coverage = watermark.lowest(stands)


async def _never_unsure(self: EntryWriter, shard: Shard) -> None:
    """An unknown outcome is taken for a failure."""


_write_step = MemoryMailboxStore.write_step
_take, _judged = intake.take, intake._judged
_lanes_take = OpenLanes.take
_recover, _start_position = DispatchProgress.recover, MailboxMaterialiser.start_position

BUGS: list[tuple[Any, str, Any]] = [
    (EntryWriter, "write", _w_covers_what_was_not_written),
    (EntryWriter, "_cover", _w_before_entries),
    (EntryWriter, "_cover", _offset_minus_one),
    (MailboxMaterialiser, "handle", _page_before_entries),
    (MailboxMaterialiser, "handle", _push_before_w),
    (MailboxMaterialiser, "_bury", _bury_nothing),
    (OpenLanes, "take", _lanes_overtake),
    (OpenLanes, "after", _w_over_what_waits),
    (OpenLanes, "visible", _everything_read_is_visible),
    (OpenLanes, "feed", _feed_everything),
    (OpenLanes, "_to_push", _newest_pushed_first),
    (OpenLanes, "_stands_at", _lanes_have_what_the_lowest_has),
    (Shard, "done_through", property(_done_is_what_was_noted)),
    (watermark, "is_below", _lowest_lanes_are_compared),
    (MemoryMailboxStore, "write_and_advance", _believe),
    (MemoryMailboxStore, "write_step", _steps_anywhere),
    (service, "take", _take_all),
    (service, "take", _take_across_batches_only),
    (service, "take", _replay_is_repeat),
    (intake, "_judged", _repeats_are_not_compared),
    (DispatchProgress, "_index_new_pages", _index_nothing),
    (DispatchProgress, "recover", _newest_page_is_not_sent_again),
    (MailboxMaterialiser, "start_position", _start_at_the_table),
    (MailboxMaterialiser, "start_position", _start_at_the_store),
    (MailboxMaterialiser, "start_position", _start_at_the_highest_lane),
    (MemoryMailboxStore, "_fenced", _fence_nobody),
    (EntryWriter, "_not_fallen", _w_goes_back),
    (EntryWriter, "settle", _never_unsure),
]


@pytest.mark.parametrize(("owner", "name", "bug"), BUGS, ids=lambda value: getattr(value, "__name__", ""))
def test_seeded_bugs_are_found(owner: Any, name: str, bug: Any) -> None:
    """The mutation check: the machine that passes on the product fails on each of these."""
    with mock.patch.object(owner, name, bug), pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        run_machine(examples=600, steps=50)
    assert not isinstance(caught.value, KeyboardInterrupt | SystemExit)
