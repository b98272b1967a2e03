"""HistoryArchiver: the Outbox, batch by batch, into the archive. Not on the way of SEND_ACK.

One batch, in this order (each step is safe to repeat, so a kill between any two of them is too):

1. read the records; what cannot be read is poison;
2. ask the archive which of the messages it holds; one with other bytes is poison;
3. poison into the dead letters, awaited;
4. the new messages durable, then the watermark = offset of the batch's last record;
5. return, which acknowledges the batch. The group's offset is a hint only: a partition starts at
   archive watermark + 1.

Invariants: the watermark covers a prefix without a gap (a batch that does not continue it is refused
with InvariantViolation); a batch that cannot be stored is never acknowledged and moves nothing.

Spec: §1 ARCHIVED, §3, §14.8.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol

from qim_streams import failpoints
from qim_streams.archive import metrics
from qim_streams.archive.ports import Archive
from qim_streams.archive.rules import LogRecord, drop_known, read_batch
from qim_streams.errors import InvariantViolation, RecordError

log = logging.getLogger(__name__)


class OutboxBatch(Protocol):
    """Consecutive records of one Outbox partition, as the streaming layer hands them over."""

    @property
    def partition(self) -> int: ...
    @property
    def records(self) -> list[Any]: ...  # of LogRecord
    @property
    def previous_offset(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...


class DeadLetters(Protocol):
    """Where poison goes."""

    async def put(self, record: LogRecord, error: RecordError) -> None:
        """Make the record durable among the dead letters, with cause and coordinates."""


class HistoryArchiver:
    """Archives what it is handed. One instance serves any number of partitions, one batch each at a time."""

    def __init__(self, archive: Archive, dead_letters: DeadLetters, *, now_ms: Callable[[], int]) -> None:
        self._archive = archive
        self._dead_letters = dead_letters
        self._now_ms = now_ms
        self._covered: dict[int, int] = {}

    async def start_position(self, partition: int) -> int:
        """The next Outbox offset to archive: archive watermark + 1, whatever the group committed."""
        watermark = await self._archive.watermark(partition)
        self._covered[partition] = watermark
        return watermark + 1

    async def release(self, partitions: frozenset[int]) -> None:
        """Forget partitions that were revoked: another archiver may move their watermark."""
        for partition in partitions:
            self._covered.pop(partition, None)

    async def handle(self, batch: OutboxBatch) -> None:
        """Archive a batch and publish the watermark. StoreUnavailable: nothing published, call again."""
        self._require_continuation(batch)
        reading = read_batch(batch.records)
        known = await self._archive.records(list(reading.messages))
        fresh = drop_known(reading, known)
        for record, error in reading.poison:
            log.error("outbox[%d] offset %d to the dead letters: %s", batch.partition, record.offset, error)
            await self._dead_letters.put(record, error)
        await self._archive.store(batch.partition, fresh, batch.last_offset)
        failpoints.hit("archiver.watermark_published")
        self._covered[batch.partition] = batch.last_offset
        metrics.count(len(fresh), reading.repeated, len(reading.poison))
        if reading.committed_at:
            metrics.AGE_SECONDS.observe(max(0, self._now_ms() - reading.committed_at) / 1000)

    def _require_continuation(self, batch: OutboxBatch) -> None:
        covered = self._covered.get(batch.partition)
        if covered is None:
            raise InvariantViolation(f"outbox[{batch.partition}]: a batch before its start position")
        if batch.previous_offset > covered:
            raise InvariantViolation(
                f"outbox[{batch.partition}]: a batch from {batch.first_offset} does not continue the "
                f"archive watermark {covered}: records in between are missing"
            )
