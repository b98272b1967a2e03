"""A worker that stands still ends itself.

`StallWatch` looks at owned partitions once per tick and names the first that has records, room and no
delivery for too long, or acknowledged offsets that are not committed for too long, or a position above
the end of the log. Time is counted in ticks, not by the clock: a process that was paused or a machine
that slept has not stalled. `LoopWatch` is a thread that ends the process when its event loop stops
turning.

Spec: §13 (a stall is bounded).
"""

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka.errors import KafkaError
from faust.types import TP

from qim_streams.streaming.doubt import die
from qim_streams.streaming.lag import Lag, LagWatch

if TYPE_CHECKING:
    from qim_streams.streaming.consumer import StreamConsumer

log = logging.getLogger(__name__)

WATCH_INTERVAL_S: Final = 1.0
_END_TIMEOUT_S: Final = 0.9  # below the interval
UNANSWERED_MIN: Final = 3
FROZEN_TICKS: Final = 5  # a request, a rebalance and a long batch fit in
_ABOVE_END_TICKS: Final = 5  # a new leader may know a lower end for a moment
_LOOP_INTERVAL_S: Final = 1.0


class PartitionView(NamedTuple):
    """What is known about an owned source partition at one tick. None: not known.

    `position` is the next offset to hand out, `fetched` the next one that the driver will ask for,
    `end` the next one to be written.
    """

    tp: TP
    position: int | None
    fetched: int | None
    end: int | None
    deliveries: int
    queued: int
    processed: int | None
    committed: int | None


class Verdict(NamedTuple):
    """What to do after a tick: end the process for `reason`, or seek `look_again` to their positions."""

    reason: str | None = None
    look_again: tuple[TP, ...] = ()


@dataclass(slots=True)
class _Stall:
    deliveries: int = -1
    idle: int = 0
    above_end: int = 0
    processed: int = -1
    uncommitted: int = 0


class StallWatch:
    """Counts ticks without progress per partition."""

    def __init__(self, stall_timeout_s: float, uncommitted_timeout_s: float, interval_s: float) -> None:
        self._idle_max = max(2, round(stall_timeout_s / interval_s))
        self._uncommitted_max = max(1, round(uncommitted_timeout_s / interval_s))
        self._stalls: dict[TP, _Stall] = {}

    def reset(self) -> None:
        """Forget everything: a new assignment begins."""
        self._stalls.clear()

    def tick(self, views: Sequence[PartitionView]) -> Verdict:
        """Count one interval and judge."""
        look_again = []
        for view in views:
            stall = self._stalls.setdefault(view.tp, _Stall())
            self._count_idle(view, stall)
            reason = self._idle(view, stall) or self._above_end(view, stall) or self._uncommitted(view, stall)
            if reason is not None:
                return Verdict(f"{view.tp.topic}[{view.tp.partition}]: {reason}")
            if stall.idle == self._idle_max // 2:
                look_again.append(view.tp)
        return Verdict(None, tuple(look_again))

    def frozen(self) -> list[tuple[TP, int]]:
        """Partitions that have records and deliver none for five ticks and more, and for how many."""
        return [(tp, stall.idle) for tp, stall in self._stalls.items() if stall.idle >= FROZEN_TICKS]

    def _count_idle(self, view: PartitionView, stall: _Stall) -> None:
        waiting = view.position is not None and view.end is not None and view.end > view.position
        if not waiting or view.queued or view.deliveries != stall.deliveries:
            stall.deliveries, stall.idle = view.deliveries, 0
            return
        stall.idle += 1
        if stall.idle >= self._idle_max and view.fetched is not None and view.fetched >= (view.end or 0):
            # We looked again half-way, and the driver read to the end without a record: the log ends
            # with offsets that hold none (control records, compacted ones). Nothing is missing.
            log.info("%s[%d]: the log ends with offsets that hold no record", *view.tp)
            stall.idle = 0

    def _idle(self, view: PartitionView, stall: _Stall) -> str | None:
        if stall.idle < self._idle_max:
            return None
        return f"records from {view.position} to {view.end} and no delivery for {stall.idle} ticks"

    def _above_end(self, view: PartitionView, stall: _Stall) -> str | None:
        above = view.position is not None and view.end is not None and view.end < view.position
        stall.above_end = stall.above_end + 1 if above else 0
        if stall.above_end < _ABOVE_END_TICKS:
            return None
        return f"position {view.position} is above the end of the log ({view.end}): re-created or truncated"

    def _uncommitted(self, view: PartitionView, stall: _Stall) -> str | None:
        committed = view.committed or 0
        behind = view.processed is not None and view.processed > committed
        # Without an answer for the end offsets the broker is away, and commits cannot succeed either.
        if not behind or view.end is None or committed > stall.processed:
            stall.processed, stall.uncommitted = committed, 0
            return None
        stall.uncommitted += 1
        if stall.uncommitted < self._uncommitted_max:
            return None
        return f"offsets up to {view.processed} are acknowledged, committed is still {committed}"


class RebalanceWatch:
    """Ends a worker whose rebalance or table recovery makes no progress at all."""

    def __init__(self, timeout_s: float, interval_s: float) -> None:
        self._ticks_max = max(2, round(timeout_s / interval_s))
        self._ticks = 0
        self._progress: tuple[int, int] | None = None

    def tick(self, busy: bool, progress: tuple[int, int]) -> Verdict | None:
        """Count one interval with `busy`; None unless it is time to give up."""
        if not busy or progress != self._progress:
            self._ticks, self._progress = 0, progress if busy else None
            return None
        self._ticks += 1
        if self._ticks < self._ticks_max:
            return None
        return Verdict(
            f"rebalance or recovery without progress for {self._ticks} ticks, {progress[1]} records left"
        )


class ConsumerWatch:
    """Looks at a consumer once per tick and does what the watches above decide."""

    def __init__(self, consumer: "StreamConsumer") -> None:
        spec = consumer.spec
        self._consumer = consumer
        self._stalls = StallWatch(spec.stall_timeout_s, spec.uncommitted_timeout_s, WATCH_INTERVAL_S)
        self._lag = LagWatch(spec.role)
        self._rebalance = RebalanceWatch(spec.recovery_stall_timeout_s, WATCH_INTERVAL_S)
        self._lags: dict[TP, Lag] = {}
        self._unanswered = 0  # looks in a row to which the broker gave no answer

    def reset(self) -> None:
        """A new assignment begins."""
        self._stalls.reset()
        self._lag.reset()
        self._lags.clear()

    def reasons(self) -> list[str]:
        """Why what this worker owns is not served as it should be, by the last look."""
        late_s = self._consumer.spec.ready_lag_s
        found = [
            f"{tp.topic}[{tp.partition}] stands still for {idle} s while its log grows"
            for tp, idle in self._stalls.frozen()
        ]
        found += [
            f"{tp.topic}[{tp.partition}] is {lag.seconds:.0f} s and {lag.records} records behind"
            for tp, lag in self._lags.items()
            if late_s and lag.seconds > late_s
        ]
        if self._unanswered >= UNANSWERED_MIN:
            found.append(f"the broker has not answered {self._unanswered} looks at the log's end")
        return found

    async def look(self) -> None:
        """One tick: look, and end the process or seek back where a watch says so."""
        consumer = self._consumer
        busy = consumer.app.rebalancing or not consumer.flow_active
        left = consumer.app.tables.recovery.active_remaining_total() if busy else 0
        verdict = self._rebalance.tick(busy, (consumer.epoch, left))
        if verdict is None:
            views = [] if busy else await self._views()
            seen = [(view.tp, view.processed, view.end) for view in views]
            self._lags |= self._lag.note(seen, time.monotonic())
            verdict = self._stalls.tick(views)
        if verdict.reason is not None:
            die(verdict.reason)
        for tp in verdict.look_again:
            if tp in consumer.positions:
                await consumer.seek_source(tp, consumer.positions[tp])

    async def _views(self) -> list[PartitionView]:
        consumer = self._consumer
        epoch = consumer.epoch
        tps = [tp for tp in consumer.assignment() if consumer.is_source(tp)]
        if not tps:
            return []
        try:
            ends = await consumer.log_ends(tps, _END_TIMEOUT_S)
            self._unanswered = 0
        except (KafkaError, TimeoutError):
            ends = {}  # the broker is away: nothing can be said about progress
            self._unanswered += 1
        return [consumer.view(tp, ends.get(tp)) for tp in tps] if epoch == consumer.epoch else []


class LoopWatch:
    """Ends the process when `beat` was not called for `timeout_s` while the machine was running."""

    def __init__(self, timeout_s: float) -> None:
        self._limit = max(2, round(timeout_s / _LOOP_INTERVAL_S))
        self._beats = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> None:
        """The event loop turned. Called from a timer of the loop."""
        self._beats += 1

    def start(self) -> None:
        """Begin to watch, in a daemon thread."""
        self._thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stop.set()

    def _run(self) -> None:
        seen, silent = -1, 0
        while not self._stop.wait(_LOOP_INTERVAL_S):
            silent = silent + 1 if self._beats == seen else 0
            seen = self._beats
            if silent >= self._limit:
                faulthandler.dump_traceback(sys.stderr)
                die(f"the event loop has not turned for {silent} s")
