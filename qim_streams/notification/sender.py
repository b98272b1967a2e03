"""ProviderLane: takes the due tasks of one provider, sends them, and says what became of each.

One lane per provider, each with its own queue, bound of requests under way, circuit breaker and back-off: a
provider that is slow or down holds up nobody else. A task is claimed while it is here; if this process dies,
the claim ends and another one takes the task, knowing that an attempt may have been made.

Bound on repeats: at most one request more per notification for each time that a process dies between its
request and the note of the answer, or that an answer is lost on the way; with the same id and collapse key,
so a device shows one. With `repeat_unknown` False such a notification is given up instead: never two
requests, perhaps none.

Invariants: no more than `in_flight_max` tasks are claimed, sent or unsettled at once; a target that is left
alone costs no request; what happens to a token, and what the application is told (`results`), is
written down before the task is over.

Spec: §1 NOTIFIED, §6. Scenarios H1 H8 H10 H11.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from qim_streams import failpoints
from qim_streams.errors import StoreError
from qim_streams.notification import metrics
from qim_streams.notification.circuit import CircuitBreaker, TargetBackoff
from qim_streams.notification.ports import (
    Answer,
    Done,
    Later,
    Notification,
    Provider,
    QueuedTask,
    Result,
    TaskQueue,
)
from qim_streams.notification.preparing import Prepared, Preparer
from qim_streams.notification.records import PushDevice, PushResult, PushTask
from qim_streams.notification.registry import PushDevices
from qim_streams.notification.results import ResultLog, result_of
from qim_streams.notification.rules import backoff_ms
from qim_streams.spans.rules import Place, Stage
from qim_streams.spans.service import MessageSpans

log = logging.getLogger(__name__)

TAKE_MAX: Final = 200  # in one go
POLL_S: Final = 5.0  # for what somebody else left behind; what is accepted here wakes the lane
FAILED_S: Final = 1.0
ATTEMPTS_MAX: Final = 10
RETRY_FIRST_MS: Final = 2_000
RETRY_LAST_MS: Final = 600_000
DRAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class LaneBounds:
    """`claim_margin_ms`: a task whose claim ends sooner is not begun: it would outlive the claim."""

    in_flight_max: int
    claim_margin_ms: int
    repeat_unknown: bool = True


class _Ready(NamedTuple):
    queued: QueuedTask
    task: PushTask
    device: PushDevice
    notification: Notification


class ProviderLane:
    """See the module text. `slots` is shared with the service; `chance` gives numbers in [0, 1)."""

    def __init__(
        self,
        provider: Provider,
        queue: TaskQueue,
        preparer: Preparer,
        devices: PushDevices,
        told: ResultLog,
        slots: Collection[int],
        bounds: LaneBounds,
        now_ms: Callable[[], int],
        chance: Callable[[], float],
        spans: MessageSpans | None = None,
    ) -> None:
        self._spans = spans
        self._provider, self._queue, self._preparer, self._devices = provider, queue, preparer, devices
        self._told, self._slots, self._bounds = told, slots, bounds
        self._now_ms, self._chance = now_ms, chance
        self._breaker, self._targets = CircuitBreaker(), TargetBackoff()
        self._wake, self._ended = asyncio.Event(), asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._mine: set[bytes] = set()  # tasks that are here and not settled, whatever became of their claims
        self._done: list[Done] = []
        self._later: list[Later] = []
        self._results: list[PushResult] = []  # of those that are done, not in the log yet
        self._turn, self._closed = 0, False
        self.name = provider.name

    def wake(self) -> None:
        """Tasks were accepted, or slots came."""
        self._wake.set()

    def close(self) -> None:
        """Take nothing more: `run` ends, also where its cancellation is lost in a driver on the way."""
        self._closed = True
        self._wake.set()

    async def run(self) -> None:
        """Take and send until `close`. A store that does not answer is asked again."""
        settling = asyncio.create_task(self._settle_for_ever(), name=f"notification-settle-{self.name}")
        try:
            while not self._closed:
                try:
                    rest_s = await self._work()
                except StoreError as error:
                    log.warning("notifications of %s wait: %s", self.name, error)
                    rest_s = FAILED_S
                await self._rest(rest_s)
        finally:
            await self._drain()
            while not settling.done():  # a driver may drop a cancellation that comes as its work is done
                settling.cancel()
                await asyncio.wait([settling], timeout=FAILED_S)

    # -- one turn

    async def _work(self) -> float:
        """Take what may be sent now and begin to send it; how long to rest after it, seconds."""
        now = self._now_ms()
        metrics.OPEN.labels(self.name).set(self._breaker.is_open)
        free = self._bounds.in_flight_max - self._claimed()
        room = self._breaker.room(now, min(free, TAKE_MAX))
        if room < 1:
            wait_ms = self._breaker.wait_ms(now)
            return wait_ms / 1_000 if wait_ms else POLL_S
        taken = await self._queue.take(self._chosen(room), self.name, now, room)
        if taken.tasks:
            # One whose claim has ended while it is under way here comes again, and its claim is a new one.
            await self._begin([one for one in taken.tasks if one.task_id not in self._mine])
            return 0.0
        if taken.next_due is None:
            return POLL_S
        return min(POLL_S, max(0.001, (taken.next_due - self._now_ms()) / 1_000))

    def _claimed(self) -> int:
        return len(self._sending) + len(self._done) + len(self._later)

    def _chosen(self, room: int) -> Sequence[int]:
        """Slots to take from: all, or in turn as many as there is room for."""
        slots = sorted(self._slots)
        if room >= len(slots):
            return slots
        self._turn = (self._turn + room) % len(slots)
        return (slots + slots)[self._turn : self._turn + room]

    async def _begin(self, queued: Sequence[QueuedTask]) -> None:
        prepared = await self._preparer.prepare(queued)
        now = self._now_ms()
        ready = [one for item in prepared if (one := self._ready(item, now)) is not None]
        if ready:
            await self._queue.begin([one.queued for one in ready])
            failpoints.hit("notification.sends_begun")
            self._breaker.began(len(ready))
            for one in ready:
                self._mine.add(one.queued.task_id)
                task = asyncio.create_task(self._send(one))
                self._sending.add(task)
                task.add_done_callback(partial(self._sent, one.queued.task_id))
        self._ended.set()  # whatever is over already is settled

    def _ready(self, item: Prepared, now: int) -> _Ready | None:
        """What is to be sent, or None when the task is over, waits, or is left to its next claim."""
        queued = item.queued
        if item.why is not None or item.task is None or item.device is None or item.notification is None:
            self._over(queued, item.why or "no_device", item.task)
            return None
        if queued.interrupted:
            if not self._bounds.repeat_unknown:
                self._over(queued, "unknown", item.task)
                return None
            metrics.REPEATED.labels(self.name).inc()
        not_before = self._targets.not_before(item.task.key)
        if not_before > now:
            self._wait(queued, not_before, counted=False)
            return None
        if now > queued.claimed_until - self._bounds.claim_margin_ms:
            return None
        return _Ready(queued, item.task, item.device, item.notification)

    # -- one notification

    async def _send(self, one: _Ready) -> None:
        metrics.IN_FLIGHT.labels(self.name).inc()
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            answer = await self._provider.send(one.notification)
        except Exception as error:  # noqa: BLE001 - whatever a provider's code does, the others go on
            log.error("notification: %s failed: %s", self.name, type(error).__name__)
            answer = Answer(Result.DOWN, type(error).__name__)
        finally:
            metrics.IN_FLIGHT.labels(self.name).dec()
        metrics.SEND_SECONDS.labels(self.name).observe(took_s := loop.time() - started)
        if self._spans is not None:
            self._tell(self._spans, one, answer, took_s)
        metrics.SENDS.labels(self.name, answer.result.value).inc()
        await self._take_answer(one, answer)

    def _tell(self, spans: MessageSpans, one: _Ready, answer: Answer, took_s: float) -> None:
        task, failed = one.task, "" if answer.result is Result.SENT else answer.result.value
        place = Place(task.mailbox_shard, f"{task.task_id.hex()}.{one.queued.attempts}")
        message = task.tenant_id, task.message_id
        spans.note(Stage.NOTIFY, spans.ago(took_s), [message], place, failed=failed, provider=self.name)

    def _sent(self, task_id: bytes, task: asyncio.Task[None]) -> None:
        """Only now there is room for another one, so only now somebody is told."""
        self._sending.discard(task)
        if task.cancelled():
            self._mine.discard(task_id)
        elif (failure := task.exception()) is not None:
            self._mine.discard(task_id)
            log.error("notification: %s: %s: left to its next claim", self.name, type(failure).__name__)
        self._ended.set()
        self._wake.set()

    async def _take_answer(self, one: _Ready, answer: Answer) -> None:
        failpoints.hit("notification.answered")
        now, target = self._now_ms(), one.task.key
        if answer.result is Result.DOWN:
            log.log(
                logging.INFO if self._breaker.is_open else logging.WARNING,
                "notification: %s: %s",
                self.name,
                answer.reason,
            )
            self._breaker.failed(now, self._chance(), answer.retry_after_ms)
            self._again(one, now, max(answer.retry_after_ms or 0, self._breaker.wait_ms(now)), answer.reason)
            return
        self._breaker.answered()
        if answer.result is Result.BUSY:
            until = self._targets.busy(target, now, self._chance(), answer.retry_after_ms)
            self._again(one, now, until - now, answer.reason)
        elif answer.result is Result.DEAD:
            await self._bury(one, answer)
        elif answer.result is Result.REFUSED:
            log.warning("notification: %s refused one: %s", self.name, answer.reason)
            self._over(one.queued, "refused", one.task, answer.reason)
        else:
            self._targets.good(target)
            metrics.AFTER_SECONDS.observe(max(0, now - one.task.committed_at) / 1_000)
            self._over(one.queued, "sent", one.task)

    async def _bury(self, one: _Ready, answer: Answer) -> None:
        """The token is dead, unless it was registered again since it died.

        The application's record comes first: once the token is buried, nobody would ask the provider again.
        """
        told = result_of(one.task, one.queued, self.name, "dead", answer.reason, self._now_ms())
        try:
            await self._told.append([told] if told is not None else [])
            if answer.dead_since_ms is None or one.device.version <= answer.dead_since_ms:
                await self._devices.bury(one.device, answer.reason)
        except StoreError as error:
            log.warning("a dead token of %s is still there: %s", self.name, error)
            self._again(one, self._now_ms(), 0, answer.reason)
            return
        self._over(one.queued, "dead", None)

    def _again(self, one: _Ready, now: int, wait_ms: int, reason: str) -> None:
        """Let a task wait after an attempt, or give it up after too many."""
        attempts = one.queued.attempts + 1
        if attempts >= ATTEMPTS_MAX:
            self._over(one.queued, "gave_up", one.task, reason)
            return
        delay = backoff_ms(attempts, RETRY_FIRST_MS, RETRY_LAST_MS, self._chance())
        self._wait(one.queued, now + max(delay, wait_ms), counted=True)

    def _over(self, queued: QueuedTask, why: str, task: PushTask | None, reason: str = "") -> None:
        """A task is over; `task` None: there is nothing to tell the application, or it was told already."""
        self._mine.add(queued.task_id)
        metrics.OVER.labels(self.name, why).inc()
        self._done.append(Done(queued.slot, queued.task_id, self.name, why == "sent"))
        if task is not None:
            told = result_of(task, queued, self.name, why, reason, self._now_ms())
            self._results += [told] if told is not None else []

    def _wait(self, queued: QueuedTask, due_at: int, *, counted: bool) -> None:
        self._mine.add(queued.task_id)
        self._later.append(Later(queued.slot, queued.task_id, self.name, due_at, counted))

    # -- what became of them

    async def _settle_for_ever(self) -> None:
        while True:
            await self._ended.wait()
            self._ended.clear()
            try:
                await self._settle()
            except StoreError as error:
                log.warning("notifications of %s are not settled yet: %s", self.name, error)
                await asyncio.sleep(FAILED_S)
                self._ended.set()
            self._wake.set()

    async def _settle(self) -> None:
        """Write down what is over and what waits; repeating it is safe.

        What the application is told comes first: a task that is off the queue is not heard of again.
        """
        done, later, results = list(self._done), list(self._later), list(self._results)
        if results:
            await self._told.append(results)
            del self._results[: len(results)]
            failpoints.hit("notification.results_appended")
        if done or later:
            await self._queue.settle(done, later, self._now_ms())
            failpoints.hit("notification.settled")
            del self._done[: len(done)], self._later[: len(later)]
            self._mine -= {one.task_id for one in done} | {one.task_id for one in later}
        metrics.WAITING.labels(self.name).set(await self._queue.waiting(sorted(self._slots), self.name))

    async def _rest(self, seconds: float) -> None:
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass  # nothing woke us: look what is due
        self._wake.clear()

    async def _drain(self) -> None:
        """Wait a moment for answers and write them down; the rest is taken up after its claim."""
        if self._sending:
            await asyncio.wait(set(self._sending), timeout=DRAIN_S)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        try:
            await self._settle()
        except StoreError as error:
            log.warning("notifications of %s were not settled: %s", self.name, error)
