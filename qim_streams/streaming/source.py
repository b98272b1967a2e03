"""What a role is to the worker, and what it is handed: chunks, batches, and the calls between them.

Spec: §5 (order), §14.2 (expected_previous as read).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from qim_streams.errors import Policy, policy_of
from qim_streams.joined import all_of


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records of one partition as the consumer hands them out.

    It covers the offsets from `from_offset` to its last record, all inclusive: offsets in between
    without a record do not exist in the log. `hole_proved` says so for the ones before the first.
    """

    partition: int
    epoch: int
    generation: int
    from_offset: int
    hole_proved: bool
    records: list[Any]


def cut(whole: Chunk, records_max: int) -> list[Chunk]:
    """`whole` in chunks of at most `records_max` records, in order.

    Offsets missing between two of them are holes of the log: the broker left them out of one answer.
    """
    records, at, hole_proved = whole.records, whole.from_offset, whole.hole_proved
    if len(records) <= records_max:
        return [whole]
    chunks = []
    for begin in range(0, len(records), records_max):
        piece = records[begin : begin + records_max]
        hole_proved = hole_proved or (begin > 0 and piece[0].offset != at)
        chunks.append(replace(whole, from_offset=at, hole_proved=hole_proved, records=piece))
        at, hole_proved = piece[-1].offset + 1, False
    return chunks


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
Handler = Callable[[Sequence[SourceBatch]], Awaitable[None]]
Release = Callable[[frozenset[int]], Awaitable[None]]
Checkpoint = Callable[[Sequence[int]], Awaitable[Mapping[int, int] | None]]
Acknowledge = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SourceRole:
    """What a role does with one of its sources.

    `start_position(partition)` names the next offset to process (0: nothing was processed yet); it is
    asked at each assignment, may wait for a lease, and is cancelled when the partition is revoked.
    `handle(batches)` gets at most one batch per partition, and returns when everything they cause is
    durable; `checkpoint(partitions)`, if given, when the positions after all batches handled so far are,
    too: what it does not cover is handed out again after a crash. A role that goes on with a batch after
    `handle` returned says up to which offset (inclusive) each partition is done, and is asked again soon
    where that is not all; None means all. Both are called again with the same
    arguments after a transient failure, and may run at once for different partitions.
    `on_released(partitions)` is called after the lanes of an assignment have stopped and their offsets
    were committed, before the group goes on; it shares their deadline.
    """

    start_position: StartPosition
    handle: Handler
    on_released: Release | None = None
    checkpoint: Checkpoint | None = None
    transient: tuple[type[Exception], ...] = ()

    def is_transient(self, error: BaseException) -> bool:
        """Whether the same call may succeed later."""
        return isinstance(error, self.transient) or policy_of(error) is Policy.RETRY


class SweepService(Protocol):
    """A stage that works by sweeps and checkpoints; each method fills a field of `SourceRole`."""

    async def start_position(self, partition: int, /) -> int:
        """See `SourceRole.start_position`."""

    async def handle(self, batches: Sequence[SourceBatch], /) -> None:
        """See `SourceRole.handle`."""

    async def release(self, partitions: frozenset[int], /) -> None:
        """See `SourceRole.on_released`."""

    async def checkpoint(self, partitions: Sequence[int], /) -> Mapping[int, int] | None:
        """See `SourceRole.checkpoint`."""


def served_by(service: Callable[[], SweepService]) -> SourceRole:
    """The role of a service that is made later: `service` is asked for it at each call."""
    return SourceRole(
        lambda partition: service().start_position(partition),
        lambda batches: service().handle(batches),
        lambda partitions: service().release(partitions),
        lambda partitions: service().checkpoint(partitions),
    )


def one_by_one(handle: Callable[[SourceBatch], Awaitable[None]]) -> Handler:
    """A handler of sweeps for a role that has nothing to gain from seeing several partitions at once."""

    async def handle_all(batches: Sequence[SourceBatch]) -> None:
        if len(batches) == 1:
            await handle(batches[0])
            return
        # All of them end before the call does: it may be repeated, and never beside itself.
        await all_of([handle(batch) for batch in batches])

    return handle_all
