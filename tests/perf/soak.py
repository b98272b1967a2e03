"""A stack under a constant rate for a long time: does a process grow. Used by ``memory``.

The load is ``qim bench`` in a process of its own, which starts the stack, judges every delivery and stops
the stack. Here the processes are found by the stack's status file and their memory is sampled. Growth is
the slope of a straight line through the second half of the samples: caches fill in the first.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qim_streams.embedded.process import ChildProcess, child_env, start_child, tail
from qim_streams.embedded.status import read_status
from tests.perf import reporting
from tests.perf.processes import ROOT, MeasurementError, rss_mb

SAMPLE_S = 5.0
GRACE_S = 300.0  # for start, set-up, drain and stop
STOP_S = 60.0
SAMPLES_MIN = 6
KEEPS = frozenset({"redis"})  # grows by what it is there to keep


class Soak(NamedTuple):
    """`growth_max_mb`: MB per hour that are too many; None: only told."""

    seconds: float
    rate: float
    seed: int
    growth_max_mb: float | None = None


class Reading(NamedTuple):
    """Memory of a process at a moment. A new pid is a new process: it starts a new line."""

    at_s: float
    pid: int
    mb: float


def run(state_dir: Path, asked: Soak) -> dict[str, Any]:
    """Load a stack in `state_dir` and sample it; MeasurementError when the run was not clean."""
    told = state_dir / "bench.json"
    child = _start(state_dir, told, asked)
    readings: dict[str, list[Reading]] = {}
    try:
        _sample(child, state_dir / "stack", readings, asked.seconds + GRACE_S)
    finally:
        code = child.stop(STOP_S) if child.poll() is None else child.poll()
    if code != 0 or not told.exists():
        said = "\n".join(tail(child.log_path))
        raise MeasurementError(f"qim bench ended with {code}:\n{said}")
    rows = {name: _row(found) for name, found in readings.items()}
    most = asked.growth_max_mb
    grew = {
        name: row["mb_per_hour"]
        for name, row in rows.items()
        if most is not None and name not in KEEPS and (row["mb_per_hour"] or 0.0) > most
    }
    return {"soak": asked._asdict(), "rss_mb": rows, "too_fast": grew, "bench": json.loads(told.read_text())}


def _start(state_dir: Path, told: Path, asked: Soak) -> ChildProcess:
    command = [
        sys.executable, "-m", "qim_streams.cli", "bench", "--quiet", "--state-dir", str(state_dir / "stack"),
        "--rate", f"{asked.rate:g}", "--duration", f"{asked.seconds:g}", "--seed", str(asked.seed),
        "--json", str(told),
    ]  # fmt: skip
    return start_child("bench", command, env=child_env({}), log_path=state_dir / "bench.log", cwd=ROOT)


def _sample(child: ChildProcess, stack: Path, readings: dict[str, list[Reading]], most_s: float) -> None:
    deadline_s = time.monotonic() + most_s
    while child.wait(SAMPLE_S) is None:
        if time.monotonic() > deadline_s:
            raise MeasurementError(f"qim bench did not end within {most_s:.0f} s")
        status = read_status(stack)
        if status is None or status.state != "running":
            continue
        for role in status.roles:
            if role.pid is None:
                continue
            try:
                reading = Reading(time.monotonic(), role.pid, rss_mb(role.pid))
            except (OSError, MeasurementError):
                continue  # it is ending; the next sample finds its successor
            readings.setdefault(role.name, []).append(reading)


def _row(readings: Sequence[Reading]) -> dict[str, Any]:
    last = [one for one in readings if one.pid == readings[-1].pid]
    half = last[len(last) // 2 :]
    return {
        "first": readings[0].mb,
        "middle": half[0].mb,
        "last": last[-1].mb,
        "most": max(one.mb for one in readings),
        "samples": len(readings),
        "processes": len({one.pid for one in readings}),
        "mb_per_hour": slope(half) * 3_600 if len(half) >= SAMPLES_MIN else None,
    }


def slope(readings: Sequence[Reading]) -> float:
    """MB per second of the straight line that fits best."""
    count = len(readings)
    mean_s, mean_mb = sum(one.at_s for one in readings) / count, sum(one.mb for one in readings) / count
    spread = sum((one.at_s - mean_s) ** 2 for one in readings)
    return sum((one.at_s - mean_s) * (one.mb - mean_mb) for one in readings) / spread if spread else 0.0


def report(results: dict[str, Any]) -> str:
    """The figures for people."""
    names = ("first", "middle", "last", "most", "mb_per_hour", "samples", "processes")
    rows = [[name, *(row[key] for key in names)] for name, row in results["rss_mb"].items()]
    bench = results["bench"]
    lines = [
        f"{bench['acked']:,} of {bench['sent']:,} messages acknowledged, {bench['delivered']:,} deliveries, "
        f"{bench['verdict']}",
        reporting.table(
            ["process", "MB first", "middle", "last", "most", "MB/hour 2nd half", "samples", "processes"],
            rows,
        ),
    ]
    if results["too_fast"]:
        lines.append(f"grew too fast: {results['too_fast']}")
    return "\n".join(lines)
