"""The mixed workload and what it is made from; traces as schedules.

Body sizes are measured: `ROOM_SIZES` are the twentieths of the 5,630 messages and replies of the two real
rooms in ``tests/data`` (median 63 bytes, P90 222), taken together. For the order of magnitude a public
figure agrees: 40 to 60 characters for an average WhatsApp text
(https://chatwrapped.online/guides/whatsapp-chat-statistics-explained).

The shares are assumed, not measured: public studies that were found describe single groups or a hundred
volunteers and give no share that carries over. 60 % of the messages are direct, 33 % go to small groups
of 10 (a family, a team), 7 % to groups of 100 (the rooms of ``tests/data`` had 479 and 589 members over
their years, most of them silent: 139 and 78 ever wrote; WuKongIM's published stress test uses groups of
100, https://docs.githubim.com/zh/getting-started/stress-report.md). By deliveries that is 6 %, 28 % and
66 %: a mixed second costs mostly fan-out, as in a real system. Every user is in about 4 small groups and
2 of the large ones.

Pure.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from qim_streams.demo.traces import SENDS, Trace
from qim_streams.loadgen.message import BODY_BYTES_MIN

SizeDraw = Callable[[Random], int]


_TAIL = 4  # power of the draw in the last range


class SizeTable:
    """Body sizes drawn from a table of equally likely ranges: `ends` are quantiles at equal steps.

    The last range is wide and its upper part is rare: sizes in it are drawn on a logarithmic scale, most
    of them low, so that P99 comes out as measured (about 600 bytes).
    """

    def __init__(self, ends: Sequence[int]) -> None:
        self._ends = ends

    def __call__(self, rng: Random) -> int:
        """One size, at least what a header needs."""
        at = rng.randrange(len(self._ends) - 1)
        low, high = self._ends[at], self._ends[at + 1]
        if at == len(self._ends) - 2:
            return int(low * (high / low) ** rng.random() ** _TAIL)
        return max(BODY_BYTES_MIN, rng.randint(low, high))


@dataclass(frozen=True, slots=True)
class EvenSize:
    """Always the same size."""

    size: int

    def __call__(self, _: Random) -> int:
        """The size."""
        return self.size


class MixPart(NamedTuple):
    """`weight` of the messages go to conversations of `members`; a user is in `groups_per_user` of them."""

    weight: float
    members: int
    groups_per_user: int
    size: SizeDraw


ROOM_SIZES = SizeTable(
    (0, 5, 11, 19, 25, 31, 38, 43, 49, 56, 63, 71, 81, 90, 104, 120, 141, 173, 222, 320, 2_018)
)
MIX = (
    MixPart(0.60, 2, 0, ROOM_SIZES),
    MixPart(0.33, 10, 4, ROOM_SIZES),
    MixPart(0.07, 100, 2, ROOM_SIZES),
)


def trace_rows(trace: Trace, speed: float) -> Iterator[tuple[int, int, int]]:
    """(ns from the start, user, body bytes) of every message and reply, played `speed` times faster."""
    first: int | None = None
    for row in trace.rows:
        if row.kind in SENDS:
            first = row.at_ms if first is None else first
            yield int((row.at_ms - first) * 1e6 / speed), row.user, max(BODY_BYTES_MIN, row.body_bytes)
