"""How long work may wait for more of its kind: not at all while it is quiet, a few milliseconds under load.

A request between processes has a price that does not depend on what it brings: a system call, a wake-up of
a process that has gone cold, a batch through the whole stage. At low rates it goes at once: latency is all
that counts. At high rates work comes faster than a stage can turn around for each piece of it, and a rest of
a few milliseconds makes one request out of ten. So the wait grows with the rate that was seen, up to a bound:
at low rates with its root, since there even two pieces in a request instead of one are half the price (at 300
to 1,000 messages a second 12 to 20 % of a stage's CPU, and a shorter tail), above with the rate itself.

Pure: time comes in as an argument.
"""

from collections.abc import Callable
from math import sqrt
from typing import Final, NamedTuple

QUIET_PER_S: Final = 150.0  # pieces of work a second below which nothing waits
WAIT_PER_ROOT: Final = 1 / 4.0  # milliseconds of wait per root of pieces a second
WAIT_PER_RATE: Final = 1 / 250.0  # milliseconds of wait per piece a second
WINDOW_S: Final = 0.1
_KEEP: Final = 0.5  # weight of the past per window

FETCH_WAIT_MAX_MS: Final = 40
UNHURRIED_WAIT_MAX_MS: Final = 600  # what a consumer that nobody waits for may wait longer under load
UNHURRIED_PER_RATE: Final = 1 / 10.0
FETCH_MIN_BYTES: Final = 256 * 1024


def hurried(per_s: float) -> float:
    """Milliseconds to wait where somebody waits for the work, at `per_s` pieces a second."""
    return max(per_s * WAIT_PER_RATE, sqrt(per_s) * WAIT_PER_ROOT)


def unhurried(per_s: float) -> float:
    """Milliseconds to wait where nobody does."""
    return per_s * UNHURRIED_PER_RATE


class Pace:
    """The pace of a sender or reader. `wait_max_ms`: the longest rest; `law`: milliseconds by the rate."""

    def __init__(self, wait_max_ms: float, law: Callable[[float], float] = hurried) -> None:
        self._wait_max_ms, self._law = wait_max_ms, law
        self._since, self._count, self._rate = 0.0, 0, 0.0

    def note(self, count: int, now_s: float) -> float:
        """Count work done at `now_s` (a monotonic clock); milliseconds to rest before the next, or 0."""
        self._count += count
        elapsed = now_s - self._since
        if elapsed >= WINDOW_S:
            keep = _KEEP ** min(elapsed / WINDOW_S, 16.0)
            self._rate = keep * self._rate + (1.0 - keep) * self._count / elapsed
            self._since, self._count = now_s, 0
        if self._rate < QUIET_PER_S:
            return 0.0
        return min(self._wait_max_ms, self._law(self._rate))


class Hold(NamedTuple):
    """What a fetch asks of the broker: answer when there are `min_bytes`, or after `wait_ms`."""

    min_bytes: int
    wait_ms: int


class FetchPace:
    """What the fetches of one consumer ask for.

    `idle` is what a fetch asks for when it is quiet. Under load the broker holds a fetch instead of answering
    it at once. A consumer whose fetches wait for more than one byte is in no hurry: it waits for its bytes at
    all times, and the longer the more comes.
    """

    def __init__(self, idle: Hold, *, wait_max_ms: int = FETCH_WAIT_MAX_MS) -> None:
        self._idle, self._unhurried = idle, idle.min_bytes > 1
        self._pace = Pace(UNHURRIED_WAIT_MAX_MS, unhurried) if self._unhurried else Pace(wait_max_ms)

    def note(self, records: int, now_s: float) -> Hold:
        """Count what a fetch brought at `now_s`; what the next one should ask for."""
        wait_ms = round(self._pace.note(records, now_s))
        if self._unhurried:
            return self._idle._replace(wait_ms=self._idle.wait_ms + wait_ms)
        return Hold(FETCH_MIN_BYTES, wait_ms) if wait_ms else self._idle
