"""Does a message cost the same when the system grows: workers per stage, and MailboxShards.

    python -m tests.perf.growth [--messages N] [--workers 1,2] [--shards 4,16,64]

Each configuration gets servers of its own and drains the same backlog, fan-out first, then the mailbox
stage. A direct message goes to two shards however many there are, so its cost should not follow their
number; what follows it is the work per batch. `x` is the cost of both stages against the first row. The
first shape is measured a second time at the end: the two tell how far the machine can be trusted today.

Exit codes: 0 measured and right, 1 something was lost, doubled or stuck, 2 wrong usage.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from tests.perf import backlog, reporting
from tests.perf.filling import Workload
from tests.perf.processes import MeasurementError, Servers
from tests.perf.stages import FANOUT, MAILBOX

SHARDS_USUAL = 16
COLUMNS = ("workers x shards", "fan-out msg/s", "mailbox msg/s", "fan-out µs", "mailbox µs", "both µs", "x",
           "broker µs", "redis µs", "RSS MB")  # fmt: skip


class Shape(NamedTuple):
    """A configuration."""

    workers: int
    shards: int

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.workers} x {self.shards}"


def shapes(workers: Sequence[int], shards: Sequence[int]) -> list[Shape]:
    """Every worker count with the usual shards, every shard count with one worker; no shape twice
    but the first, which comes again at the end."""
    found = [Shape(count, SHARDS_USUAL) for count in workers] + [Shape(1, count) for count in shards]
    once = list(dict.fromkeys(found))
    return [*once, once[0]]


def measure(asked: Sequence[Shape], workload: Workload, *, quick: bool) -> Iterator[dict[str, Any]]:
    """The figures of each shape, as they come."""
    for shape in asked:
        with (
            tempfile.TemporaryDirectory(prefix="qim-growth-") as folder,
            Servers(Path(folder), quick=quick, mailbox_shards=shape.shards) as servers,
        ):
            found = uvloop.run(backlog.run(servers, workload, 0, apart=True, workers=shape.workers))
        fanout, mailbox = found["drains"]
        yield {
            "shape": shape.name,
            "workers": shape.workers,
            "shards": shape.shards,
            "fanout_per_s": fanout["per_s"],
            "mailbox_per_s": mailbox["per_s"],
            "fanout_us": fanout["cpu_us"][FANOUT],
            "mailbox_us": mailbox["cpu_us"][MAILBOX],
            "both_us": fanout["cpu_us"][FANOUT] + mailbox["cpu_us"][MAILBOX],
            "broker_us": fanout["cpu_us"]["broker"] + mailbox["cpu_us"]["broker"],
            "redis_us": mailbox["cpu_us"]["redis"],
            "rss_mb": sum(fanout["rss_mb"].values()) + sum(mailbox["rss_mb"].values()),
        }


def report(rows: Sequence[dict[str, Any]]) -> str:
    """The figures for people."""
    first = rows[0]["both_us"]
    names = ("shape", "fanout_per_s", "mailbox_per_s", "fanout_us", "mailbox_us", "both_us")
    tail = ("broker_us", "redis_us", "rss_mb")
    return reporting.table(
        COLUMNS,
        [
            [row[name] for name in names] + [row["both_us"] / first] + [row[name] for name in tail]
            for row in rows
        ],
    )


def counts(text: str) -> list[int]:
    """1,2,4 as numbers of 1 and more; ValueError for anything else."""
    found = [int(part) for part in text.split(",")]
    if not all(1 <= one <= 256 for one in found):
        raise ValueError(text)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.growth", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=60_000, metavar="N")
    parser.add_argument("--workers", type=counts, default="1,2", help="workers of each stage")
    parser.add_argument("--shards", type=counts, default="4,16,64", help="MailboxShards")
    parser.add_argument("--users", type=int, default=1_000, metavar="N")
    parser.add_argument("--body", type=int, default=128, metavar="BYTES")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--quick", action="store_true", help="the broker's cheap start, dearer under load")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    asked = parser.parse_args(argv)
    if asked.messages < 1_000 or asked.users < 10:
        parser.error("--messages: at least 1,000; --users: at least 10")
    workload = Workload(asked.messages, asked.users, 0, asked.body, asked.seed)
    reporting.begin(f"growth, {asked.messages:,} direct messages", asked.seed)
    rows: list[dict[str, Any]] = []
    try:
        for row in measure(shapes(asked.workers, asked.shards), workload, quick=asked.quick):
            print(f"{row['shape']} measured", file=sys.stderr, flush=True)
            rows.append(row)
    except MeasurementError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    print(report(rows))
    reporting.save(asked.json, "growth", asked.seed, {"workload": workload._asdict(), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
