"""A backlog of messages through fan-out and mailbox: rate, CPU per message, and the stock style beside it.

    python -m tests.perf.backlog [--messages N] [--baseline N] [--workload direct|group:100] [--apart]

On one broker and one Redis: N messages are committed by the real writer with both stages stopped; then the
stages start and drain them. `--apart` runs the stages one after the other, so that the mailbox stage finds
all dispatches waiting. After ours has been measured, checked and stopped, the baseline (``baseline/``) gets
the first messages of the same Outbox. CPU is each process's own clock between 10 % and 90 % of the work.

Exit codes: 0 measured and right, 1 something was lost, doubled or stuck, 2 wrong usage.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from qim_streams.commit.kafka_outbox import OUTBOX_TOPIC
from qim_streams.redis_tier import connect
from qim_streams.settings import Settings
from tests.perf import reporting
from tests.perf.baseline import app as base
from tests.perf.draining import Drain
from tests.perf.filling import Filled, Filler, Tally, Workload
from tests.perf.processes import MeasurementError, Servers
from tests.perf.stages import FANOUT, MAILBOX, Baseline, Ours, Pair, drain

SERVERS = ("broker", "redis")
COLUMNS = (
    "drained by", "messages", "msg/s", "entries/s", "fan-out µs", "mailbox µs", "both µs",
    "broker µs", "redis µs", "first after s", "empty after s", "RSS MB",
)  # fmt: skip
Row = dict[str, Any]


def figures_of(pair: Pair, stages: Sequence[str], tally: Tally, found: Drain) -> Row:
    """The figures of one drain, per message."""
    last = stages[-1]
    per_message = {stage: pair.totals(tally)[stage] / tally.messages for stage in stages}
    cpu = {stage: found.cpu_us(stage, pair.processes(stage)) * per_message[stage] for stage in stages}
    servers = {name: found.cpu_us(last, [name]) * per_message[last] for name in SERVERS}
    rate = found.per_s(last) / per_message[last]
    return {
        "stages": f"{pair.name}: {' + '.join(stages)}",
        "messages": tally.messages,
        "per_s": rate,
        "entries_per_s": rate * tally.entries / tally.messages,
        "cpu_us": cpu | servers | {"stages": sum(cpu.values())},
        "began_after_s": found.began_after_s(last),
        "over_after_s": found.over_after_s,
        "rss_mb": {name: found.rss[name] for stage in stages for name in pair.processes(stage)},
    }


async def measure(servers: Servers, pair: Pair, tally: Tally, runs: Sequence[Sequence[str]]) -> list[Row]:
    """Drain in `runs` of stages, check what came out, stop the workers."""
    rows = []
    for stages in runs:
        found = await drain(servers, pair, tally, stages)
        rows.append(figures_of(pair, stages, tally, found))
        if stages is not runs[-1]:
            servers.stop_workers()
    await pair.check(tally)
    servers.stop_workers()
    return rows


async def run(servers: Servers, workload: Workload, baseline: int, *, apart: bool, workers: int = 1) -> Row:
    """Fill, drain ours, drain the baseline."""
    client = connect(servers.settings)
    try:
        stock = Baseline(servers, client) if baseline else None
        started_s = time.monotonic()
        filler = Filler(servers.settings, client, {base.OUTBOX: baseline} if baseline else None)
        filled = await filler.fill(workload)
        took_s = time.monotonic() - started_s
        runs = [[FANOUT], [MAILBOX]] if apart else [[FANOUT, MAILBOX]]
        rows = await measure(servers, Ours(servers, client, workers), filled.tallies[OUTBOX_TOPIC], runs)
        if stock is not None:
            rows += await measure(servers, stock, filled.tallies[base.OUTBOX], runs)
        return {"filled": _filled(filled, took_s), "drains": rows}
    finally:
        await client.aclose()


def _filled(filled: Filled, took_s: float) -> Row:
    tally = filled.tallies[OUTBOX_TOPIC]
    return {
        "messages": tally.messages,
        "dispatches": tally.dispatches,
        "entries": tally.entries,
        "bytes_per_record": tally.nbytes / tally.messages,
        "writer_us": filled.writer_us,
        "took_s": took_s,
    }


def ratio_of(rows: Sequence[Row]) -> float | None:
    """How many times the baseline's CPU per message ours is cheaper; None without a baseline."""
    spent = {"ours": 0.0, "baseline": 0.0}
    for row in rows:
        spent[row["stages"].partition(":")[0]] += row["cpu_us"]["stages"]
    return spent["baseline"] / spent["ours"] if spent["baseline"] else None


def report(results: Row) -> str:
    """The figures for people."""
    filled = results["filled"]
    lines = [
        f"{filled['messages']:,} messages, {filled['dispatches']:,} dispatches, "
        f"{filled['entries']:,} entries, {filled['bytes_per_record']:.0f} bytes a record; "
        f"committed in {filled['took_s']:.1f} s",
        reporting.table(
            COLUMNS,
            [
                [
                    row["stages"], row["messages"], row["per_s"], row["entries_per_s"],
                    row["cpu_us"].get(FANOUT), row["cpu_us"].get(MAILBOX), row["cpu_us"]["stages"],
                    row["cpu_us"]["broker"], row["cpu_us"]["redis"],
                    row["began_after_s"], row["over_after_s"], sum(row["rss_mb"].values()),
                ]
                for row in results["drains"]
            ],
        ),
    ]  # fmt: skip
    if results["ratio"] is not None:
        lines.append(f"the stock style takes {results['ratio']:.1f} times the CPU per message of ours")
    return "\n".join(lines)


def workload_of(text: str) -> int:
    """Members of a group, 0 for direct chats; ValueError for anything else."""
    kind, _, size = text.partition(":")
    if kind == "direct" and not size:
        return 0
    if kind == "group" and size.isdigit() and 3 <= int(size) <= 5_000:
        return int(size)
    raise ValueError(text)


def setting_of(text: str) -> tuple[str, str]:
    """name=value of a setting; ValueError for anything else."""
    name, equals, value = text.partition("=")
    if not equals or name not in Settings.model_fields:
        raise ValueError(text)
    return name, value


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; ends the process with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.backlog",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=50_000, metavar="N", help="messages for our stages")
    parser.add_argument(
        "--baseline", type=int, default=None, metavar="N",
        help="messages for the baseline, 0: leave it out (default: a tenth, at most 20,000; groups: 0)",
    )  # fmt: skip
    parser.add_argument("--workload", type=workload_of, default="direct", help="direct, or group:<members>")
    parser.add_argument("--users", type=int, default=1_000, metavar="N")
    parser.add_argument("--body", type=int, default=128, metavar="BYTES")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="workers of each of our stages")
    parser.add_argument("--apart", action="store_true", help="fan-out first, then the mailbox stage")
    parser.add_argument(
        "--set", action="append", default=[], type=setting_of, metavar="NAME=VALUE",
        help="a setting of our stages (see `qim config`), for experiments; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--profile", type=Path, metavar="DIR",
        help="write cProfile files of our workers to DIR (they then take twice the CPU); see them with\n"
        "python -m pstats DIR/mailbox.prof",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="the broker's cheap start, dearer under load")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    asked = parser.parse_args(argv)
    if asked.baseline is None:
        asked.baseline = 0 if asked.workload else min(20_000, max(2_000, asked.messages // 10))
    if asked.messages < 1_000 or not 0 <= asked.baseline <= asked.messages:
        parser.error("--messages: at least 1,000; --baseline: at most as many")
    if asked.users < max(10, asked.workload):
        parser.error("--users: at least 10, and a group's size")
    if asked.baseline and asked.workload:
        parser.error("--baseline: it has no members of groups, direct chats only")
    return asked


def _made(folder: Path | None) -> Path | None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return folder and folder.resolve()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    asked = parse(argv)
    workload = Workload(asked.messages, asked.users, asked.workload, asked.body, asked.seed)
    reporting.begin(f"backlog, {workload.name}", asked.seed)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="qim-backlog-") as folder,
            Servers(Path(folder), quick=asked.quick, **dict(asked.set)) as servers,
        ):
            servers.profiles = _made(asked.profile)
            results = uvloop.run(
                run(servers, workload, asked.baseline, apart=asked.apart, workers=asked.workers)
            )
    except MeasurementError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    results["ratio"] = ratio_of(results["drains"])
    print(report(results))
    reporting.save(
        asked.json,
        "backlog",
        asked.seed,
        {"workload": workload._asdict(), "settings": dict(asked.set), **results},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
