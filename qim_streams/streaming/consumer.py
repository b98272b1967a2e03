"""The consumer that delivers chunks, from the stage's own position, without a gap.

It takes from Faust's consumer what loses or repeats records around a rebalance, and keeps the rest
(group, changelog recovery, agents). Six points, each found by a run that failed without it:

1. *Chunks.* `getmany` yields one message per fetch and source topic, with a chunk for each partition
   slice of at most `chunk_records_max` records; changelog records pass one by one, as Faust's recovery
   expects.
2. *Own positions.* `positions[tp]` is the next offset to hand out. All are dropped first thing at a
   revocation and set only by a start (below). Records of a partition without one are early: dropped.
3. *Starts.* After recovery each source partition is started by its own task: the role names the offset
   (it may wait for a lease), it is sought, then fetched. What the group has committed decides nothing.
4. *Checks before each chunk*: the assignment is the one that the fetch was made in, the flow is active,
   and the records were drained after the last seek of their partition (`transport`). Source partitions
   stay held until recovery ends its work with `resume_flow`.
5. *Drain.* At a revocation and at stop: close the assignment, stop the lanes (one deadline for all),
   commit, release, and only then let Faust forget its acknowledgements.
6. *Holes.* When the broker answers with a later record than the one expected, the partition is sought
   back once; the same answer again proves that the offsets do not exist, unless the log now starts
   above them: then retention took records away, and `on_lost_range` decides.

Acknowledgements come in order (lanes): one number per partition is kept, not Faust's gaps, which can commit
past a record in flight.

Spec: §11 rule 1, §14.2.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any, cast

from aiokafka.errors import ConsumerStoppedError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode import Service

from qim_streams.streaming import metrics
from qim_streams.streaming.doubt import die
from qim_streams.streaming.lanes import PartitionLanes
from qim_streams.streaming.source import Chunk, cut
from qim_streams.streaming.starts import LogRange, PartitionStarts
from qim_streams.streaming.transport import Drained, StreamConsumerThread, message_of
from qim_streams.streaming.watchdog import WATCH_INTERVAL_S, ConsumerWatch, PartitionView

log = logging.getLogger(__name__)

_POLL_S = 0.25  # longest wait of one fetch; a change of the wanted partitions is seen after it
_POLL_PRESSED_S = 0.02  # the same while some lanes are full
_BRANCHES = ("delivered", "stale", "early", "behind", "ahead", "hole", "lost")
_IDLE_S = 0.01  # pause when nothing may be fetched
_COMMIT_TIMEOUT_S = 5.0


class StreamConsumer(driver.Consumer):
    """Faust's consumer with the six points of the module text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spec = self.app.stream_spec
        self.lanes: dict[str, PartitionLanes] = self.app.stream_lanes
        for topic, lanes in self.lanes.items():
            lanes.acknowledge = partial(self._done, topic)
        self.epoch = 0  # number of the current assignment in this process
        self.positions: dict[TP, int] = {}
        self.deliveries: dict[TP, int] = {}
        self.branches: Counter[str] = Counter()
        self._seek_counter = count(1)
        self._seek_floor: dict[TP, int] = {}
        self._proofs: dict[TP, int] = {}
        self._held: frozenset[TP] = frozenset()
        self._processed: dict[TP, int] = {}
        self._committed: dict[TP, int] = {}
        self._quiescing = asyncio.Lock()
        self.starts = PartitionStarts(self)
        self.watch = ConsumerWatch(self)
        role, outcomes = self.spec.role, ("ok", "refused", "late")
        self._branch = {name: metrics.CHUNKS.labels(role, name) for name in _BRANCHES}
        self._commits = {outcome: metrics.COMMITS.labels(role, outcome) for outcome in outcomes}

    def _new_consumer_thread(self) -> StreamConsumerThread:
        return StreamConsumerThread(self, loop=self.loop, beacon=self.beacon)

    def is_source(self, tp: TP) -> bool:
        """Whether `tp` belongs to a topic that a role reads."""
        return tp.topic in self.lanes

    # -- point 4: source partitions are held until recovery's last step

    def pause_partitions(self, tps: Iterable[TP]) -> None:
        """As in Faust; what was held of `tps` is held no longer."""
        tps = {TP(*tp) for tp in tps}
        self._held -= tps
        super().pause_partitions(tps)

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Resume changelogs now, sources at `resume_flow`."""
        tps = {TP(*tp) for tp in tps}
        sources = {tp for tp in tps if self.is_source(tp)}
        if sources:
            self._held |= sources
        super().resume_partitions(tps - sources)

    def resume_flow(self) -> None:
        """As in Faust, then let the held sources go."""
        held, self._held = self._held, frozenset()
        super().resume_flow()
        if held:
            super().resume_partitions(held)

    # -- points 1, 2, 4, 6: what is handed out

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """Yield (partition, message); the value of a source's message is a tuple of `Chunk`.

        It holds what a fetch brought of all partitions of the topic, and goes under the name of one.
        """
        drained = await self._next_drained()
        epoch = self.epoch
        found: dict[str, list[Chunk]] = {}
        for part in drained:
            if self.should_stop or not self._current(epoch):
                return
            if part.seek_number < self._seek_floor.get(part.tp, 0):
                self._note("stale")
                continue
            if not self.is_source(part.tp):
                for record in part.records:
                    if not self._current(epoch):
                        return
                    yield part.tp, message_of(part.tp, record, self.app.consumer_generation_id)
                continue
            found.setdefault(part.tp.topic, []).extend(await self._chunks(part))
        for topic, chunks in found.items():
            if self.should_stop or not self._current(epoch):
                return
            if chunks:
                yield self._delivery(topic, chunks)

    def _delivery(self, topic: str, chunks: list[Chunk]) -> tuple[TP, Any]:
        """One message for all chunks of a fetch: what Faust does per message, it does once per fetch."""
        for chunk in chunks:
            tp = TP(topic, chunk.partition)
            self.positions[tp] = chunk.records[-1].offset + 1
            self.deliveries[tp] = self.deliveries.get(tp, 0) + 1
        self._note("delivered", len(chunks))
        message = message_of(tp, chunks[-1].records[-1], self.app.consumer_generation_id)
        message.key, message.value = None, tuple(chunks)
        return tp, message

    def _note(self, branch: str, count: int = 1) -> None:
        self.branches[branch] += count
        self._branch[branch].inc(count)

    async def _drain_messages(self, fetcher: Any) -> None:
        """Give what `getmany` yields to Faust's conductor; Faust's loop without its cost per message.

        While the flow is active the conductor takes a message without waiting, so the race against a
        suspension (four tasks per message in Faust) is run only when it is not.
        """
        callback, flow, stopped = self.callback, self.app.flow_control, fetcher._stopped
        try:
            while not (self.should_stop or stopped.is_set()):
                async for _, message in self.getmany(1.0):
                    if flow.is_active() and not self.app.topics._tp_to_callback_lock.locked():
                        await callback(message)
                    else:
                        await self.wait_first(callback(message), self.suspend_flow.wait())
                await asyncio.sleep(0)
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.app.should_stop:
                raise

    def _current(self, epoch: int) -> bool:
        return bool(self.flow_active) and self.epoch == epoch

    async def _next_drained(self) -> list[Drained]:
        if not self.flow_active:
            await self.wait(self.can_resume_flow)
        active = frozenset(self._get_active_partitions())
        ready = active - {TP(topic, one) for topic, lanes in self.lanes.items() for one in lanes.full}
        if not ready:
            await asyncio.sleep(_IDLE_S)
            return []
        wait_s = _POLL_S if len(ready) == len(active) else _POLL_PRESSED_S
        return cast("list[Drained]", await self._thread.fetch(ready, wait_s))

    async def _chunks(self, part: Drained) -> list[Chunk]:
        """The chunks to hand out, none when the records are early, behind, or a gap is to be proved."""
        tp, records = part.tp, part.records
        at = self.positions.get(tp)
        if at is None:
            self._note("early")
            return []
        if records[0].offset < at:
            self._note("behind")
            records = [record for record in records if record.offset >= at]
            if not records:
                return []
        hole_proved = False
        if records[0].offset > at and not self.lanes[tp.topic].source.compacted:
            hole_proved = await self._prove_hole(tp, at)
            if not hole_proved:
                return []
        first = Chunk(tp.partition, self.epoch, self.app.consumer_generation_id, at, hole_proved, records)
        return cut(first, self.spec.chunk_records_max)

    async def _prove_hole(self, tp: TP, at: int) -> bool:
        """Seek back to `at` once; True when that was done already and the broker answered the same."""
        if self._proofs.get(tp) != at:
            self._proofs[tp] = at
            self._note("ahead")
            await self.seek_source(tp, at)
            return False
        epoch = self.epoch
        begin = (await self.earliest_offsets(tp))[tp]
        if epoch != self.epoch:
            return False
        if begin > at:
            self.starts.judge_lost_range(tp, at, begin)
        self._note("hole")
        log.warning("%s[%d]: no record at offset %d: a hole of the log, proved", tp.topic, tp.partition, at)
        return True

    async def seek_source(self, tp: TP, offset: int) -> bool:
        """Seek one source partition and fetch from there; False if it was revoked meanwhile."""
        return bool(await self._thread.seek_numbered(tp, offset, self.next_seek_number(tp)))

    def next_seek_number(self, tp: TP) -> int:
        """Number a seek; recovery calls it in the consumer thread, while the flow is stopped."""
        self._seek_floor[tp] = next(self._seek_counter)
        return self._seek_floor[tp]

    def fetch_position(self, tp: TP) -> int | None:
        """The next offset that the driver will ask for; None when unknown."""
        return cast("int | None", self._thread.fetch_position(tp))

    # -- point 3: starts

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Recovery's last step but one: start the source partitions instead of seeking to commits.

        Returns nothing to Faust: positions are kept here.
        """
        if self.app.tables and self.app.tables.recovery.need_recovery():
            # Faust swallows a rebalance that interrupts a replay; the generation check behind it is all
            # that stands between that and a half-filled table.
            die("recovery ended with changelog records outstanding")
        number = self._thread.assignments
        assigned = [TP(*tp) for tp in self.assignment()]
        await self._thread.pause_fetching((tp for tp in assigned if not self.is_source(tp)), number)
        self.starts.begin(self.epoch, [tp for tp in assigned if self.is_source(tp)])
        return {}

    async def log_ranges(self, tps: Iterable[TP]) -> dict[TP, LogRange]:
        """First offset kept and next offset to be written, per partition."""
        tps = tuple(tps)
        begins = await self.earliest_offsets(*tps)
        ends = await self.highwaters(*tps)
        return {tp: LogRange(begins[tp], ends[tp]) for tp in tps}

    async def start_source(self, tp: TP, epoch: int, start: int, previous: int) -> bool:
        """Open the lane of `tp` and fetch from `start`; False when the assignment is over."""
        if epoch != self.epoch:
            return False
        self.positions[tp] = start
        # Committed with the next ones, for whoever looks at the group's lag: it decides nothing here.
        self._processed[tp], self._committed[tp] = start, -1 if start else 0
        self.lanes[tp.topic].open(tp.partition, epoch, start, previous)
        return await self.seek_source(tp, start)

    @property
    def given(self) -> set[TP] | None:
        """The source partitions that the group gave, be it none; None before it has said so."""
        sources = {TP(*tp) for tp in self.assignment() if self.is_source(TP(*tp))}
        return sources if self._thread.assignments else None

    @property
    def ready(self) -> bool:
        """Whether the group has answered and every source partition that it gave, if any, has started."""
        return (given := self.given) is not None and given <= self.positions.keys()

    # -- point 5: acknowledgements, commits, drain

    def ack(self, message: Any) -> bool:
        """Faust's account of a message. For sources it says nothing: `_done` does."""
        if not self.is_source(message.tp):
            return bool(super().ack(message))
        if message.acked:
            return False
        message.acked = True
        self._unacked_messages.discard(message)
        return True

    def _done(self, topic: str, partition: int, offset: int) -> None:
        """Everything below `offset` is done: lanes say it in order, never for an assignment that is over."""
        tp = TP(topic, partition)
        self._processed[tp] = max(self._processed.get(tp, 0), offset)

    async def force_commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Commit what was acknowledged since the last commit. A failed commit is tried again later."""
        offsets = {
            tp: offset for tp, offset in self._processed.items() if offset > self._committed.get(tp, -1)
        }
        if not offsets:
            return False
        done = bool(await self._commit(offsets))
        self._commits["ok" if done else "refused"].inc()
        if done:
            for tp, offset in offsets.items():
                if tp in self._processed:  # else revoked meanwhile
                    self._committed[tp] = offset
        return done

    async def quiesce(self, reason: str) -> None:
        """End the current assignment: see point 5. Safe to call when none is left."""
        self.epoch += 1  # before anything that waits: from here on no chunk of this assignment passes
        partitions = set(self.positions) | self.starts.partitions
        self.positions.clear()
        self._proofs.clear()
        async with self._quiescing:
            await self._drain(reason, partitions)

    async def _drain(self, reason: str, partitions: set[TP]) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + self.spec.drain_timeout_s
        await self.starts.stop(deadline)
        await asyncio.gather(*(lanes.stop(deadline) for lanes in self.lanes.values()))
        await self._last_commit(deadline)
        await self._release(partitions, deadline)
        self._processed.clear()
        self._committed.clear()
        self.deliveries.clear()
        self.watch.reset()
        metrics.DRAIN_SECONDS.labels(self.spec.role).observe(loop.time() - started)
        took_s, chunks = loop.time() - started, dict(self.branches)
        log.info("assignment %d ended (%s) in %.3f s; chunks: %s", self.epoch - 1, reason, took_s, chunks)

    async def _last_commit(self, deadline: float) -> None:
        left = min(_COMMIT_TIMEOUT_S, max(0.1, deadline - asyncio.get_running_loop().time()))
        try:
            await asyncio.wait_for(self.force_commit(), left)
        except TimeoutError:
            # Only a hint: the next owner starts at its own position.
            self._commits["late"].inc()
            log.warning("the commit at the end of an assignment took over %.1f s and was left", left)

    async def _release(self, partitions: set[TP], deadline: float) -> None:
        for topic, lanes in self.lanes.items():
            mine = frozenset(tp.partition for tp in partitions if tp.topic == topic)
            if not mine or lanes.role.on_released is None:
                continue
            left = max(0.1, deadline - asyncio.get_running_loop().time())
            try:
                await asyncio.wait_for(lanes.role.on_released(mine), left)
            except Exception:
                # A lease that could not be given up expires by itself; the rebalance must not wait.
                log.exception("%s: release of %d partitions failed", topic, len(mine))

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Drain before Faust forgets what was acknowledged."""
        metrics.REBALANCES.labels(self.spec.role).inc()
        await self.quiesce("revoked")
        await super().on_partitions_revoked(revoked)

    async def on_stop(self) -> None:
        """Drain (normally done by the application already), then stop as Faust does."""
        await self.quiesce("stop")
        await super().on_stop()

    # -- watchdog

    async def verify_all_partitions_active(self) -> None:
        """Faust's own check only logs, and counts single messages; `_watch_partitions` replaces it."""

    @Service.task
    async def _watch_partitions(self) -> None:
        async for _ in self.itertimer(WATCH_INTERVAL_S, name="stream-watch"):
            await self.watch.look()

    async def log_ends(self, tps: Iterable[TP], timeout_s: float) -> dict[TP, int]:
        """The next offset to be written, per partition; TimeoutError or KafkaError when it cannot be had."""
        return cast("dict[TP, int]", await self._thread.log_ends(tps, timeout_s))

    def view(self, tp: TP, end: int | None) -> PartitionView:
        """What the watchdog should know of an owned source partition that ends at `end`."""
        return PartitionView(
            tp=tp,
            position=self.positions.get(tp),
            fetched=self.fetch_position(tp),
            end=end,
            deliveries=self.deliveries.get(tp, 0),
            queued=self.lanes[tp.topic].queued(tp.partition),
            processed=self._processed.get(tp),
            committed=self._committed.get(tp),
        )
