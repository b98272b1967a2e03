"""Figures: kept as JSON, compared with earlier ones, printed as a table.

Compared is the best round of each, which the rest of the machine disturbs least. A figure is no promise:
two machines, or one on two days, are not comparable.
"""

import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.perf.measure import Timing

FORMAT = 1
UNIT = "microseconds of processor time per call"


class FiguresError(ValueError):
    """A file is not what `save` writes."""


def save(path: Path, timings: Mapping[str, Timing]) -> None:
    """Write the figures and what they were made with."""
    document = {
        "format": FORMAT,
        "unit": UNIT,
        "commit": commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "benchmarks": {
            name: {
                "median_us": round(one.median_us, 4),
                "min_us": round(one.min_us, 4),
                "loops": one.loops,
                "rounds": one.rounds,
            }
            for name, one in timings.items()
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Timing]:
    """The figures of a file; FiguresError says what is wrong with it."""
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise FiguresError(f"{path}: format {document['format']}, this version knows {FORMAT}")
        return {
            name: Timing(float(one["median_us"]), float(one["min_us"]), one["loops"], one["rounds"])
            for name, one in document["benchmarks"].items()
        }
    except FiguresError:
        raise
    except OSError as error:
        raise FiguresError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FiguresError(f"{path}: not a file of benchmark figures ({error!r})") from error


def commit() -> str | None:
    """The commit that was measured, with a plus when files were changed; None outside a repository."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def ratio(now: Timing, before: Timing) -> float:
    """How many times as long as before; 0.5 is twice as fast."""
    return now.min_us / before.min_us if before.min_us else float("inf")


def table(timings: Mapping[str, Timing], before: Mapping[str, Timing] | None = None) -> str:
    """The figures for people, a line each; with `before` the ratio to it."""
    width = max(map(len, timings), default=4)
    head = f"{'µs of CPU per call':<{width}}  {'median':>12}  {'min':>12}"
    lines = [head + ("  now/before" if before is not None else "")]
    for name, one in timings.items():
        line = f"{name:<{width}}  {one.median_us:>12,.3f}  {one.min_us:>12,.3f}"
        if before is not None:
            line += f"  {ratio(one, before[name]):>9.2f}x" if name in before else f"  {'new':>10}"
        lines.append(line)
    return "\n".join(lines)
