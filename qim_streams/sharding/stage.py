"""A stage on the dispatch log, in positions of mailboxes.

The mailbox stage and the session projection know one number: the offset in the dispatch partition, which is
the mailbox_seq. For a shard that a split made, the mailbox_seq is the offset plus the shard's `first`.
`ShiftedStage` stands between the log and the stage and adds it, so that everything behind it (W, pages,
tables, entries, pushes, checkpoints) is in mailbox_seqs. For shards of the beginning it passes everything
through untouched.

Invariants: "nothing" stays nothing (-1, and 0 as the next one); a partition whose `first` nobody knows is not
served.

Spec: §2, §11.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.log_ports import LogBatch, LogRecord, Poison, PoisonSink
from qim_streams.sharding.follower import Mappings

Offset = Callable[[int], Awaitable[int]]


class Stage(Protocol):
    """What is shifted (`streaming.source.SweepService`)."""

    async def start_position(self, partition: int, /) -> int:
        """The next position."""

    async def handle(self, batches: Sequence[Any], /) -> None:
        """Handle batches."""

    async def release(self, partitions: frozenset[int], /) -> None:
        """Give partitions up."""

    async def checkpoint(self, partitions: Sequence[int], /) -> Mapping[int, int] | None:
        """Make positions durable; up to where each partition is done, None for everything."""


class ShiftedRecord(NamedTuple):
    """A record at its mailbox_seq."""

    key: bytes | None
    value: bytes | None
    offset: int
    original: LogRecord


class ShiftedBatch(NamedTuple):
    """A batch in mailbox_seqs."""

    partition: int
    records: Sequence[LogRecord]
    previous_offset: int


class ShiftedStage:
    """`Stage` around the one that `stage` gives."""

    def __init__(self, mappings: Mappings, stage: Callable[[], Stage]) -> None:
        self._mappings, self._stage = mappings, stage

    async def start_position(self, partition: int) -> int:
        """The next offset of the log."""
        placement = await self._mappings.load()
        following = await self._stage().start_position(partition)
        return max(0, following - placement.first_of(partition))

    async def handle(self, batches: Sequence[LogBatch]) -> None:
        """Hand batches over in mailbox_seqs."""
        groups = self._mappings.current.mapping.groups
        if all(batch.partition < groups for batch in batches):
            await self._stage().handle(batches)
            return
        await self._stage().handle([await self._shifted(batch) for batch in batches])

    async def release(self, partitions: frozenset[int]) -> None:
        """Pass it on."""
        await self._stage().release(partitions)

    async def checkpoint(self, partitions: Sequence[int]) -> Mapping[int, int] | None:
        """Pass it on; what is done, as offsets of the log."""
        reached = await self._stage().checkpoint(partitions)
        if reached is None:
            return None
        first_of = self._mappings.current.first_of
        return {partition: max(-1, seq - first_of(partition)) for partition, seq in reached.items()}

    async def _shifted(self, batch: LogBatch) -> LogBatch:
        first = await self._first_of(batch.partition)
        if not first:
            return batch
        previous = batch.previous_offset
        return ShiftedBatch(
            batch.partition,
            [ShiftedRecord(one.key, one.value, one.offset + first, one) for one in batch.records],
            previous if previous < 0 else previous + first,
        )

    async def _first_of(self, partition: int) -> int:
        placement = self._mappings.current
        if partition < placement.mapping.groups or placement.first_of(partition):
            return placement.first_of(partition)
        first = (await self._mappings.load()).first_of(partition)
        if not first:
            why = f"dispatch partition {partition} holds records, and no split has made that shard"
            raise StoreUnavailable(why, Outcome.NOT_APPLIED)
        return first


def shifted_offset(mappings: Mappings, offset: Offset) -> Offset:
    """`offset(partition)`, a next or first offset of the log, as a mailbox_seq."""

    async def seq(partition: int) -> int:
        found = await offset(partition)
        return found + mappings.current.first_of(partition) if found else 0

    return seq


class OriginalPoison:
    """`PoisonSink` that is given records at mailbox_seqs and passes them on as they lie in the log."""

    def __init__(self, sink: PoisonSink) -> None:
        self._sink = sink

    async def send(self, poison: Sequence[Poison]) -> None:
        """See the port."""
        await self._sink.send(
            [
                Poison(one.topic, one.partition, one.record.original, one.cause)
                if isinstance(one.record, ShiftedRecord)
                else one
                for one in poison
            ]
        )
