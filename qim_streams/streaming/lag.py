"""How far a worker is behind its logs, in records and in seconds, per owned partition.

The seconds are those since the log ended where the worker has not come to yet: the ends seen at each look are
kept until they are passed. So they need neither clocks in records nor a reader of them, and say the same for
a partition that stands still and for one that is merely slow. Resolution: the interval of the looks.

Pure, but for the gauges. Spec: §13.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from faust.types import TP

from qim_streams.streaming import metrics

ENDS_MAX: Final = 600  # per partition; older ones are thinned out, which rounds the seconds down


class Lag(NamedTuple):
    """Records and seconds that a partition is behind."""

    records: int
    seconds: float


class LagWatch:
    """The lag of the partitions of one worker. Time comes in as an argument, seconds of any clock."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._ends: dict[TP, deque[tuple[float, int]]] = {}

    def reset(self) -> None:
        """A new assignment begins: what is not ours any more shows no lag."""
        for tp in self._ends:
            self._show(tp, Lag(0, 0.0))
        self._ends.clear()

    def note(self, seen: Iterable[tuple[TP, int | None, int | None]], now_s: float) -> dict[TP, Lag]:
        """Take a look: (partition, next offset to do, next offset of the log) of each. None: unknown."""
        lags = {}
        for tp, done, end in seen:
            if done is None or end is None:
                continue
            lags[tp] = self._lag(tp, done, end, now_s)
            self._show(tp, lags[tp])
        return lags

    def _lag(self, tp: TP, done: int, end: int, now_s: float) -> Lag:
        ends = self._ends.setdefault(tp, deque())
        if not ends or end > ends[-1][1]:
            ends.append((now_s, end))
            if len(ends) > ENDS_MAX:
                self._ends[tp] = ends = deque(list(ends)[1::2])
        while ends and ends[0][1] <= done:
            ends.popleft()
        return Lag(max(0, end - done), now_s - ends[0][0] if ends else 0.0)

    def _show(self, tp: TP, lag: Lag) -> None:
        labels = (self._role, tp.topic, str(tp.partition))
        metrics.LAG_RECORDS.labels(*labels).set(lag.records)
        metrics.LAG_SECONDS.labels(*labels).set(lag.seconds)
