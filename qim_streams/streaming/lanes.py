"""Lanes: the records of each assigned partition in order, swept together, acknowledged only when done.

A lane is the queue of one partition in one assignment. A *sweep* takes what is queued in every lane that
is not being handled, up to `batch_records_max` records, and hands it to the role as one list of
`SourceBatch`, one per partition: what a stage pays per call (a store's round trip, an append, a wake-up)
it pays once per sweep and not once per partition. One sweep is in flight, two of half the lanes each when
there is much to do; records that come meanwhile make up the next one, so batches grow with the load and no
timer delays anything. A sweep that takes much longer than usual, and longer than `OVERTAKE_S` (one huge
record, a slow store), is overtaken: the lanes that it does not hold are swept beside it. A sweep that fails
goes on partition by partition, so that an outage holds only what it touches.

A role without a `checkpoint` has made its batches durable when its handler returns, and they are
acknowledged. A role with one keeps its positions for a while: after `checkpoint_s`, after
`checkpoint_records_max` records and when the lanes stop, `checkpoint` makes the positions durable and then
everything handled before is acknowledged, or as much of it as the checkpoint says is done; the rest is asked
for again.

Transient failures are retried in place, with jittered delays and a bound, while the partitions stay
unacknowledged and heartbeats go on; any other failure ends the process.

Invariants: within a lane positions are contiguous, from the start position that the role itself named
(a chunk that does not continue the last one ends the process: it means that a record was lost between
the broker and here); a lane is in at most one sweep or checkpoint; lanes that were stopped handle nothing
more, and acknowledge only what their last checkpoint covers.

Spec: §5 (order), §14.2 (expected_previous as read).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from qim_streams.streaming import metrics
from qim_streams.streaming.doubt import die
from qim_streams.streaming.lane import Lane, take
from qim_streams.streaming.source import Acknowledge, Chunk, SourceBatch, SourceRole
from qim_streams.streaming.spec import AppSpec, SourceSpec

log = logging.getLogger(__name__)

OVERTAKE_S: Final = 0.03
OVERTAKE_TIMES: Final = 4  # much longer than usual
_USUAL_KEEP: Final = 0.9  # weight of the past per sweep
_RETRY_FIRST_S: Final = 0.02
_CLOCK_S: Final = 0.001  # timers may fire that much too early
_AGAIN_S: Final = 0.05  # until a checkpoint that did not reach everything is repeated, at least


class PartitionLanes:
    """The lanes of one source topic. All methods run on the worker's event loop.

    `acknowledge(partition, offset)` says that everything of a partition below `offset` is done; the
    consumer sets it.
    """

    def __init__(self, spec: AppSpec, source: SourceSpec, role: SourceRole) -> None:
        self.spec, self.source, self.role = spec, source, role
        self.acknowledge: Acknowledge = lambda partition, offset: None
        self._lanes: dict[int, Lane] = {}
        self._full: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._swept_at = 0.0  # loop time at which the newest sweep began
        self._sweeps = 0  # in flight
        self._usual_s = 0.0  # how long a sweep takes
        self._turn = 0  # sweeps so far
        self._overtake: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        labels = (spec.role, source.topic)
        self._queued = metrics.QUEUED_RECORDS.labels(*labels)
        self._retries = metrics.RETRIES.labels(*labels)
        self._records = metrics.BATCH_RECORDS.labels(*labels)
        self._seconds = metrics.BATCH_SECONDS.labels(*labels)
        self._ok = metrics.BATCHES.labels(*labels, "ok")
        self._dropped = metrics.BATCHES.labels(*labels, "dropped")

    @property
    def full(self) -> set[int]:
        """Partitions whose lane takes no more for now (they are still delivered what was fetched)."""
        return self._full

    def queued(self, partition: int) -> int:
        """Records waiting in the lane of `partition`, the batch in flight included."""
        lane = self._lanes.get(partition)
        return lane.queued if lane else 0

    def previous(self, partition: int) -> int:
        """The last offset handled, or covered by the start position. KeyError without a lane."""
        return self._lanes[partition].previous

    # -- from the consumer

    def open(self, partition: int, epoch: int, start: int, previous: int) -> None:
        """Open the lane of `partition` for assignment `epoch`, the first record expected at `start`."""
        if partition in self._lanes:
            die(f"{self.source.topic}[{partition}]: a lane is open twice (assignment {epoch})")
        self._lanes[partition] = Lane(partition, epoch, start, previous)

    async def drain(self, stream: Any) -> None:
        """The body of the role's agent: give every delivery to the lanes. Returns when the stream ends."""
        async for event in stream.noack().events():
            self.offer(event)

    def offer(self, event: Any) -> None:
        """Queue the chunks of a stream event; those of a closed assignment are dropped unacknowledged."""
        event.ack()  # Faust's account of its message; ours is kept per partition
        for chunk in event.value:
            self._queue(chunk)
        self._sweep()

    def _queue(self, chunk: Chunk) -> None:
        lane = self._lanes.get(chunk.partition)
        if lane is None or self._closing.is_set() or lane.epoch != chunk.epoch:
            self._dropped.inc()
            return
        self._check(lane, chunk)
        lane.next_offset = chunk.records[-1].offset + 1
        lane.chunks.append(chunk)
        lane.queued += len(chunk.records)
        self._queued.inc(len(chunk.records))
        if lane.queued >= self.spec.lane_records_max:
            self._full.add(lane.partition)

    def _check(self, lane: Lane, chunk: Chunk) -> None:
        first = chunk.records[0].offset
        where = f"{self.source.topic}[{lane.partition}]"
        if chunk.from_offset != lane.next_offset:
            die(
                f"{where}: expected offset {lane.next_offset}, got a chunk from {chunk.from_offset}: "
                "records were lost on the way here"
            )
        if first != chunk.from_offset and not (chunk.hole_proved or self.source.compacted):
            die(f"{where}: expected offset {chunk.from_offset}, got {first}, and no proof of a hole")

    async def stop(self, deadline: float) -> None:
        """Close all lanes, drop what is queued, wait for what is in flight, take a last checkpoint.

        Exits at `deadline`, a time of the event loop's clock that is shared with the rest of the rebalance.
        """
        loop = asyncio.get_running_loop()
        self._closing.set()
        for timer in (self._overtake, self._timer):
            if timer is not None:
                timer.cancel()
        self._overtake = self._timer = None
        while self._tasks:  # a sweep that fails in this moment leaves one per partition behind
            await self._finish(self._tasks, deadline)
        rest = [lane for lane in self._lanes.values() if lane.handled_records]
        if rest:
            last = loop.create_task(self._guarded(lambda: self._take_checkpoint(rest), rest))
            await self._finish({last}, deadline)
        for lane in self._lanes.values():
            self._queued.dec(lane.queued)
        self._lanes.clear()
        self._full.clear()
        self._closing = asyncio.Event()

    async def _finish(self, tasks: set[asyncio.Task[None]], deadline: float) -> None:
        if not tasks:
            return
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        _, late = await asyncio.wait(set(tasks), timeout=left)
        if late:
            names = sorted(task.get_name() for task in late)
            die(f"{len(late)} sweeps did not finish before the rebalance deadline: {names[:4]}")

    # -- sweeps

    def _sweep(self) -> None:
        """Sweep what is queued, unless the newest sweep has only just begun (then soon, or at its end)."""
        while not self._closing.is_set():
            ready = [lane for lane in self._lanes.values() if lane.chunks and not lane.busy]
            queued = sum(lane.queued for lane in ready)
            if not ready or not self._may_begin(queued):
                return
            if queued >= self.spec.batch_records_max // 4:
                # Half of the lanes: while one sweep waits for a store, the next one works.
                ready.sort(key=lambda lane: lane.swept)
                del ready[(len(self._lanes) + 1) // 2 :]
            lanes, batches = self._take(ready)
            for lane in lanes:
                lane.busy = True
            self._swept_at = asyncio.get_running_loop().time()
            self._sweeps += 1
            self._start(partial(self._handle, lanes, batches), lanes)

    def _may_begin(self, queued: int) -> bool:
        """Whether a sweep may begin beside those in flight; if not, it is tried again in time."""
        if not self._sweeps or (self._sweeps == 1 and queued >= self.spec.batch_records_max // 8):
            return True
        loop = asyncio.get_running_loop()
        patience_s = max(OVERTAKE_S, OVERTAKE_TIMES * self._usual_s)
        wait_s = self._swept_at + patience_s - loop.time()
        if wait_s > 0 and self._overtake is None:
            self._overtake = loop.call_later(wait_s, self._overtake_now)
        return wait_s <= 0

    def _overtake_now(self) -> None:
        self._overtake = None
        self._sweep()

    def _start(self, work: Callable[[], Awaitable[None]], lanes: list[Lane]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work, lanes), name=self._where(lanes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, ready: list[Lane]) -> tuple[list[Lane], list[SourceBatch]]:
        self._turn += 1
        taken = take(ready, self.spec.batch_records_max, self._turn)
        return list(taken), [self._batch(lane, chunks) for lane, chunks in taken.items()]

    def _batch(self, lane: Lane, chunks: list[Chunk]) -> SourceBatch:
        first = chunks[0]
        records = first.records if len(chunks) == 1 else [one for chunk in chunks for one in chunk.records]
        return SourceBatch(self.source.topic, lane.partition, first.generation, records, lane.previous)

    def _where(self, lanes: list[Lane]) -> str:
        return f"{self.source.topic}{sorted(lane.partition for lane in lanes)}"

    async def _guarded(self, work: Callable[[], Awaitable[None]], lanes: list[Lane]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            if not self._closing.is_set():
                die(f"{self._where(lanes)}: a sweep was cancelled while its lanes were open")
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the process ends
            positions = {lane.partition: lane.previous + 1 for lane in lanes}
            die(f"{self._where(lanes)}: failed at or above the offsets {positions}", error)

    async def _handle(self, lanes: list[Lane], batches: list[SourceBatch]) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        if len(batches) > 1 and not await self._at_once(batches):
            self._sweeps += len(batches) - 1
            for lane, batch in zip(lanes, batches, strict=True):
                self._start(partial(self._handle, [lane], [batch]), [lane])
            return
        try:
            if len(batches) == 1 and not await self._alone(batches):
                self._dropped.inc()
                return
            for lane, batch in zip(lanes, batches, strict=True):
                self._handled(lane, batch)
            took_s = loop.time() - started
            self._usual_s = _USUAL_KEEP * self._usual_s + (1 - _USUAL_KEEP) * min(took_s, 1.0)
            self._seconds.observe(took_s)
            self._records.observe(sum(len(batch.records) for batch in batches))
            self._ok.inc(len(batches))
        finally:
            self._sweeps -= 1
            self._let_go(lanes)

    def _let_go(self, lanes: list[Lane]) -> None:
        """The sweep is over: lanes that are due take their checkpoint, the others are swept again."""
        due = [] if self._closing.is_set() else [lane for lane in lanes if self._is_due(lane)]
        for lane in lanes:
            lane.busy = lane in due
        if due:
            self._start(partial(self._checkpoint, due), due)
        self._sweep()

    async def _at_once(self, batches: list[SourceBatch]) -> bool:
        """Handle several partitions in one call; False when that failed and may succeed later."""
        try:
            await self.role.handle(batches)
        except Exception as error:
            if not self.role.is_transient(error):
                raise
            self._retries.inc()
            return False
        return True

    async def _alone(self, batches: list[SourceBatch]) -> bool:
        """Handle one partition, for as long as it takes; False when the lanes were closed meanwhile."""
        (batch,) = batches
        what = f"{batch.topic}{[(batch.partition, batch.first_offset, batch.last_offset)]}"
        return await self._retrying(lambda: self.role.handle(batches), what)

    def _handled(self, lane: Lane, batch: SourceBatch) -> None:
        count = len(batch.records)
        lane.previous = batch.last_offset
        if self.role.checkpoint is None:
            self.acknowledge(lane.partition, lane.previous + 1)
        else:
            if not lane.handled_records:
                # Not all lanes at once: the pages of a busy worker are work that others would wait for.
                wait_s = self.spec.checkpoint_s * random.uniform(0.6, 1.0)
                lane.handled_records = count
                lane.due_at = asyncio.get_running_loop().time() + wait_s
                self._arm()
            else:
                lane.handled_records += count
        lane.queued -= count
        self._queued.dec(count)
        if lane.partition in self._full and lane.queued <= self.spec.lane_records_max // 2:
            self._full.discard(lane.partition)

    # -- checkpoints

    def _is_due(self, lane: Lane) -> bool:
        return lane.handled_records > 0 and (
            lane.handled_records >= self.spec.checkpoint_records_max
            or asyncio.get_running_loop().time() + _CLOCK_S >= lane.due_at
        )

    def _arm(self) -> None:
        """Wake up when the next lane will be due."""
        if self._timer is not None or self._closing.is_set():
            return
        loop = asyncio.get_running_loop()
        soon = loop.time() + _CLOCK_S
        waiting = [one.due_at for one in self._lanes.values() if one.handled_records and one.due_at > soon]
        if waiting:
            self._timer = loop.call_at(min(waiting), self._checkpoints_due)

    def _checkpoints_due(self) -> None:
        """Lanes that are due and at rest take their checkpoint now, others at the end of their sweep."""
        self._timer = None
        resting = [lane for lane in self._lanes.values() if not lane.busy and self._is_due(lane)]
        if resting:
            for lane in resting:
                lane.busy = True
            self._start(partial(self._checkpoint, resting), resting)
        self._arm()

    async def _checkpoint(self, lanes: list[Lane]) -> None:
        try:
            await self._take_checkpoint(lanes)
        finally:
            for lane in lanes:
                lane.busy = False
            self._sweep()

    async def _take_checkpoint(self, lanes: list[Lane]) -> None:
        """Make the positions of `lanes` durable and acknowledge what they cover."""
        checkpoint = self.role.checkpoint
        if checkpoint is None:
            return
        partitions = [lane.partition for lane in lanes]
        what = f"{self.source.topic}{partitions}: the checkpoint"
        reached: Mapping[int, int] = {}

        async def take() -> None:
            nonlocal reached
            reached = await checkpoint(partitions) or {}

        if not await self._retrying(take, what):
            return
        for lane in lanes:
            done = min(lane.previous, reached.get(lane.partition, lane.previous))
            self.acknowledge(lane.partition, done + 1)
            if done == lane.previous:
                lane.handled_records = 0
            else:  # the role goes on with what it has: ask again
                lane.handled_records = 1
                lane.due_at = asyncio.get_running_loop().time() + max(self.spec.checkpoint_s, _AGAIN_S)
        self._arm()

    # -- retries

    async def _retrying(self, call: Callable[[], Awaitable[None]], what: str) -> bool:
        """Run `call`, retrying transient failures; False when the lanes were closed meanwhile."""
        loop = asyncio.get_running_loop()
        started, attempt = loop.time(), 0
        while True:
            try:
                await call()
            except Exception as error:
                waited = loop.time() - started
                if not self.role.is_transient(error) or waited >= self.spec.retry_total_s:
                    raise
                if self._closing.is_set():
                    return False
                self._retries.inc()
                if attempt == 0:
                    log.warning("%s waits: %s: %s", what, type(error).__name__, error)
                if await self._pause(attempt):
                    return False
                attempt += 1
            else:
                return True

    async def _pause(self, attempt: int) -> bool:
        """Wait before a retry; True when the lanes were closed instead."""
        delay = min(self.spec.retry_delay_max_s, _RETRY_FIRST_S * 2 ** min(attempt, 16))
        try:
            await asyncio.wait_for(self._closing.wait(), delay * random.uniform(0.5, 1.0))
        except TimeoutError:
            return False
        return True
