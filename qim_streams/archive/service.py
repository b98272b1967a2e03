"""HistoryArchiver: the Outbox, batch by batch, into the archive. Not on the way of SEND_ACK.

One batch, in this order (each step is safe to repeat, so a kill between any two of them is too):

1. read the records; what cannot be read is poison; what an old owner appended behind a newer one's barrier
   is left out (`ownership.log_fence`);
2. look up in the archive what it may hold already: all of a batch that is the first one since the start
   or that failed before, else what repeats a seq of its conversation; what has other bytes there is poison;
   and the targets of edits and recalls, which get their new revision;
3. poison into the dead letters, awaited, once for as long as the partition is ours;
4. the new messages durable, then the watermark = offset of the batch's last record;
5. tell `on_covered` which messages are covered now (the trimmer of the hot tier listens);
   A batch is cut in front of a barrier: all before it is covered, then the fence is kept, then the rest
   follows, so that fence and watermark belong together at every start;
6. return, which acknowledges the batch. The group's offset is a hint only: a partition starts at
   archive watermark + 1.

Invariants: the watermark covers a prefix without a gap (a batch that does not continue it is refused
with InvariantViolation); a batch that cannot be stored is never acknowledged and moves nothing.

Spec: §1 ARCHIVED, §3, §14.8.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from qim_streams import failpoints
from qim_streams.archive import metrics
from qim_streams.archive.ports import Archive, ArchivedMessage
from qim_streams.archive.rules import (
    Address,
    apply_operations,
    drop_known,
    read_batch,
    targets_elsewhere,
)
from qim_streams.errors import InvariantViolation
from qim_streams.generations import Generations
from qim_streams.log_ports import LogBatch, LogRecord, Poison, PoisonSink
from qim_streams.ownership.log_fence import stretches
from qim_streams.records import decode_message
from qim_streams.spans.rules import Stage
from qim_streams.spans.service import MessageSpans

log = logging.getLogger(__name__)

CONVERSATIONS_MAX = 100_000  # whose newest seq is remembered: about 20 MB


class HistoryArchiver:
    """Archives what it is handed. One instance serves any number of partitions, one batch each at a time."""

    def __init__(
        self,
        outbox_topic: str,
        archive: Archive,
        poison: PoisonSink,
        *,
        now_ms: Callable[[], int],
        on_covered: Callable[[int, Iterable[ArchivedMessage]], None] = lambda partition, messages: None,
        spans: MessageSpans | None = None,
    ) -> None:
        """`on_covered` gets the partition and the messages of each batch once its watermark is published."""
        self._spans = spans
        self._topic, self._archive, self._poison, self._now_ms = outbox_topic, archive, poison, now_ms
        self._on_covered = on_covered
        self._covered: dict[int, int] = {}
        self._fences: dict[int, int] = {}
        self._in_doubt: set[int] = set()  # partitions whose next records may be in the archive already
        self._newest: Generations[tuple[str, str]] = Generations(CONVERSATIONS_MAX)
        self._buried: dict[int, int] = {}  # partition -> poison up to this offset is in the dead letters

    async def start_position(self, partition: int) -> int:
        """The next Outbox offset to archive: archive watermark + 1, whatever the group committed."""
        watermark = await self._archive.watermark(partition)
        self._covered[partition] = watermark
        self._fences[partition] = await self._archive.fence(partition)
        self._in_doubt.add(partition)
        self._buried.pop(partition, None)
        return watermark + 1

    async def release(self, partitions: frozenset[int]) -> None:
        """Forget partitions that were revoked: another archiver may move their watermark."""
        for partition in partitions:
            self._covered.pop(partition, None)
            self._fences.pop(partition, None)
            self._buried.pop(partition, None)

    async def handle(self, batch: LogBatch) -> None:
        """Archive a batch and publish the watermark. StoreUnavailable: nothing published, call again."""
        self._require_continuation(batch)
        partition = batch.partition
        for one in list(stretches(self._fences[partition], batch.records)):
            if one.barrier:
                await self._archive.raise_fence(partition, one.fence)
                self._fences[partition] = one.fence
            await self._archive_stretch(partition, batch.records[one.start : one.end], one.fence)

    async def _archive_stretch(self, partition: int, records: Sequence[LogRecord], fence: int) -> None:
        began_ns = 0 if self._spans is None else self._spans.now_ns()
        reading = read_batch(records, fence)
        doubtful = self._doubtful(partition, reading.messages.values())
        asked = list(dict.fromkeys([*doubtful, *targets_elsewhere(reading)]))
        self._in_doubt.add(partition)  # until it is done: what a failure leaves is looked up again
        known = dict(zip(asked, await self._archive.records(asked), strict=True))
        lost = apply_operations(reading, known)
        if lost:
            log.error("%d targets of edits or recalls are nowhere; the first: %s", len(lost), lost[0])
            metrics.TARGETS_MISSING.inc(len(lost))
        fresh = drop_known(reading, known)
        await self._bury(partition, reading.poison)
        last = records[-1].offset
        await self._archive.store(partition, fresh, last)
        failpoints.hit("archiver.watermark_published")
        if self._spans is not None:
            own = (one for one in fresh if not one.revision)  # what it edits has had its span long ago
            kept = ((one.tenant_id, decode_message(one.record).message_id) for one in own)
            self._spans.note(Stage.ARCHIVE, began_ns, kept, outbox_partition=partition)
        self._covered[partition] = last
        self._in_doubt.discard(partition)
        self._remember(reading.messages.values())
        self._on_covered(partition, reading.messages.values())
        metrics.count(len(fresh), reading.repeated, len(reading.poison), reading.fenced)
        if reading.committed_at:
            metrics.AGE_SECONDS.observe(max(0, self._now_ms() - reading.committed_at) / 1000)

    def _doubtful(self, partition: int, messages: Iterable[ArchivedMessage]) -> list[Address]:
        """What has to be looked up. The store itself lets the first record of an address stand; this finds
        the second one, so that it can be reported, and saves writing what is there."""
        newest, all_of_them = self._newest.get, partition in self._in_doubt
        return [
            (one.tenant_id, one.conversation_id, one.conversation_seq)
            for one in messages
            if all_of_them
            or one.revision
            or one.conversation_seq <= (newest((one.tenant_id, one.conversation_id)) or 0)
        ]

    def _remember(self, messages: Iterable[ArchivedMessage]) -> None:
        newest: dict[tuple[str, str], int] = {}
        for one in messages:
            key = (one.tenant_id, one.conversation_id)
            last = newest.get(key) or self._newest.get(key) or 0
            newest[key] = max(last, one.conversation_seq)
        self._newest.update(newest)

    async def _bury(self, partition: int, poison: Sequence[tuple[LogRecord, str]]) -> None:
        """Send what was not sent before: an archive that refuses writes for an hour must not multiply it."""
        done = self._buried.get(partition, -1)
        letters = [Poison(self._topic, partition, one, cause) for one, cause in poison if one.offset > done]
        if letters:
            await self._poison.send(letters)
            self._buried[partition] = max(letter.record.offset for letter in letters)

    def _require_continuation(self, batch: LogBatch) -> None:
        covered = self._covered.get(batch.partition)
        if covered is None:
            raise InvariantViolation(f"{self._topic}[{batch.partition}]: a batch before its start position")
        if batch.previous_offset > covered:
            raise InvariantViolation(
                f"{self._topic}[{batch.partition}]: a batch after offset {batch.previous_offset} does not "
                f"continue the archive watermark {covered}: records in between are missing"
            )
