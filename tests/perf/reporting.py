"""What every program of this folder says about itself: machine, versions, tables, and a JSON file.

A figure is no promise: two machines, or one on two days, are not comparable. Ratios of one run are.
"""

import json
import logging
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.perf import figures

PACKAGES = ("faust-streaming", "aiokafka", "confluent-kafka", "redis", "rocksdict", "uvloop")
CALIBRATION_ITEMS, CALIBRATION_ROUNDS = 10_000, 7
Cell = str | float | int | None


def machine() -> dict[str, Any]:
    """The machine and what ran on it beside us."""
    return {
        "cpus": os.cpu_count(),
        "model": _cpu_model(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "system": f"{platform.system()} {platform.release()}",
        "load_1min": round(os.getloadavg()[0], 2),
        "calibration_us": round(calibration_us(), 1),
    }


def versions() -> dict[str, str | None]:
    """Of the product and what it stands on."""
    packages: dict[str, str | None] = {name: version(name) for name in PACKAGES}
    return {"commit": figures.commit(), "python": platform.python_version(), **packages}


def calibration_us() -> float:
    """CPU µs of a fixed piece of Python, the best of some: how fast machine and interpreter are just now.

    A Python built without profile-guided optimization takes a quarter more, a machine with busy siblings
    even more: figures of two runs compare as far as these do.
    """
    values = tuple(range(CALIBRATION_ITEMS))
    taken = []
    for _ in range(CALIBRATION_ROUNDS):
        before = time.thread_time_ns()
        {str(value): (value, value + 1) for value in values}
        taken.append(time.thread_time_ns() - before)
    return min(taken) / 1_000


def begin(title: str, seed: int | None) -> None:
    """Print the first line of a report; from here on drivers log errors only."""
    logging.basicConfig(level=logging.ERROR)
    here = machine()
    seeded = "" if seed is None else f", seed {seed}"
    print(
        f"{title}{seeded}; {here['cpus']} x {here['model']}, load {here['load_1min']}, "
        f"Python {platform.python_version()}, calibration {here['calibration_us']:,.0f} µs, "
        f"commit {figures.commit()}",
        flush=True,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns for people; the first one on the left, the others on the right."""
    lines = [list(head)] + [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def save(path: Path | None, program: str, seed: int | None, results: Mapping[str, Any]) -> None:
    """Write the results as JSON, if a file was asked for."""
    if path is None:
        return
    document = {
        "program": program,
        "seed": seed,
        "machine": machine(),
        "versions": versions(),
        **results,
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def conclude(
    said: str,
    path: Path | None,
    program: str,
    seed: int | None,
    found: Mapping[str, Any],
    wrong: Sequence[str],
) -> int:
    """Print and `save` what was found, and on stderr what is not as it must be; the exit code."""
    print(said)
    save(path, program, seed, found)
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.2f}" if abs(cell) < 10 else f"{cell:,.1f}" if abs(cell) < 1_000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.machine())
