"""OutboxTail: the messages of one partition between their commit and their confirmation.

A message is in flight from its hand-over to the Outbox until the broker has acknowledged it; then its
senders are answered and it waits to be confirmed in the store.

Invariants: records are handed over in the order of `append` calls; nobody is answered before the
acknowledgement; an append that fails ends the process, because only the next boot can know what is missing.

Spec: §3.4, §3.5, §14.3.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from qim_streams import failpoints
from qim_streams.commit import metrics
from qim_streams.commit.lane_services import LaneServices, SendJob
from qim_streams.commit.outcome import UNKNOWN, committed
from qim_streams.commit.ports import NOTHING_CONFIRMED, CommitRequest, CommitResult, Confirmed, OutboxAppend
from qim_streams.commit.relay import hand_over
from qim_streams.commit.rules import record_of
from qim_streams.errors import FencedError
from qim_streams.records import OutboxRecord, record_key
from qim_streams.spans.rules import Stage

ARRIVAL_POLL_S = 0.02


class NewMessage(NamedTuple):
    """A message that the store has numbered for us."""

    request: CommitRequest
    result: CommitResult


class OutboxTail:
    """Of one lane. `on_progress` is called when something was acknowledged, `on_fenced` when what was
    appended does not count, because another owner's barrier lies before it."""

    def __init__(
        self,
        partition: int,
        epoch: int,
        services: LaneServices,
        on_progress: Callable[[], object],
        on_fenced: Callable[[], object],
    ) -> None:
        self._partition, self._epoch = partition, epoch
        self._s, self._on_progress, self._on_fenced = services, on_progress, on_fenced
        self._in_flight: dict[bytes, list[SendJob]] = {}
        self._acked: dict[bytes, None] = {}  # acknowledged, not confirmed; in order
        self._offset = -1  # highest that was acknowledged

    @property
    def busy(self) -> bool:
        """Whether an acknowledgement is awaited."""
        return bool(self._in_flight)

    async def arrived(self) -> None:
        """Until nothing of ours is on its way into the Outbox.

        A hot tier that was emptied does not know what was: the next owner, often we ourselves, looks for it
        in the Outbox, and would use the numbers again of what comes there later.
        """
        while self._in_flight:
            await self._s.sleep(ARRIVAL_POLL_S)

    @property
    def unconfirmed(self) -> bool:
        """Whether something acknowledged waits to be confirmed."""
        return bool(self._acked)

    @property
    def known(self) -> Collection[bytes]:
        """Ids of everything here."""
        return {*self._in_flight, *self._acked}

    def expect(self, message_id: bytes, job: SendJob) -> None:
        """A message was numbered for `job`; it will be appended in this turn of the lane."""
        self._in_flight[message_id] = [job]

    def join(self, job: SendJob, result: CommitResult) -> bool:
        """Whether a reserved message is on its way here, and the job now waits for it or is answered."""
        waiting = self._in_flight.get(result.message_id)
        if waiting is not None:
            waiting.append(job)
            return True
        if result.message_id in self._acked:
            job.answer(committed(result))
            return True
        return False

    def take_acked(self) -> Confirmed:
        """What is to be confirmed now; give it back if that did not work."""
        taken = Confirmed(list(self._acked), self._offset) if self._acked else NOTHING_CONFIRMED
        self._acked = {}
        return taken

    def give_back(self, confirmed: Confirmed) -> None:
        """What could not be confirmed."""
        self._acked = dict.fromkeys(confirmed.message_ids) | self._acked

    async def append(self, new: list[NewMessage], made: Sequence[Awaitable[object]]) -> None:
        """Hand messages over to the Outbox; answers follow when they and `made` are durable. FencedError."""
        records = await self._outbox_records(new)
        started_s = self._s.monotonic()
        try:
            acknowledged = await hand_over(self._s.outbox, records, self._s.on_doubt, self._s.sleep)
        except FencedError:
            self._abandon(new)
            raise
        failpoints.hit("writer.produce_sent")
        durable = _first_of_all(acknowledged, made) if made else acknowledged
        asyncio.ensure_future(durable).add_done_callback(partial(self._acknowledged, new, started_s))

    async def _outbox_records(self, new: list[NewMessage]) -> list[OutboxAppend]:
        await self._s.snapshots.load(
            [
                (request.tenant_id, request.conversation_id, result.membership_version)
                for request, result in new
                if self._is_small(result)
            ]
        )
        get, records = self._s.snapshots.get, []
        for request, result in new:
            tenant, chat = request.tenant_id, request.conversation_id
            message = record_of(result, request.record_tail)
            members = get(tenant, chat, result.membership_version) if self._is_small(result) else None
            value = OutboxRecord(message, self._epoch, 0, members).encode()
            records.append(OutboxAppend(self._partition, record_key(tenant, chat), value))
        return records

    def _is_small(self, result: CommitResult) -> bool:
        """Whether the members travel in the record."""
        return 0 < result.members_active <= self._s.snapshots.members_max

    def _abandon(self, new: list[NewMessage]) -> None:
        """What was appended behind another owner's barrier: nobody here knows whether it relays that."""
        for _, result in new:
            for job in self._in_flight.pop(result.message_id, ()):
                job.answer(UNKNOWN)

    def _acknowledged(
        self, new: list[NewMessage], started_s: float, appended: "asyncio.Future[list[int]]"
    ) -> None:
        error = asyncio.CancelledError() if appended.cancelled() else appended.exception()
        if isinstance(error, FencedError):
            self._abandon(new)
            self._on_fenced()
            return
        if error is not None:
            self._s.on_doubt(f"{len(new)} Outbox records were not acknowledged", error)
        try:
            failpoints.hit("writer.produce_acked")
            metrics.APPEND_SECONDS.observe(took_s := self._s.monotonic() - started_s)
            if (spans := self._s.spans) is not None:
                appended_now = [(one.tenant_id, result.message_id) for one, result in new]
                spans.note(Stage.APPEND, spans.ago(took_s), appended_now, outbox_partition=self._partition)
            self._offset = max(self._offset, *appended.result())
            for _, result in new:
                outcome = committed(result)
                for job in self._in_flight.pop(result.message_id):
                    job.answer(outcome)
                self._acked[result.message_id] = None
        except Exception as failure:  # noqa: BLE001 - a callback's error would only be logged by the loop
            self._s.on_doubt("an acknowledged group could not be answered", failure)
        self._on_progress()


async def _first_of_all(offsets: Awaitable[list[int]], others: Sequence[Awaitable[object]]) -> list[int]:
    """The offsets, once everything else has ended too."""
    found = asyncio.ensure_future(offsets)
    await asyncio.gather(found, *others)
    return found.result()
