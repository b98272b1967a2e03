"""Rates, lags and health from looks at logs. Pure: time comes in, seconds of any steady clock.

A rate is taken over the looks of the last `WINDOW_S`. The seconds of a lag are those since the log ended
where the stage is now: the ends seen at each look are kept until they are passed, so no clock of a record and
no reading of records is needed. Both are as fine as the looks are frequent.

Spec: §13.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from qim_streams.console.model import Health

WINDOW_S: Final = 10.0
LOOKS_MAX: Final = 64  # within the window
ENDS_MAX: Final = 600  # older ones are thinned out, which rounds the seconds down
BEHIND_S: Final = 5.0  # a healthy stage is far below

_ORDER: Final[tuple[Health, ...]] = ("off", "ok", "unknown", "warn", "bad")


class Pace(NamedTuple):
    """Rates per second (None before the second look) and lag in records and seconds (None: not known)."""

    in_per_s: float | None
    done_per_s: float | None
    lag_records: int | None
    lag_s: float | None


class Track:
    """The looks at one partition."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int, int | None]] = deque(maxlen=LOOKS_MAX)
        self._ends: deque[tuple[float, int]] = deque()

    def note(self, at_s: float, end: int, done: int | None) -> None:
        """Take a look: next offset of the log, next one to be done (None: not known)."""
        if self._looks and end < self._looks[-1][1]:  # another log under the same name
            self._looks.clear()
            self._ends.clear()
        self._looks.append((at_s, end, done))
        while len(self._looks) > 2 and at_s - self._looks[0][0] > WINDOW_S:
            self._looks.popleft()
        if not self._ends or end > self._ends[-1][1]:
            self._ends.append((at_s, end))
            if len(self._ends) > ENDS_MAX:
                self._ends = deque(list(self._ends)[1::2])
        while done is not None and self._ends and self._ends[0][1] <= done:
            self._ends.popleft()

    def pace(self) -> Pace:
        """What the looks say."""
        if not self._looks:
            return Pace(None, None, None, None)
        at_s, end, done = self._looks[-1]
        lag = None if done is None else max(0, end - done)
        waits = None if lag is None else (at_s - self._ends[0][0] if self._ends and lag else 0.0)
        first = self._looks[0]
        passed = at_s - first[0]
        if passed <= 0:
            return Pace(None, None, lag, waits)
        rate = None if done is None or first[2] is None else max(0, done - first[2]) / passed
        return Pace((end - first[1]) / passed, rate, lag, waits)


def partition_health(
    owner: str | None, lag_records: int | None, lag_s: float | None, behind_max_s: float
) -> tuple[Health, str | None]:
    """The health of a stage's partition and why; `behind_max_s` 0: however far behind it may be."""
    if owner is None:
        if lag_records:
            return "bad", f"no worker has it, and {lag_records} records wait"
        return "warn", "no worker has it"
    if lag_records is None or lag_s is None:
        return "unknown", "its position is not known"
    if behind_max_s and lag_s > behind_max_s:
        return "bad", f"{lag_s:.0f} s behind its log"
    if lag_s > BEHIND_S:
        return "warn", f"{lag_s:.0f} s behind its log"
    return "ok", None


def worst(healths: Iterable[Health]) -> Health:
    """The worst of them; of none: off."""
    return max(healths, key=_ORDER.index, default="off")


def added(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def largest(values: Iterable[float | None]) -> float | None:
    """The largest of what is known; None when nothing is."""
    return max((value for value in values if value is not None), default=None)
