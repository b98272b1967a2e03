"""Crowd: how many wait to sign on, whom to send away, and when he should come again.

A queue that is longer than what is served within `WAIT_S` only makes everybody late: past their deadlines,
what was done for them is thrown away and asked for again. So whoever comes then is sent away, with a time
of his own: those who were sent away are lined up at the rate at which sign-ons are done at present, and
come back one after the other instead of all at once. The first to be refused is the first to be asked back.

The rate is measured while somebody waits: completions per second, as the machine manages now.

Invariants: pure but for the counters; times come in through `now_s`; every wait is between `AGAIN_MIN_MS` and
`AGAIN_MAX_MS`, whatever was booked before.

Spec: §7; reliability P16, T-X7.
"""

from collections.abc import Callable
from typing import Final

WAIT_S: Final = 2.0  # of the queue, at the present rate
WAITING_MIN: Final = 32
WAITING_MAX: Final = 512
RATE_FIRST: Final = 250.0  # sign-ons a second until one was measured
RATE_MIN: Final = 4.0
WINDOW_S: Final = 0.5
_KEEP: Final = 0.6  # weight of the past per window
AGAIN_MIN_MS: Final = 500
AGAIN_MAX_MS: Final = 60_000
EARLY: Final = 0.8  # clients add up to half of what they are told, a quarter on average


class Crowd:
    """`now_s` is a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.waiting = 0  # sign-ons that are not answered yet
        self.rate = RATE_FIRST
        self._done, self._since_s = 0, now_s()
        self._booked_s = 0.0  # when the last one who was sent away comes again

    @property
    def room(self) -> int:
        """How many may wait."""
        return round(min(WAITING_MAX, max(WAITING_MIN, self.rate * WAIT_S)))

    def enter(self) -> None:
        """Somebody waits."""
        if not self.waiting:
            self._done, self._since_s = 0, self._now_s()  # a quiet time says nothing about the rate
        self.waiting += 1

    def leave(self) -> None:
        """Somebody was answered."""
        self.waiting -= 1
        self._done += 1
        elapsed_s = self._now_s() - self._since_s
        if elapsed_s >= WINDOW_S:
            measured = max(RATE_MIN, self._done / elapsed_s)
            self.rate = _KEEP * self.rate + (1 - _KEEP) * measured
            self._done, self._since_s = 0, self._now_s()

    def again_ms(self) -> int:
        """0: there is room. Else when to come again; that place in line is taken then."""
        return 0 if self.waiting < self.room else self.line_up_ms()

    def line_up_ms(self) -> int:
        """When to come again, whether there is room or not."""
        now_s = self._now_s()
        first_s = now_s + AGAIN_MIN_MS / 1_000
        last_s = now_s + AGAIN_MAX_MS / 1_000
        self._booked_s = min(last_s, max(first_s, self._booked_s) + EARLY / self.rate)
        return round((self._booked_s - now_s) * 1_000)
