"""PartitionLane: the messages of one Outbox partition, from the queue to SEND_ACK.

1. Take what is queued, one group.
2. One commit call for the group. While its outcome is unknown nothing later of this partition is sent: the
   same call is repeated until it is settled. What it had applied the first time comes back RESERVED with our
   own message_id and counts as new.
3. Hand the new messages to the Outbox in seq order, without waiting for the groups before.
4. When the broker has acknowledged them: answer, and let the next commit call (or a timer) confirm them.

An edit or recall of a message that only the archive has leaves the lane until it was read there.

A repeat of a message that is between 3 and 4 joins it. A message that is reserved and unknown here cannot
exist after the relay has drained the partition; should it, the relay is run again before it is answered.

Invariants: records enter the Outbox in the order in which the store numbered them; no SEND_ACK before the
acknowledgement; an append that fails ends the process, because only the next boot can know what is missing.

What it does not do: own the lease, admit, or bound the queue (`writer` does).

Spec: §3, §14.3.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from qim_streams import failpoints
from qim_streams.commit import metrics
from qim_streams.commit.admission import Wait, check_chat
from qim_streams.commit.lane_services import LaneLimits, LaneServices, SendJob
from qim_streams.commit.outbox_tail import NewMessage, OutboxTail
from qim_streams.commit.outcome import (
    NOT_OWNER,
    UNKNOWN,
    UNSETTLED,
    SendOutcome,
    committed,
    refused,
    refused_by,
)
from qim_streams.commit.ports import (
    CommitRequest,
    CommitResult,
    CommitStatus,
    DirectChat,
)
from qim_streams.commit.requests import chat_of, commit_request, numbered
from qim_streams.commit.revisions import Revisions
from qim_streams.errors import FencedError, InvariantViolation, Outcome, StoreError, StoreUnavailable
from qim_streams.hlc import ClockDriftError
from qim_streams.spans.rules import Stage

log = logging.getLogger(__name__)

ROUNDS_MAX = 4  # of one group: first try, direct chats made, clock moved on, and one for bad luck
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.02, 1.0
STORE_RETRY_MS = 500


class PartitionLane:
    """One owned partition. Run `run` as a task; it ends after `close` or `revoke`, or when fenced."""

    def __init__(
        self,
        partition: int,
        epoch: int,
        services: LaneServices,
        limits: LaneLimits,
        on_fenced: Callable[[int, int], object],
    ) -> None:
        self.partition, self.epoch = partition, epoch
        self.accepting = True
        self.ready = asyncio.Event()  # the relay has drained the partition
        self._s, self._limits, self._on_fenced = services, limits, on_fenced
        self._queue: deque[SendJob] = deque()
        self._wake = asyncio.Event()
        self._revoked = False
        self._tail = OutboxTail(partition, epoch, services, self._wake.set, self._log_fenced)
        self._revisions = Revisions()
        self._made: list[Awaitable[object]] = []  # change log rows of chats made for the group at hand

    # -- from outside, on the event loop

    def push(self, jobs: Sequence[SendJob]) -> None:
        """Queue jobs; only while `accepting`."""
        self._queue.extend(jobs)
        self._wake.set()

    def close(self) -> None:
        """Take no more; `run` ends when everything taken is answered and confirmed."""
        self.accepting = False
        self._wake.set()

    def revoke(self) -> None:
        """The lease is gone: finish the call under way, answer the rest NOT_OWNER, end."""
        self.accepting, self._revoked = False, True
        self._wake.set()

    def _log_fenced(self) -> None:
        """Another owner's barrier lies before what we appended."""
        self.revoke()
        self._on_fenced(self.partition, self.epoch)

    async def run(self, after: Awaitable[object] | None = None) -> None:
        """Serve the partition, once `after` (the lane before this one) has ended."""
        try:
            if after is not None:
                await after
            await self._recover()
            while await self._step():
                pass
            await self._tail.arrived()
        except FencedError as error:
            log.warning("ob:%d epoch %d: %s", self.partition, self.epoch, error)
            self.accepting = False
            await self._tail.arrived()
            self._on_fenced(self.partition, self.epoch)
        except Exception as error:  # noqa: BLE001 - a lane that stops silently would hold its queue for ever
            self._s.on_doubt(f"the lane of ob:{self.partition} broke", error)
        finally:
            self.accepting = False
            self._reject_queue()

    # -- steps

    async def _recover(self) -> None:
        delay_s = BACKOFF_FIRST_S
        barrier = await self._s.outbox.begin(self.partition, self.epoch)
        failpoints.hit("writer.barrier_appended")
        while not self._revoked:
            try:
                repaired = await self._s.repair.run(self.partition, self.epoch, barrier)
                if repaired.fence > self.epoch:
                    await self._s.raise_epoch(self.partition, self.epoch, repaired.fence)
                    raise FencedError(f"ob:{self.partition}", self.epoch, repaired.fence)
                await self._s.replay.run(self.partition, self.epoch, repaired.versions)
                await self._s.seats.run(self.partition)
                failpoints.hit("writer.hot_tier_repaired")
                count = await self._s.relay.drain(self.partition, self.epoch)
                await self._s.proof.prove(self.partition, self.epoch)
                failpoints.hit("writer.partition_proved")
            except StoreUnavailable as error:
                log.warning("ob:%d: relay waits %.2f s: %s", self.partition, delay_s, error)
                await self._s.sleep(delay_s)
                delay_s = min(BACKOFF_MAX_S, 2 * delay_s)
                continue
            metrics.RESTORED.inc(repaired.missing)
            metrics.RELAYED.inc(count)
            log.info("ob:%d epoch %d: serving, %d messages relayed", self.partition, self.epoch, count)
            self.ready.set()
            return

    async def _step(self) -> bool:
        if self._revoked:
            return False
        group = self._take()
        if group:
            await self._commit_group(group)
            return True
        if not self.accepting and not self._queue and not self._tail.busy:
            await self._confirm()
            return False
        self._wake.clear()
        if not self._tail.unconfirmed:
            await self._wake.wait()
            return True
        try:
            async with asyncio.timeout(self._limits.confirm_idle_s):
                await self._wake.wait()
        except TimeoutError:
            await self._confirm()
        return True

    def _take(self) -> list[SendJob]:
        group: list[SendJob] = []
        queue, nbytes, now_s = self._queue, 0, self._s.monotonic()
        while queue and len(group) < self._limits.group_max and nbytes < self._limits.group_bytes_max:
            job = queue.popleft()
            if job.deadline_s <= now_s:
                job.answer(refused("OVERLOADED", "waited too long in the writer", STORE_RETRY_MS))
                continue
            nbytes += len(job.request.body)
            group.append(job)
        return group

    async def _commit_group(self, jobs: list[SendJob]) -> None:
        for _ in range(ROUNDS_MAX):
            jobs = await self._commit_once(jobs)
            if not jobs:
                return
        for job in jobs:
            job.answer(refused("STORE_UNAVAILABLE", "the conversation's clock or state is moving", 100))

    async def _commit_once(self, jobs: list[SendJob]) -> list[SendJob]:
        """One round; returns the jobs that need another, in order."""
        try:
            requests = await self._requests(jobs)
        except OSError as error:
            log.error("clock bound not stored: %s", error)
            self._refuse(jobs, "the clock bound cannot be stored")
            return []
        results = await self._settled(jobs, requests)
        if results is None:
            for job, request in zip(jobs, requests, strict=True):
                self._s.admission.give_back(job.request, job.ticket, request.committed_at)
            return []
        new: list[NewMessage] = []
        again: list[SendJob] = []
        orphans: list[tuple[SendJob, CommitResult]] = []
        for job, request, result in zip(jobs, requests, results, strict=True):
            status = result.status
            ours = status is CommitStatus.REPEAT_RESERVED and result.message_id == request.message_id
            if status is CommitStatus.NEW or ours:
                new.append(NewMessage(request, result))
                self._tail.expect(result.message_id, job)
                if result.revision:
                    self._revisions.note(job.request, result.revision)
                if not ours:
                    self._s.admission.learn(
                        job.request, job.ticket, result.members_active, request.committed_at
                    )
                continue
            self._s.admission.give_back(job.request, job.ticket, request.committed_at)
            if status is CommitStatus.REPEAT_RESERVED and not self._tail.join(job, result):
                orphans.append((job, result))
            elif status is CommitStatus.CLOCK_BEHIND or _makes_chat(status, job):
                again.append(job)
            elif status is CommitStatus.TARGET_COLD:
                self._s.targets.fetch(job, self._resume)
            elif status is not CommitStatus.REPEAT_RESERVED:
                self._answer(job, result)
        if new:
            failpoints.hit("writer.committed_in_redis")
            made, self._made = self._made, []
            await self._tail.append(new, made)
        if orphans:
            await self._adopt(orphans)
        return await self._prepare_again(again, results) if again else []

    async def _requests(self, jobs: list[SendJob]) -> list[CommitRequest]:
        now_ms = self._s.now_ms()
        ids = await self._s.clock.ids(len(jobs))
        tickets = self._s.admission.tickets([job.request for job in jobs], now_ms)
        requests = []
        for job, message_id, ticket in zip(jobs, ids, tickets, strict=True):
            job.ticket, refuse_new = ticket, type(ticket) is Wait
            request = commit_request(job.request, message_id, self.epoch, now_ms, refuse_new)
            if job.request.kind:
                change = self._revisions.change(job.request, self._s.windows, job.archived)
                request = request._replace(change=change)
            requests.append(request)
        return requests

    def _resume(self, job: SendJob) -> None:
        """A target was read in the archive: the job takes another turn."""
        if self.accepting:
            self.push([job])
        else:
            job.answer(NOT_OWNER)

    # -- the commit call

    async def _settled(self, jobs: list[SendJob], requests: list[CommitRequest]) -> list[CommitResult] | None:
        """The results, however often the call has to be repeated; None: the jobs were answered instead."""
        confirmed = self._tail.take_acked()
        if confirmed.message_ids:
            failpoints.hit("writer.ack_sent")
        started_s, delay_s, unsure = self._s.monotonic(), BACKOFF_FIRST_S, False
        while True:
            try:
                results = await self._s.store.commit(self.partition, self.epoch, requests, confirmed)
            except StoreUnavailable as error:
                unsure = unsure or error.outcome is not Outcome.NOT_APPLIED
                log.warning("ob:%d: commit of %d: %s", self.partition, len(jobs), error)
                if not unsure:
                    self._tail.give_back(confirmed)
                    self._refuse(jobs, "the hot tier is not available")
                    return None
                metrics.UNSURE.inc()
            except (StoreError, InvariantViolation) as error:
                self._s.on_doubt("a commit broke in its middle", error)
            except FencedError:
                self._answer_all(jobs, UNKNOWN if unsure else NOT_OWNER)
                raise
            else:
                metrics.GROUP.observe(len(jobs))
                metrics.COMMIT_SECONDS.observe(took_s := self._s.monotonic() - started_s)
                if (spans := self._s.spans) is not None:
                    spans.note(Stage.COMMIT, spans.ago(took_s), numbered(requests, results), group=len(jobs))
                return results
            if self._revoked:
                self._answer_all(jobs, UNKNOWN)
                return None
            await self._s.sleep(delay_s)
            delay_s = min(BACKOFF_MAX_S, 2 * delay_s)

    def _answer(self, job: SendJob, result: CommitResult) -> None:
        if result.status is CommitStatus.REPEAT_COMMITTED:
            job.answer(committed(result))
        elif result.status is CommitStatus.RATE_LIMITED and isinstance(job.ticket, Wait):
            metrics.LIMITED.labels(job.ticket.code).inc()
            job.answer(refused(job.ticket.code, job.ticket.detail, job.ticket.ms))
        elif result.status is CommitStatus.TARGET_UNSETTLED:
            job.answer(UNSETTLED)
        else:
            job.answer(refused_by(result.status))

    async def _prepare_again(self, jobs: list[SendJob], results: Sequence[CommitResult]) -> list[SendJob]:
        """Make another round succeed: clock above the ids seen, direct chats made. Order is kept."""
        for last_id in {r.message_id for r in results if r.status is CommitStatus.CLOCK_BEHIND}:
            try:
                self._s.clock.observe(last_id)
            except ClockDriftError as error:
                log.error("ob:%d: a conversation's last id is too far ahead: %s", self.partition, error)
        jobs, chats = self._with_chats(jobs)
        if not chats:
            return jobs
        try:
            made = await self._s.direct.ensure_direct(self.partition, self.epoch, chats)
        except FencedError:
            self._answer_all(jobs, NOT_OWNER)
            raise
        except StoreError as error:
            log.warning("ob:%d: %d direct chats not made: %s", self.partition, len(chats), error)
            self._refuse(
                [job for job in jobs if job.request.to_user_id is not None], "the hot tier is not available"
            )
            return [job for job in jobs if job.request.to_user_id is None]
        if made is not None:
            self._made.append(made)
        return jobs

    def _with_chats(self, jobs: list[SendJob]) -> tuple[list[SendJob], list[DirectChat]]:
        """The jobs that may go on, and the direct chats that they need."""
        going: list[SendJob] = []
        chats: list[DirectChat] = []
        for job in jobs:
            if job.request.to_user_id is not None:
                refusal = check_chat(job.request)
                if refusal is not None:
                    job.answer(refusal)
                    continue
                chats.append(chat_of(job.request))
            going.append(job)
        return going, chats

    async def _adopt(self, orphans: list[tuple[SendJob, CommitResult]]) -> None:
        """Answer reserved messages that this process does not know, after the relay has appended them."""
        log.error("ob:%d: %d reserved messages are unknown here; relaying", self.partition, len(orphans))
        metrics.ORPHANS.inc(len(orphans))
        while True:
            try:
                await self._s.relay.drain(self.partition, self.epoch, self._tail.known)
                break
            except FencedError:
                self._answer_all([job for job, _ in orphans], UNKNOWN)
                raise
            except StoreUnavailable as error:
                log.warning("ob:%d: relay waits: %s", self.partition, error)
                if self._revoked:
                    self._answer_all([job for job, _ in orphans], UNKNOWN)
                    return
                await self._s.sleep(BACKOFF_MAX_S)
        for job, result in orphans:
            job.answer(committed(result))

    async def _confirm(self) -> None:
        if not self._tail.unconfirmed:
            return
        failpoints.hit("writer.ack_sent")
        done = self._tail.take_acked()
        try:
            await self._s.store.confirm(self.partition, self.epoch, done)
        except StoreUnavailable as error:
            log.warning(
                "ob:%d: %d messages not confirmed yet: %s", self.partition, len(done.message_ids), error
            )
            self._tail.give_back(done)
            if self.accepting:
                await self._s.sleep(BACKOFF_FIRST_S)

    # -- answers

    def _refuse(self, jobs: Sequence[SendJob], why: str) -> None:
        self._answer_all(jobs, refused("STORE_UNAVAILABLE", why, STORE_RETRY_MS))

    def _answer_all(self, jobs: Sequence[SendJob], outcome: SendOutcome) -> None:
        for job in jobs:
            job.answer(outcome)

    def _reject_queue(self) -> None:
        while self._queue:
            self._queue.popleft().answer(NOT_OWNER)


def _makes_chat(status: CommitStatus, job: SendJob) -> bool:
    return status is CommitStatus.NO_CONVERSATION and job.request.to_user_id is not None
