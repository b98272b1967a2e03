"""Measures the benchmarks: ``python -m tests.perf.run [--only NAME] [--json FILE] [--against FILE]``.

Takes about five seconds of processor time, of one core. Exit codes: 0 measured, 1 a function gave a wrong
answer, 2 wrong usage.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.perf import figures, measure, registry


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf.run", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="names that contain NAME")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures to FILE")
    parser.add_argument("--against", metavar="FILE", type=Path, help="compare with the figures in FILE")
    parser.add_argument("--rounds", metavar="N", type=int, default=measure.ROUNDS, help="repeats of each")
    asked = parser.parse_args(argv)
    names = [name for name in registry.load() if not asked.only or any(part in name for part in asked.only)]
    if not names:
        parser.error(f"no benchmark is called {' or '.join(asked.only)}; there are: {_stages()}")
    if asked.rounds < 1:
        parser.error("--rounds: at least 1")
    try:
        before = figures.load(asked.against) if asked.against else None
    except figures.FiguresError as error:
        parser.error(f"--against: {error}")
    try:
        cases = registry.prepared(names)
    except registry.WrongAnswerError as error:
        print(error, file=sys.stderr)
        return 1
    timings = measure.measure(
        cases, rounds=asked.rounds, progress=lambda line: print(line, file=sys.stderr, flush=True)
    )
    print(figures.table(timings, before))
    if asked.json:
        figures.save(asked.json, timings)
    return 0


def _stages() -> str:
    return ", ".join(dict.fromkeys(f"{name.split('.')[0]}.*" for name in registry.BENCHMARKS))


if __name__ == "__main__":
    sys.exit(main())
