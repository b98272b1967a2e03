"""``make bench``: everything that is measured, in its short form, and one table.

    python -m tests.perf.short [--rate R] [--duration S] [--messages N] [--json FILE] [--against FILE]

In turn, each in a process of its own: the microbenchmarks; the whole path under a constant rate of direct
messages (``qim bench``, open loop, every delivery checked); a backlog through our stages and through the
baseline. Under five minutes on two cores. `--against` compares the microbenchmarks and the figures of the
paths with an earlier file. The goals are those of the design: what is measured below them says so.

Exit codes: 0 measured and right, 1 a part failed, 2 wrong usage.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.perf import reporting

PART_S = 280.0
RATIO_GOAL = 8.0
ACK_P99_MS, E2E_P99_MS = 150.0, 300.0
ROOT = Path(__file__).resolve().parents[2]


class Part(NamedTuple):
    """A program to run; it writes its figures to `<name>.json`."""

    name: str
    command: list[str]


class Figure(NamedTuple):
    """A line of the table. `goal`: at most, or at least when `more_is_better`."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    more_is_better: bool = False

    @property
    def met(self) -> bool | None:
        """None without a goal."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.more_is_better else self.value <= self.goal


def parts(asked: argparse.Namespace, folder: Path) -> list[Part]:
    """What is run, in order."""
    bench = [
        "-m", "qim_streams.cli", "bench", "--quiet", "--state-dir", str(folder / "stack"),
        "--rate", f"{asked.rate:g}", "--duration", f"{asked.duration:g}", "--seed", str(asked.seed),
    ]  # fmt: skip
    backlog = ["-m", "tests.perf.backlog", "--messages", str(asked.messages), "--seed", str(asked.seed)]
    micro = ["-m", "tests.perf.run", "--rounds", "3"]
    if asked.against:
        micro += ["--against", str(part_of(asked.against, "micro", folder))]
    return [Part("micro", micro), Part("bench", bench), Part("backlog", backlog)]


def part_of(path: Path, name: str, folder: Path) -> Path:
    """The figures of one part of an earlier file, as the part itself wrote them."""
    found = folder / f"before-{name}.json"
    found.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8"))[name]), encoding="utf-8")
    return found


def run(part: Part, folder: Path) -> dict[str, Any] | None:
    """Run a part; its figures, None when it failed (it has said why)."""
    told = folder / f"{part.name}.json"
    began_s = time.monotonic()
    print(f"\n== {part.name}", flush=True)
    try:
        code = subprocess.run(
            [sys.executable, *part.command, "--json", str(told)], cwd=ROOT, timeout=PART_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"{part.name} did not end within {PART_S:.0f} s", file=sys.stderr)
        return None
    print(f"-- {part.name}: {time.monotonic() - began_s:.0f} s", flush=True)
    if code != 0 or not told.exists():
        print(f"{part.name} failed with {code}", file=sys.stderr)
        return None
    figures: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return figures


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """The lines of the table, of the parts that succeeded."""
    found: list[Figure] = []
    bench, backlog = results.get("bench"), results.get("backlog")
    if bench:
        cpu = bench["cpu_us_per_message"]
        found += [
            Figure("whole path: acknowledged", bench["achieved_per_s"], "msg/s"),
            Figure("whole path: SEND_ACK P50", bench["ack_ms"]["p50"], "ms"),
            Figure("whole path: SEND_ACK P99", bench["ack_ms"]["p99"], "ms", ACK_P99_MS),
            Figure("whole path: end to end P50", bench["e2e_ms"]["p50"], "ms"),
            Figure("whole path: end to end P99", bench["e2e_ms"]["p99"], "ms", E2E_P99_MS),
            Figure("whole path: CPU of all our roles", cpu["ours"], "µs/msg"),
            Figure("whole path: CPU with broker and Redis", cpu["all"], "µs/msg"),
        ]
    if backlog:
        ours, stock = backlog["drains"][0], backlog["drains"][-1]
        found += [
            Figure("backlog: drained by ours", ours["per_s"], "msg/s"),
            Figure("backlog: CPU of fan-out + mailbox", ours["cpu_us"]["stages"], "µs/msg"),
            Figure("backlog: drained by the stock style", stock["per_s"], "msg/s"),
            Figure("backlog: CPU of the stock style", stock["cpu_us"]["stages"], "µs/msg"),
            Figure("backlog: stock / ours, CPU", backlog["ratio"], "x", RATIO_GOAL, more_is_better=True),
        ]
    return found


def report(found: Sequence[Figure], before: Sequence[Figure]) -> str:
    """The table for people; with figures from before, how many times as much."""
    earlier = {one.name: one.value for one in before}
    head = ["", "", "", "goal"] + (["now/before"] if before else [])
    rows: list[list[reporting.Cell]] = []
    for one in found:
        goal = ""
        if one.goal is not None:
            goal = f"{'>=' if one.more_is_better else '<='} {one.goal:g}: {'met' if one.met else 'MISSED'}"
        row: list[reporting.Cell] = [one.name, one.value, one.unit, goal]
        if before:
            value = earlier.get(one.name)
            row.append(f"{one.value / value:.2f}x" if value else "new")
        rows.append(row)
    return reporting.table(head, rows)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; ends the process with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.short", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=1_000.0, metavar="R", help="messages per second")
    parser.add_argument("--duration", type=float, default=20.0, metavar="S", help="seconds of it")
    parser.add_argument("--messages", type=int, default=50_000, metavar="N", help="of the backlog")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with the figures in FILE")
    asked = parser.parse_args(argv)
    if asked.against:
        try:
            asked.before = json.loads(asked.against.read_text(encoding="utf-8"))
            figures(asked.before)
            asked.before["micro"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"--against {asked.against}: not a file of this program ({error!r})")
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    asked = parse(argv)
    reporting.begin("short form of all measurements", asked.seed)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="qim-bench-") as folder:
        asked_parts = parts(asked, Path(folder))
        for part in asked_parts:
            found = run(part, Path(folder))
            if found is not None:
                results[part.name] = found
    print("\n" + report(figures(results), figures(asked.before) if asked.against else []))
    missing = [part.name for part in asked_parts if part.name not in results]
    if missing:
        print(f"failed: {', '.join(missing)}", file=sys.stderr)
        return 1
    reporting.save(asked.json, "short", asked.seed, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
