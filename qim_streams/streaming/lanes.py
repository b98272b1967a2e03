"""Lanes: one worker task per partition and assignment, in order, acknowledged only when done.

A lane takes what is queued (up to `batch_records_max`) and hands it to the role as one `SourceBatch`. A
role without a `checkpoint` has made the batch durable when its handler returns, and the chunks are
acknowledged. A role with one keeps its position for a while: after `checkpoint_s`, after
`checkpoint_records_max` records and when the lane stops, `checkpoint` makes the position durable and then
everything handled before is acknowledged, in order. Transient failures are retried in place, with
jittered delays and a bound, while the partition stays unacknowledged and heartbeats go on; any other
failure ends the process.

Invariants: within a lane positions are contiguous, from the start position that the role itself named
(a chunk that does not continue the last one ends the process: it means that a record was lost between
the broker and here); at most one batch of a lane is in flight, and never beside a checkpoint; a lane that
was stopped handles nothing more, and acknowledges only what its last checkpoint covers.

Spec: §5 (order), §14.2 (expected_previous as read).
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from qim_streams.errors import Policy, policy_of
from qim_streams.streaming import metrics
from qim_streams.streaming.doubt import die
from qim_streams.streaming.spec import AppSpec, SourceSpec

log = logging.getLogger(__name__)

_RETRY_FIRST_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records of one partition as the consumer hands them out.

    It covers the offsets from `from_offset` to its last record, all inclusive: offsets in between
    without a record do not exist in the log. `hole_proved` says so for the ones before the first.
    """

    epoch: int
    generation: int
    from_offset: int
    hole_proved: bool
    records: list[Any]


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """What a role's handler gets: records of one partition in offset order, none skipped.

    `previous_offset` is the offset of the record read before the first one, or of the last one covered
    by the start position (-1: none): the `expected_previous` of a watermark. Spec: §14.2.
    """

    topic: str
    partition: int
    generation: int
    records: list[Any]  # aiokafka ConsumerRecord: key, value, offset, timestamp
    previous_offset: int

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return int(self.records[0].offset)

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return int(self.records[-1].offset)


StartPosition = Callable[[int], Awaitable[int]]
Handler = Callable[[SourceBatch], Awaitable[None]]
Release = Callable[[frozenset[int]], Awaitable[None]]
Checkpoint = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SourceRole:
    """What a role does with one of its sources.

    `start_position(partition)` names the next offset to process (0: nothing was processed yet); it is
    asked at each assignment, may wait for a lease, and is cancelled when the partition is revoked.
    `handle(batch)` returns when everything the batch causes is durable; `checkpoint(partition)`, if given,
    when the position after all batches handled so far is, too: what it does not cover is handed out again
    after a crash. `on_released(partitions)` is called after the lanes of an assignment have stopped and
    their offsets were committed, before the group goes on; it shares their deadline.
    """

    start_position: StartPosition
    handle: Handler
    on_released: Release | None = None
    checkpoint: Checkpoint | None = None
    transient: tuple[type[Exception], ...] = ()

    def is_transient(self, error: BaseException) -> bool:
        """Whether the same call may succeed later."""
        return isinstance(error, self.transient) or policy_of(error) is Policy.RETRY


class _Lane:
    """The queue and task of one partition in one assignment."""

    __slots__ = (
        "closed",
        "due",
        "epoch",
        "events",
        "handled",
        "handled_records",
        "next_offset",
        "partition",
        "previous",
        "queued",
        "task",
        "timer",
        "wake",
    )

    def __init__(self, partition: int, epoch: int, start: int, previous: int) -> None:
        self.partition, self.epoch = partition, epoch
        self.next_offset, self.previous = start, previous
        self.events: deque[Any] = deque()
        self.queued = 0
        self.handled: list[Any] = []  # events that wait for a checkpoint
        self.handled_records = 0
        self.due = False  # what was handled has waited long enough for a checkpoint
        self.timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class PartitionLanes:
    """The lanes of one source topic. All methods run on the worker's event loop."""

    def __init__(self, spec: AppSpec, source: SourceSpec, role: SourceRole) -> None:
        self.spec, self.source, self.role = spec, source, role
        self._lanes: dict[int, _Lane] = {}
        self._full: set[int] = set()
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

    def open(self, partition: int, epoch: int, start: int, previous: int) -> None:
        """Open the lane of `partition` for assignment `epoch`, the first record expected at `start`."""
        if partition in self._lanes:
            die(f"{self.source.topic}[{partition}]: a lane is open twice (assignment {epoch})")
        lane = self._lanes[partition] = _Lane(partition, epoch, start, previous)
        lane.task = asyncio.get_running_loop().create_task(
            self._run(lane), name=f"lane-{self.source.topic}-{partition}"
        )

    async def drain(self, stream: Any) -> None:
        """The body of the role's agent: give every chunk to its lane. Returns when the stream ends."""
        async for event in stream.noack().events():
            self.offer(event)

    def offer(self, event: Any) -> None:
        """Queue the chunk of a stream event; a chunk of a closed assignment is dropped unacknowledged."""
        chunk: Chunk = event.value
        lane = self._lanes.get(event.message.partition)
        if lane is None or lane.closed or lane.epoch != chunk.epoch:
            self._dropped.inc()
            return
        self._check(lane, chunk)
        lane.next_offset = chunk.records[-1].offset + 1
        lane.events.append(event)
        lane.queued += len(chunk.records)
        self._queued.inc(len(chunk.records))
        if lane.queued >= self.spec.lane_records_max:
            self._full.add(lane.partition)
        lane.wake.set()

    def _check(self, lane: _Lane, chunk: Chunk) -> None:
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
        """Close all lanes, drop what is queued, wait for batches in flight; exit at `deadline`.

        `deadline` is a time of the event loop's clock and shared with the rest of the rebalance.
        """
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.closed = True
            lane.wake.set()
        tasks = [lane.task for lane in lanes if lane.task is not None]
        if tasks:
            loop = asyncio.get_running_loop()
            _, late = await asyncio.wait(tasks, timeout=max(0.0, deadline - loop.time()))
            if late:
                names = sorted(task.get_name() for task in late)
                die(
                    f"{len(late)} lanes did not finish their batch before the rebalance deadline: {names[:4]}"
                )
        for lane in lanes:
            self._queued.dec(lane.queued)
        self._lanes.clear()
        self._full.clear()

    # -- one lane

    async def _run(self, lane: _Lane) -> None:
        where = f"{self.source.topic}[{lane.partition}]"
        try:
            while not lane.closed:
                if self._checkpoint_is_due(lane):
                    await self._checkpoint(lane)
                elif not lane.events:
                    lane.wake.clear()
                    await lane.wake.wait()
                else:
                    await self._turn(lane)
                    await asyncio.sleep(0)  # a handler that never waits must not starve the heartbeat
            await self._checkpoint(lane)
        except asyncio.CancelledError:
            if not lane.closed:
                die(f"{where}: the lane was cancelled while open")
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the process ends
            die(f"{where}: handler failed at offset {lane.previous + 1} or above", error)

    async def _turn(self, lane: _Lane) -> None:
        events, records = self._take(lane)
        batch = SourceBatch(
            topic=self.source.topic,
            partition=lane.partition,
            generation=events[0].value.generation,
            records=records,
            previous_offset=lane.previous,
        )
        loop = asyncio.get_running_loop()
        started = loop.time()
        where = f"{batch.topic}[{batch.partition}]: offsets {batch.first_offset} to {batch.last_offset}"
        if not await self._retrying(lane, lambda: self.role.handle(batch), where):
            self._dropped.inc()
            return
        lane.previous = batch.last_offset
        if self.role.checkpoint is None:
            for event in events:
                event.ack()
        else:
            self._await_checkpoint(lane, events, len(records))
        self._seconds.observe(loop.time() - started)
        self._records.observe(len(records))
        self._ok.inc()
        self._settle(lane, len(records))

    # -- checkpoints

    def _await_checkpoint(self, lane: _Lane, events: list[Any], count: int) -> None:
        if not lane.handled:
            lane.due = False
            lane.timer = asyncio.get_running_loop().call_later(self.spec.checkpoint_s, _make_due, lane)
        lane.handled += events
        lane.handled_records += count

    def _checkpoint_is_due(self, lane: _Lane) -> bool:
        return bool(lane.handled) and (
            lane.due or lane.handled_records >= self.spec.checkpoint_records_max
        )

    async def _checkpoint(self, lane: _Lane) -> None:
        """Make the lane's position durable and acknowledge what it covers; nothing to do, nothing done."""
        checkpoint = self.role.checkpoint
        if checkpoint is None or not lane.handled:
            return
        if lane.timer is not None:
            lane.timer.cancel()
        what = f"{self.source.topic}[{lane.partition}]: the checkpoint at {lane.previous}"
        if not await self._retrying(lane, lambda: checkpoint(lane.partition), what):
            return
        handled, lane.handled, lane.handled_records = lane.handled, [], 0
        for event in handled:
            event.ack()

    def _take(self, lane: _Lane) -> tuple[list[Any], list[Any]]:
        event = lane.events.popleft()
        events, records = [event], event.value.records
        limit = self.spec.batch_records_max
        if lane.events and len(records) + len(lane.events[0].value.records) <= limit:
            records = list(records)
            while lane.events and len(records) + len(lane.events[0].value.records) <= limit:
                event = lane.events.popleft()
                events.append(event)
                records.extend(event.value.records)
        return events, records

    def _settle(self, lane: _Lane, count: int) -> None:
        lane.queued -= count
        self._queued.dec(count)
        if (
            lane.partition in self._full
            and lane.queued <= self.spec.lane_records_max // 2
            and not lane.closed
        ):
            self._full.discard(lane.partition)

    async def _retrying(self, lane: _Lane, call: Callable[[], Awaitable[None]], what: str) -> bool:
        """Run `call`, retrying transient failures; False when the lane was closed meanwhile."""
        loop = asyncio.get_running_loop()
        started, attempt = loop.time(), 0
        while True:
            try:
                await call()
            except Exception as error:
                waited = loop.time() - started
                if not self.role.is_transient(error) or waited >= self.spec.retry_total_s:
                    raise
                if lane.closed:
                    return False
                self._retries.inc()
                if attempt == 0:
                    log.warning("%s waits: %s: %s", what, type(error).__name__, error)
                if await self._pause(lane, attempt):
                    return False
                attempt += 1
            else:
                return True

    async def _pause(self, lane: _Lane, attempt: int) -> bool:
        """Wait before a retry; True when the lane was closed instead."""
        delay = min(self.spec.retry_delay_max_s, _RETRY_FIRST_S * 2 ** min(attempt, 16))
        deadline = asyncio.get_running_loop().time() + delay * random.uniform(0.5, 1.0)
        while not lane.closed:
            lane.wake.clear()
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            try:
                await asyncio.wait_for(lane.wake.wait(), left)
            except TimeoutError:
                return False
        return True


def _make_due(lane: _Lane) -> None:
    lane.due = True
    lane.wake.set()
