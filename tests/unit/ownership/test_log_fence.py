"""The fence in a log: barriers, what they raise, and where a batch is cut. T-Z1, I14."""

from typing import NamedTuple

import pytest

from qim_streams.errors import RecordError
from qim_streams.ownership.log_fence import (
    BARRIER_KEY,
    Stretch,
    barrier_epoch,
    encode_barrier,
    raised,
    stretches,
)
from qim_streams.records import OUTBOX_BARRIER, OUTBOX_RELAYED, OutboxRecord


class Row(NamedTuple):
    """A record of a log."""

    key: bytes | None
    value: bytes | None


MESSAGE = Row(b"acme\0room", OutboxRecord(b"m", 9, 0, None).encode())


def barrier(epoch: int) -> Row:
    return Row(BARRIER_KEY, encode_barrier(epoch))


def test_a_barrier_tells_its_epoch_and_nothing_else_is_one() -> None:
    assert barrier_epoch(*barrier(1_790_000_000)) == 1_790_000_000
    assert barrier_epoch(*MESSAGE) is None
    assert barrier_epoch(None, None) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        OutboxRecord(b"m", 9, OUTBOX_BARRIER, None).encode(),
        OutboxRecord(b"", 9, OUTBOX_RELAYED, None).encode(),
        OutboxRecord(b"", 0, OUTBOX_BARRIER, None).encode(),
        OutboxRecord(b"", 2**63, OUTBOX_BARRIER, None).encode(),
    ],
)
def test_the_key_of_a_barrier_with_other_bytes_is_poison_and_raises_nothing(value: bytes | None) -> None:
    with pytest.raises(RecordError):
        barrier_epoch(BARRIER_KEY, value)
    assert raised(4, BARRIER_KEY, value) == 4


def test_the_fence_only_rises() -> None:
    assert raised(4, *barrier(5)) == 5
    assert raised(4, *barrier(3)) == 4
    assert raised(4, *MESSAGE) == 4


def test_a_batch_is_cut_in_front_of_each_barrier_that_raises() -> None:
    rows = [MESSAGE, barrier(5), MESSAGE, barrier(4), MESSAGE, barrier(7), barrier(8)]
    assert list(stretches(4, rows)) == [
        Stretch(4, False, 0, 1),
        Stretch(5, True, 1, 5),
        Stretch(7, True, 5, 6),
        Stretch(8, True, 6, 7),
    ]
    assert list(stretches(9, rows)) == [Stretch(9, False, 0, 7)]
    assert list(stretches(0, [barrier(1)])) == [Stretch(1, True, 0, 1)]
    assert list(stretches(3, [])) == []
