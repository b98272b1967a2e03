"""NotificationService: from PushTasks to the queue, and from there through a lane per provider.

A batch of a partition is queued in one script call together with the partition's next offset, then it is
acknowledged; a task that comes again, by a replay of dispatches or of this log, is known. A store that lost
its last writes has lost positions together with the tasks: one is found lower than we moved it, which ends
the process, and the next one reads them again. One that lost everything has nothing to go back to. Nothing
waits for a provider here, so no provider can hold up a partition; where more than the bound wait for one
provider, its new ones are let go and counted.

A task waits for the grace before it is looked at: devices that reconnect fetch the message themselves.

Spec: §6. Scenarios H1 H7.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, NoReturn

from qim_streams import failpoints
from qim_streams.errors import RecordError, StoreUnavailable
from qim_streams.log_ports import LogBatch, Poison, PoisonSink
from qim_streams.notification import metrics
from qim_streams.notification.ports import NewTask, TaskQueue
from qim_streams.notification.records import PushTask, decode_task
from qim_streams.notification.restoring import WholeDevices
from qim_streams.notification.sender import ProviderLane

log = logging.getLogger(__name__)

TASK_TOPIC = "qim.push-task.v1"
Die = Callable[[str, BaseException | None], NoReturn]
Committed = Callable[[int], Awaitable[int | None]]
"""The offset that the group has committed of a partition, None for none."""
COMPARE_S: Final = 3.0


class Terms(NamedTuple):
    """`grace_ms` from when a device was found without presence; older than `age_max_ms`: not queued."""

    grace_ms: int
    age_max_ms: int


class NotificationService:
    """See the module text. `slots` are the partitions of this worker, shared with the lanes."""

    def __init__(
        self,
        queue: TaskQueue,
        devices: WholeDevices,
        lanes: Sequence[ProviderLane],
        slots: set[int],
        poison: PoisonSink,
        terms: Terms,
        now_ms: Callable[[], int],
        die: Die,
        committed: Committed | None = None,
    ) -> None:
        self._queue, self._devices, self._poison = queue, devices, poison
        self._lanes = {lane.name: lane for lane in lanes}
        self._slots, self._terms, self._now_ms, self._die = slots, terms, now_ms, die
        self._tasks: list[asyncio.Task[None]] = []
        self._committed, self._closed = committed, False
        self._at: dict[int, int] = {}  # the position of each slot as it stands in the queue

    async def open(self) -> None:
        """Hold the registered devices against their log, then start the lanes."""
        await self._devices.ensure()
        for lane in self._lanes.values():
            task = asyncio.create_task(lane.run(), name=f"notification-{lane.name}")
            task.add_done_callback(self._lane_ended)
            self._tasks.append(task)
        self._tasks.append(asyncio.create_task(self._watch(), name="notification-watch"))

    async def close(self) -> None:
        """Wait a moment for what is under way; the rest is taken up by whoever comes next."""
        self._closed = True
        for lane in self._lanes.values():
            lane.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def start_position(self, partition: int) -> int:
        """The next offset to accept; the slot's queue is worked on from here.

        An empty queue that the group has read before was emptied with the whole store: what had been sent is
        not known any more, and is not sent again.
        """
        position = await self._queue.position(partition)
        if not position and self._committed is not None:
            position = await self._committed(partition) or 0
        self._slots.add(partition)
        self._at[partition] = position
        self._wake()
        return position

    async def release(self, partitions: frozenset[int]) -> None:
        """Take no more of these slots; what is under way ends here."""
        self._slots -= partitions
        for partition in partitions:
            self._at.pop(partition, None)

    async def handle(self, batches: Sequence[LogBatch]) -> None:
        """Queue the tasks of the batches. StoreUnavailable: repeat; what was queued is known then.

        InvariantViolation: the queue lost its last writes.
        """
        now = self._now_ms()
        tasks: list[tuple[int, PushTask, bytes]] = []
        poison: list[Poison] = []
        for batch in batches:
            for record in batch.records:
                try:
                    task = decode_task(record.value or b"")
                except RecordError as error:
                    poison.append(Poison(TASK_TOPIC, batch.partition, record, str(error)))
                else:
                    if now - task.committed_at <= self._terms.age_max_ms:
                        tasks.append((batch.partition, task, record.value or b""))
                    else:
                        metrics.ACCEPTED.labels("expired").inc()
        if poison:
            await self._poison.send(poison)
            metrics.ACCEPTED.labels("poison").inc(len(poison))
        new = await self._new(tasks)
        for batch in batches:
            mine = new.get(batch.partition, [])
            at, stands = batch.records[-1].offset + 1, self._at.get(batch.partition, 0)
            accepted = await self._queue.accept(batch.partition, mine, at, now, stands)
            self._at[batch.partition] = max(stands, at)
            metrics.ACCEPTED.labels("queued").inc(accepted.queued)
            metrics.ACCEPTED.labels("known").inc(accepted.known)
            metrics.ACCEPTED.labels("overflow").inc(accepted.refused)
        failpoints.hit("notification.tasks_accepted")
        self._wake()

    async def _new(self, tasks: Sequence[tuple[int, PushTask, bytes]]) -> dict[int, list[NewTask]]:
        """What to queue, by partition: tasks of registered devices."""
        rows = await self._devices.load([(t.tenant_id, t.user_id, t.device_id) for _, t, _ in tasks])
        found: dict[int, list[NewTask]] = {}
        for (partition, task, data), row in zip(tasks, rows, strict=True):
            if row.device is None or row.device.dead or row.ended:
                metrics.ACCEPTED.labels("no_device").inc()
            elif row.device.provider not in self._lanes:
                metrics.ACCEPTED.labels("no_provider").inc()
            else:
                due = task.made_at + self._terms.grace_ms
                found.setdefault(partition, []).append(NewTask(task.task_id, row.device.provider, due, data))
        return found

    async def compare(self) -> None:
        """Hold queue and devices against what they were; a position that fell back ends the process."""
        before = dict(self._at)
        for slot, knew in before.items():
            stands = await self._queue.position(slot)
            if 0 < stands < knew and slot in self._at:
                self._die(
                    f"the queue of slot {slot} lost its last writes: was at {knew}, is at {stands}", None
                )
        await self._devices.ensure()

    async def _watch(self) -> None:
        while not self._closed:
            await asyncio.sleep(COMPARE_S)
            try:
                await self.compare()
            except StoreUnavailable as error:
                log.warning("the queue of notifications cannot be compared: %s", error)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody watches the queue any more
                self._die("watching the queue of notifications failed", error)

    def _wake(self) -> None:
        for lane in self._lanes.values():
            lane.wake()

    def _lane_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not (self._closed and task.exception() is None):
            self._die("a lane of notifications ended", task.exception())
