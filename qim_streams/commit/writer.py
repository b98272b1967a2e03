"""ConversationWriter: admits sends, bounds what waits, and hands them to the lane of their partition.

Invariants: at most `queue_max` sends and `queue_bytes_max` bytes of bodies are without an answer; what is
over the bound is refused at once with a delay; every job is answered exactly once.

Spec: §3.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from qim_streams import failpoints
from qim_streams.commit import metrics
from qim_streams.commit.lane import PartitionLane
from qim_streams.commit.lane_services import LaneLimits, LaneServices, SendJob
from qim_streams.commit.outcome import NOT_OWNER, UNKNOWN, SendOutcome, SendRequest, refused
from qim_streams.ownership.ports import Grant

log = logging.getLogger(__name__)

QUEUE_BYTES_MAX = 48 * 1024 * 1024  # bodies without an answer; the producer's own bound is above it
OVERLOADED_RETRY_MS = 500
RECOVERY_S = 10.0  # of a partition after its grant; more is said to who asks whether this writer is ready


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """What a deployment sets, and the bounds of each lane."""

    queue_max: int
    queue_bytes_max: int = QUEUE_BYTES_MAX
    lane: LaneLimits = field(default_factory=LaneLimits)


class ConversationWriter:
    """The Outbox partitions of one process."""

    def __init__(
        self,
        services: LaneServices,
        limits: WriterLimits,
        partition_of: Callable[[str, str], int],
        on_fenced: Callable[[int, int], object] = lambda *_: None,
    ) -> None:
        """`partition_of(tenant, conversation)`; `on_fenced(partition, epoch)`: somebody else owns it."""
        self._services, self._limits = services, limits
        self._partition_of, self._on_fenced = partition_of, on_fenced
        self._lanes: dict[int, PartitionLane] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._granted_s: dict[int, float] = {}
        self._waiting, self._waiting_bytes = 0, 0

    # -- ownership

    def grant(self, grant: Grant) -> PartitionLane:
        """Serve a partition: its pending messages are relayed first. Returns at once."""
        partition = partition_of_resource(grant.resource)
        before = self._tasks.get(partition)
        if partition in self._lanes:
            self._lanes[partition].revoke()
        lane = PartitionLane(partition, grant.epoch, self._services, self._limits.lane, self._fenced)
        self._lanes[partition], self._granted_s[partition] = lane, self._services.monotonic()
        self._tasks[partition] = asyncio.create_task(lane.run(before), name=f"lane-{partition}")
        metrics.PARTITIONS.set(len(self._lanes))
        return lane

    def revoke(self, partition: int) -> None:
        """The lease of a partition is lost: stop serving it now."""
        lane = self._lanes.pop(partition, None)
        if lane is not None:
            lane.revoke()
        metrics.PARTITIONS.set(len(self._lanes))

    async def drain(self, partitions: Iterable[int], timeout_s: float) -> None:
        """Stop taking sends of the partitions and wait until those taken are answered and confirmed.

        After `timeout_s` what is left is abandoned: its callers learn nothing, which is the unknown outcome.
        """
        tasks = []
        for partition in partitions:
            lane = self._lanes.pop(partition, None)
            if lane is not None:
                lane.close()
                tasks.append(self._tasks[partition])
        metrics.PARTITIONS.set(len(self._lanes))
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        for task in late:
            log.warning("%s did not drain in %.1f s", task.get_name(), timeout_s)
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def close(self, timeout_s: float) -> None:
        """`drain` everything."""
        await self.drain(list(self._lanes), timeout_s)

    def epoch_of(self, tenant_id: str, conversation_id: str) -> tuple[int, int] | None:
        """(partition, epoch) of a conversation if its partition is served here, else None.

        Not before the lane has recovered: a change on top of what the store forgot would take the version
        of one that lies in the change log.
        """
        partition = self._partition_of(tenant_id, conversation_id)
        lane = self._lanes.get(partition)
        if lane is None or not (lane.accepting and lane.ready.is_set()):
            return None
        return partition, lane.epoch

    def serves(self, partition: int, epoch: int) -> bool:
        """Whether a partition has recovered and is served under this epoch."""
        lane = self._lanes.get(partition)
        return lane is not None and lane.epoch == epoch and lane.ready.is_set()

    @property
    def ready(self) -> list[int]:
        """Partitions that are served now: leased and relayed."""
        return sorted(partition for partition, lane in self._lanes.items() if lane.ready.is_set())

    @property
    def overdue(self) -> list[int]:
        """Partitions that were granted `RECOVERY_S` ago and more and are not served yet."""
        before_s = self._services.monotonic() - RECOVERY_S
        late = (one for one, at_s in self._granted_s.items() if at_s < before_s and one in self._lanes)
        return sorted(one for one in late if not self._lanes[one].ready.is_set())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of all lanes, also of those that are ending."""
        return list(self._tasks.values())

    # -- sends

    def submit(self, jobs: Sequence[SendJob]) -> None:
        """Queue jobs; each is answered later, or right now when it is refused."""
        by_lane: dict[int, list[SendJob]] = {}
        for job in jobs:
            partition = self._partition_of(job.request.tenant_id, job.request.conversation_id)
            refusal = self._refusal(job, partition)
            if refusal is not None:
                job.answer(refusal)
                continue
            self._waiting += 1
            self._waiting_bytes += len(job.request.body)
            job.on_done = self._answered
            by_lane.setdefault(partition, []).append(job)
        metrics.WAITING.set(self._waiting)
        if by_lane:
            failpoints.hit("writer.admitted")
        for partition, admitted in by_lane.items():
            self._lanes[partition].push(admitted)

    async def send(self, request: SendRequest, timeout_s: float = 10.0) -> SendOutcome:
        """One send, for callers in this process; UNKNOWN after `timeout_s`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[SendOutcome] = loop.create_future()

        def reply(outcome: SendOutcome) -> None:
            if not answer.done():
                answer.set_result(outcome)

        self.submit([SendJob(request, reply, self._services.monotonic() + timeout_s)])
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return UNKNOWN

    def _refusal(self, job: SendJob, partition: int) -> SendOutcome | None:
        lane = self._lanes.get(partition)
        if lane is None or not lane.accepting:
            return NOT_OWNER
        if self._waiting >= self._limits.queue_max or self._waiting_bytes >= self._limits.queue_bytes_max:
            return refused("OVERLOADED", "the writer's queue is full", OVERLOADED_RETRY_MS)
        return self._services.admission.check(job.request)

    def _answered(self, job: SendJob) -> None:
        self._waiting -= 1
        self._waiting_bytes -= len(job.request.body)

    def _fenced(self, partition: int, epoch: int) -> None:
        lane = self._lanes.get(partition)
        if lane is not None and lane.epoch == epoch:
            del self._lanes[partition]
        self._on_fenced(partition, epoch)


def resource_of(partition: int) -> str:
    """The lease resource of an Outbox partition."""
    return f"ob:{partition}"


def partition_of_resource(resource: str) -> int:
    """The Outbox partition of a lease resource."""
    return int(resource.removeprefix("ob:"))
