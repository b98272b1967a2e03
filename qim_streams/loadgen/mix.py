"""The mixed workload and what it is made from; traces as schedules.

Pure.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from qim_streams.demo.traces import SENDS, Trace
from qim_streams.loadgen.message import BODY_BYTES_MIN

SizeDraw = Callable[[Random], int]


class SizeTable:
    """Body sizes drawn from a table of equally likely ranges: `ends` are quantiles at equal steps."""

    def __init__(self, ends: Sequence[int]) -> None:
        self._ends = ends

    def __call__(self, rng: Random) -> int:
        """One size, at least what a header needs."""
        at = rng.randrange(len(self._ends) - 1)
        return max(BODY_BYTES_MIN, rng.randint(self._ends[at], self._ends[at + 1]))


class EvenSize:
    """Always the same size."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, _: Random) -> int:
        """The size."""
        return self._size


def even_size(size: int) -> SizeDraw:
    """A draw that always gives `size`."""
    return EvenSize(size)


class MixPart(NamedTuple):
    """`weight` of the messages go to conversations of `members`; a user is in `groups_per_user` of them."""

    weight: float
    members: int
    groups_per_user: int
    size: SizeDraw


ROOM_SIZES = SizeTable((6, 13, 21, 30, 42, 62, 84, 112, 158, 216, 1_900))
DIRECT_SIZES = SizeTable((8, 15, 22, 30, 38, 48, 60, 76, 104, 150, 600))
MIX = (
    MixPart(0.60, 2, 0, DIRECT_SIZES),
    MixPart(0.33, 10, 4, DIRECT_SIZES),
    MixPart(0.07, 100, 2, ROOM_SIZES),
)


def trace_rows(trace: Trace, speed: float) -> Iterator[tuple[int, int, int]]:
    """(ns from the start, user, body bytes) of every message and reply, played `speed` times faster."""
    first: int | None = None
    for row in trace.rows:
        if row.kind in SENDS:
            first = row.at_ms if first is None else first
            yield int((row.at_ms - first) * 1e6 / speed), row.user, max(BODY_BYTES_MIN, row.body_bytes)
