"""``make test``: every suite in its everyday form, in two stages, and how long each suite took.

    python -m tests.everyday [--figures PAGE] [pytest options ...]

Side by side, in two to four processes: what needs no server and what only uses servers. Then, alone: the kill
tests, whose faults and limits of time belong to one stack on the whole machine. The second stage runs
whatever became of the first, unless pytest is to stop early (``-x``, ``--maxfail``).

Exit codes: 0 all passed, 1 a test failed or a stage was cut short, 5 no test fits the options.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.report import read_so_far

ROOT = Path(__file__).resolve().parents[1]
# The longest pieces first: what is left at the end is short and fills all processes.
SIDE_BY_SIDE = (
    "tests/integration",
    "tests/contract",
    "tests/model",
    "tests/unit",
    "tests/regressions",
)
ALONE = ("tests/chaos",)
PROCESSES = max(2, min(4, os.cpu_count() or 1))  # tests on servers wait more than they compute
PASSED, FAILED, NO_TESTS = 0, 1, 5


def stages(options: Sequence[str]) -> list[list[str]]:
    """The arguments of pytest for each stage. The caller's `options` win, except that the last is alone."""
    everyday = ["-m", "not slow"]
    return [
        [*SIDE_BY_SIDE, *everyday, "-n", str(PROCESSES), *options],
        [*ALONE, *everyday, *options, "-n", "0"],
    ]


def verdict(codes: Sequence[int]) -> int:
    """The exit code of the run from those of its stages: a stage without a fitting test is no failure."""
    if any(code not in (PASSED, NO_TESTS) for code in codes):
        return FAILED
    return PASSED if PASSED in codes else NO_TESTS


def stops_early(options: Sequence[str]) -> bool:
    """Whether the first failure is to be the last."""
    return any(option in ("-x", "--exitfirst") or option.startswith("--maxfail") for option in options)


def main(options: Sequence[str]) -> int:
    """Run the stages; see the module."""
    began_s, codes = time.monotonic(), list[int]()
    with tempfile.TemporaryDirectory(prefix="qim-everyday-") as folder:
        so_far = Path(folder) / "so-far.json"
        for arguments in stages(options):
            command = [sys.executable, "-m", "pytest", "--figures-so-far", str(so_far), *arguments]
            codes.append(subprocess.run(command, cwd=ROOT, check=False).returncode)
            if codes[-1] not in (PASSED, NO_TESTS) and stops_early(options):
                break
        suites = read_so_far(so_far).suites
    lasted_s = time.monotonic() - began_s
    for name, suite in suites.items():
        print(f"{name:<12} {suite['tests']:>5} tests {suite['seconds']:>7.1f} s")
    print(f"all in {lasted_s:.0f} s; processes share everything but the kill tests")
    return verdict(codes)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
