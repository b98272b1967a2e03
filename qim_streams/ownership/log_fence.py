"""The fence in the Outbox: which records of a partition count, whoever appended them.

Epochs in Redis refuse what an old owner writes there. The log refuses nothing: what a paused owner had handed
to its producer arrives whenever it wakes. So an owner appends a *barrier*, a record without a message, before
it looks at the log and before it serves; and every reader drops a record whose epoch is older than that of a
barrier before it. Since all readers see the same records in the same order, all drop the same ones.

A reader that goes on in the middle of a partition has to know the fence as of its position: it keeps the
epoch beside it, in one step (fan-out, hot tier) or in the right order (archive).

Pure. Spec: §14.4, §14.6.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from qim_streams.errors import RecordError
from qim_streams.records import OUTBOX_BARRIER, OutboxRecord, decode_outbox

BARRIER_KEY = b"\0barrier"  # of no conversation: an id has no NUL
NO_FENCE = 0
_EPOCH_MAX = 2**63 - 1


class Keyed(Protocol):
    """A record of a log."""

    @property
    def key(self) -> bytes | None:
        """Its key."""

    @property
    def value(self) -> bytes | None:
        """Its value."""


R = TypeVar("R", bound=Keyed)


class Stretch(NamedTuple):
    """Consecutive records under one fence. `barrier`: the first record is one, and raises the fence."""

    fence: int
    barrier: bool
    start: int  # index of the first record
    end: int  # index behind the last one


def encode_barrier(epoch: int) -> bytes:
    """The value of the barrier of an epoch; its key is `BARRIER_KEY`."""
    return OutboxRecord(b"", epoch, OUTBOX_BARRIER, None).encode()


def barrier_epoch(key: bytes | None, value: bytes | None) -> int | None:
    """The epoch of a barrier, None for any other record. RecordError for the key of one with other bytes."""
    if key != BARRIER_KEY:
        return None
    record = decode_outbox(value or b"")
    if record.flags != OUTBOX_BARRIER or record.message or not 0 < record.fencing_epoch <= _EPOCH_MAX:
        raise RecordError("OutboxRecord: the key of a barrier, and something else in it")
    return record.fencing_epoch


def raised(fence: int, key: bytes | None, value: bytes | None) -> int:
    """The fence behind a record. One that only looks like a barrier changes nothing: it is poison."""
    try:
        epoch = barrier_epoch(key, value)
    except RecordError:
        return fence
    return fence if epoch is None else max(fence, epoch)


def stretches(fence: int, records: Sequence[Keyed]) -> Iterator[Stretch]:
    """`records` cut in front of every barrier that raises the fence, which stands at `fence` before them."""
    start, is_barrier = 0, False
    for index, record in enumerate(records):
        if record.key != BARRIER_KEY:
            continue
        after = raised(fence, record.key, record.value)
        if after == fence:
            continue
        if index > start:
            yield Stretch(fence, is_barrier, start, index)
        fence, start, is_barrier = after, index, True
    if len(records) > start:
        yield Stretch(fence, is_barrier, start, len(records))
