"""Timing: processor time of this thread per call, in several short rounds over all benchmarks.

Processor time, because the machine may be shared; rounds over all of them, so that a bad moment spoils
one repeat of everything and not everything of one. The collector of cyclic garbage rests while time is
taken. The overhead of a call, about 0.05 µs, is in the figures: they are for comparing.
"""

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.perf.registry import Case

ROUNDS = 7
ROUND_NS = 12_000_000  # processor time of one benchmark in one round
LOOPS_MAX = 1 << 22


class Timing(NamedTuple):
    """Microseconds per call: the median of the rounds, and the best one."""

    median_us: float
    min_us: float
    loops: int
    rounds: int


def run(call: Callable[[], object], loops: int) -> int:
    """Nanoseconds of processor time for `loops` calls."""
    turns = itertools.repeat(None, loops)
    started = time.thread_time_ns()
    for _ in turns:
        call()
    return time.thread_time_ns() - started


def loops_for(call: Callable[[], object], round_ns: int) -> int:
    """How many calls take about `round_ns`; at least one."""
    loops = 1
    while loops < LOOPS_MAX:
        taken = run(call, loops)
        if taken >= round_ns // 4:
            return max(1, round(loops * round_ns / taken))
        loops *= 2
    return loops


def measure(
    cases: Mapping[str, Case[object]],
    *,
    rounds: int = ROUNDS,
    round_ns: int = ROUND_NS,
    progress: Callable[[str], object] = lambda _: None,
) -> dict[str, Timing]:
    """The timing of each case."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        progress(f"warming up {len(cases)} benchmarks")
        loops = {name: loops_for(case.call, round_ns) for name, case in cases.items()}
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(1, rounds + 1):
            progress(f"round {number} of {rounds}")
            gc.collect()
            for name, case in cases.items():
                taken[name].append(run(case.call, loops[name]) / loops[name] / 1_000)
    finally:
        if collecting:
            gc.enable()
    return {
        name: Timing(statistics.median(times), min(times), loops[name], rounds)
        for name, times in taken.items()
    }
