"""The kill matrix: every point of the product, struck by SIGKILL and by SIGSTOP, on a stack under traffic.

    python -m tests.chaos.matrix [--points 'takeover.*,writer.*'] [--actions kill,pause] [--repeats N]
        [--seed N] [--slice N/M] [--seconds S] [--clocks test|product] [--results FILE] [--again]
        [--figures PAGE]

After each strike the stack heals, everything is read to its end, and the checkers judge. A line per strike
tells how it went; each result is a line of a file, so that a run that was cut short goes on where it stood:
what has passed under the same seed is not struck again (`--again` forgets that). `--seconds` begins no strike
later than that. `--clocks product` has the leases of the product, and pauses for 16 s; its results are kept
in a file of their own. `--figures` writes the table into a page, in place of the one that is there.

Exit codes: 0 all that was struck passed, 1 something did not, 2 wrong options.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from fnmatch import fnmatch
from pathlib import Path

from tests.support.matrix_table import MatrixRow, put_section, table
from tests.support.report import ROOT, facts
from tests.support.stack import PRODUCT_CLOCKS, StackProcess
from tests.support.strike_lab import (
    ENVIRONMENT,
    FREEZE_S,
    PRODUCT_FREEZE_S,
    SHARDS,
    WORKERS,
    Outcome,
    StrikeLab,
)
from tests.support.strikes import ACTIONS, POINTS, Strike, plan, remaining, slice_of

RESULTS = {
    "test": ROOT / ".qim" / "chaos" / "results.jsonl",
    "product": ROOT / ".qim" / "chaos" / "results-product.jsonl",
}


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="matrix", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--points", default="*", help="names or patterns, separated by commas")
    parser.add_argument("--actions", default=",".join(ACTIONS), help="kill, pause")
    parser.add_argument("--repeats", type=int, default=1, help="of the whole matrix, each with other seeds")
    parser.add_argument("--seed", type=int, default=0, help="of the plan; 0: that of the results, else new")
    parser.add_argument("--slice", default="1/1", help="N/M: every M-th strike, from the N-th on")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no strike later")
    parser.add_argument("--clocks", choices=RESULTS, default="test", help="leases and session timeouts")
    parser.add_argument("--results", type=Path, help="a line per strike")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument("--figures", type=Path, metavar="PAGE", help="write the table into a page")
    options = parser.parse_args(arguments)
    options.results = options.results or RESULTS[options.clocks]
    return options


def chosen(patterns: str) -> list[str]:
    """The points that fit one of the patterns; SystemExit 2 when a pattern fits none."""
    wanted = [one.strip() for one in patterns.split(",") if one.strip()]
    for pattern in wanted:
        if not any(fnmatch(name, pattern) for name in POINTS):
            raise SystemExit(f"--points: no point fits {pattern!r}; there are {', '.join(POINTS)}")
    return [name for name in POINTS if any(fnmatch(name, pattern) for pattern in wanted)]


def read_results(path: Path) -> tuple[int, dict[str, MatrixRow]]:
    """The master seed of the earlier results, 0 for none, and the last result of each strike."""
    rows: dict[str, MatrixRow] = {}
    seed = 0
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            row: MatrixRow = json.loads(line)
            if row["master_seed"] != seed:
                rows, seed = {}, row["master_seed"]
            rows[row["name"]] = row
    return seed, rows


class Run:
    """The strikes of one call, on a stack that is started anew when it does not heal."""

    def __init__(self, master_seed: int, results: Path, rows: dict[str, MatrixRow], clocks: str) -> None:
        self._seed, self._results, self.rows, self._clocks = master_seed, results, rows, clocks
        self._kept = results.parent / "failures"
        self.failed = 0

    def strike_all(self, strikes: Sequence[Strike], seconds: float) -> None:
        """Until all are struck or the time is over."""
        end_s = time.monotonic() + seconds
        left = list(strikes)
        while left and time.monotonic() < end_s:
            with tempfile.TemporaryDirectory(prefix="qim-matrix-") as folder:
                left = asyncio.run(self._on_one_stack(left, Path(folder), end_s))
        if left:
            print(f"{len(left)} strikes are left; the same command goes on with them", flush=True)

    async def _on_one_stack(self, strikes: Sequence[Strike], folder: Path, end_s: float) -> list[Strike]:
        """Strike until the stack did not heal; what is left."""
        armed, left = folder / "armed", list(strikes)
        slow = self._clocks == "product"
        env = ENVIRONMENT | (PRODUCT_CLOCKS if slow else {}) | {"QIM_FAILPOINT_FILE": str(armed)}
        print(f"{len(left)} strikes, seed {self._seed}; starting a stack", flush=True)
        with StackProcess(folder / "stack", *WORKERS, env=env) as stack:
            freeze_s = PRODUCT_FREEZE_S if slow else FREEZE_S
            lab = StrikeLab(stack, armed, SHARDS, stand_bys=True, freeze_s=freeze_s)
            try:
                while left and time.monotonic() < end_s:
                    one = left.pop(0)
                    print(f"  {one.name:<45} hit {one.nth:<3} seed {one.seed:<7}", end="", flush=True)
                    directory = folder / one.name
                    directory.mkdir()
                    with (directory / "said.txt").open("w") as said, redirect_stdout(said):
                        outcome = await lab.strike(one, directory)
                    self._note(outcome, directory, stack)
                    if outcome.outcome == "failed":
                        break  # whatever is wrong with this stack is no fault of the next strike
            finally:
                lab.close()
        return left

    def _note(self, outcome: Outcome, directory: Path, stack: StackProcess) -> None:
        row: MatrixRow = {"master_seed": self._seed, **outcome.as_json()}
        self.rows[outcome.name] = row
        self._results.parent.mkdir(parents=True, exist_ok=True)
        with self._results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=str) + "\n")
        print(
            f" {outcome.outcome:<9} fired {outcome.fired_s:>5.1f} s, back {outcome.back_s:>5.1f} s, "
            f"all {outcome.took_s:>5.1f} s, acked {outcome.figures.get('acked', '-')}",
            flush=True,
        )
        if outcome.outcome != "passed":
            self.failed += 1
            kept = self._kept / f"{outcome.name}-{outcome.seed}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(directory, kept)
            shutil.copytree(stack.state_dir / "log", kept / "log")
            for text in outcome.problems[:10]:
                print(f"      {text}", flush=True)
            print(f"      kept in {kept}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Strike; see the module."""
    options = options_of(arguments)
    actions = [one for one in options.actions.split(",") if one]
    if not set(actions) <= set(ACTIONS):
        raise SystemExit(f"--actions {options.actions}: there are {', '.join(ACTIONS)}")
    before, rows = (0, {}) if options.again else read_results(options.results)
    seed = options.seed or before or time.time_ns() % 1_000_000
    if seed != before:
        rows = {}
    number, of = (int(part) for part in options.slice.split("/"))
    strikes = slice_of(plan(seed, chosen(options.points), actions, options.repeats), number, of)
    passed = {name for name, row in rows.items() if row["outcome"] == "passed"}
    run = Run(seed, options.results, rows, options.clocks)
    run.strike_all(list(remaining(strikes, passed)), options.seconds)
    if options.figures:
        text = options.figures.read_text(encoding="utf-8") if options.figures.exists() else ""
        section = table(list(run.rows.values()), facts(time.time()))
        options.figures.write_text(put_section(text, section), encoding="utf-8")
    print(f"{sum(row['outcome'] == 'passed' for row in run.rows.values())} of {len(run.rows)} passed")
    return 1 if run.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
