"""How much of a split of MailboxShards those who talk meanwhile notice.

    python -m tests.perf.shard_split --control --rate 200 --connections 100 [--shards 16] ... (--help)

A stack of `--shards` shards with room for twice as many (per split) is loaded with direct chats, open loop;
after `--before` seconds ``qim shard split`` splits all of them, `--splits` times in a row. Latencies count
from the time a message was due, so the longest one from end to end is the longest time that anybody was
without what was meant for him: the gap. The longest ACK says how long a sender was stopped. With `--control`
the same load is put first on a stack of its own that nobody splits: what it shows is the machine's.

Exit codes: 0 measured, nobody was stopped for longer than `--gap-max` seconds and every message came once, in
order; 1 otherwise; 2 wrong usage.
"""

import argparse
import asyncio
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from qim_streams.errors import QimError
from qim_streams.loadgen.options import BenchOptions
from tests.perf import reporting
from tests.perf.processes import ROOT, MeasurementError
from tests.perf.running_stack import RunningStack, running_stack
from tests.perf.storm_load import Part, SteadyLoad, checked, steady

_NS = 1_000_000_000


class Asked(NamedTuple):
    """What the command line says."""

    shards: int
    outboxes: int
    splits: int
    before_s: int
    split_s: int
    after_s: int
    gap_max_s: float

    @property
    def load_s(self) -> int:
        """How long there is load."""
        return self.before_s + self.split_s + self.after_s


def environment(asked: Asked) -> dict[str, str]:
    """Settings of the stack."""
    room = asked.shards << asked.splits
    return {
        "QIM_MAILBOX_SHARDS": str(asked.shards),
        "QIM_MAILBOX_SHARDS_MAX": str(room),
        "QIM_OUTBOX_PARTITIONS": str(asked.outboxes),
    }


def split(stack: RunningStack) -> list[tuple[float, str]]:
    """``qim shard split`` of all shards; what it said after how many seconds. MeasurementError: it failed."""
    command = [sys.executable, "-m", "qim_streams.cli", "shard", "split", "--state-dir", str(stack.state_dir)]
    began_s = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None, "it was asked for"
        said = [(time.monotonic() - began_s, line.strip()) for line in running.stderr]
    if running.returncode != 0:
        raise MeasurementError(f"qim shard split: {said[-3:]}")
    return said


async def measure(asked: Asked, options: BenchOptions, stack: RunningStack) -> dict[str, Any]:
    """The load with the splits in it; the figures."""
    restarts = stack.restarts()
    async with SteadyLoad(options, stack.address) as load:
        await load.start()
        await asyncio.sleep(load.first_ns / _NS + asked.before_s - time.monotonic())
        took_s, said = [], []
        for _ in range(asked.splits):
            began_s = time.monotonic()
            said += await asyncio.to_thread(split, stack)
            took_s.append(time.monotonic() - began_s)
            print(f"split: {took_s[-1]:.1f} s", flush=True)
        verdict = await load.finish()
        # Sessions move after it; where nobody splits, there is one part for as long as a split may take.
        split_s = min(asked.split_s, math.ceil(sum(took_s)) + 2) if took_s else asked.split_s
        ended = asked.before_s + split_s
        parts = [
            load.part("before", 0, asked.before_s),
            load.part("during", asked.before_s, ended),
            load.part("after", ended, asked.load_s),
        ]
        return {
            "took_s": took_s,
            "said": said,
            "parts": [part._asdict() for part in parts],
            "gap_ms": gap_ms(parts),
            "clean": verdict.clean,
            "acked": verdict.acked,
            "wrong": {
                "lost": verdict.lost, "duplicated": verdict.duplicated_visible, "unknown": verdict.unknown,
                "reordered": verdict.reordered, "refused": verdict.refused,
            },
            "noted": load.noted,
            "generator_late_p99_ms": load.late_ms,
            "restarts": stack.restarts() - restarts,
            "load_average": [round(one, 1) for one in os.getloadavg()],
        }  # fmt: skip


def gap_ms(parts: Sequence[Part]) -> float:
    """The longest that anything took, to the receipt or to the other's device, from the split on."""
    return max(max(part.ack["max"], part.e2e["max"]) for part in parts if part.name != "before")


def problems(found: dict[str, Any], gap_max_s: float) -> list[str]:
    """What was not as it must be; empty when all is well."""
    said = []
    if not found["clean"]:
        said.append(f"not everything came once and in order: {found['wrong']}")
    if found["gap_ms"] > gap_max_s * 1_000:
        said.append(f"somebody was stopped for {found['gap_ms']:,.0f} ms")
    if found["restarts"]:
        said.append(f"{found['restarts']} roles died and were started again")
    return said


def report(found: dict[str, Any]) -> str:
    """The figures for people."""
    head = ["", "s", "messages", "ACK P50 ms", "P99", "max", "end to end P50 ms", "P99", "max"]
    rows = [
        [part["name"], part["seconds"], part["messages"]]
        + [part[what][share] for what in ("ack", "e2e") for share in ("p50", "p99", "max")]
        for part in found["parts"]
    ]
    took = ", ".join(f"{one:.1f} s" for one in found["took_s"])
    steps = "; ".join(f"{at:.2f} s {line}" for at, line in found["said"])
    command = f"the command took {took}: {steps}" if took else "nobody split anything"
    return "\n".join(
        [
            reporting.table(head, rows),
            f"longest gap {found['gap_ms']:,.0f} ms; {command}",
            f"load average at the end {found['load_average']}",
            f"{found['acked']:,} messages, clean: {found['clean']}, {found['wrong']}, besides "
            f"{found['noted'] or 'nothing'}; the generator P99 {found['generator_late_p99_ms']:,.1f} ms late",
        ]
    )


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Asked, BenchOptions]:
    """The options; ends the process with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.shard_split",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--shards", type=int, default=16, metavar="N", help="before the first split")
    parser.add_argument("--outboxes", type=int, default=8, metavar="N", help="Outbox partitions")
    parser.add_argument("--splits", type=int, default=1, metavar="N", help="of all shards, in a row")
    parser.add_argument("--rate", type=float, default=500.0, help="messages a second")
    parser.add_argument("--connections", type=int, default=200, metavar="N", help="devices that talk")
    parser.add_argument("--before", type=int, default=10, metavar="S", help="seconds of load before")
    parser.add_argument("--during", type=int, default=30, metavar="S", help="seconds that splits may take")
    parser.add_argument("--after", type=int, default=10, metavar="S", help="seconds of load afterwards")
    parser.add_argument("--gap-max", type=float, default=2.0, metavar="S", help="what nobody may wait longer")
    parser.add_argument("--control", action="store_true", help="first the same load, and no split")
    parser.add_argument(
        "--keep-logs", type=Path, metavar="DIR", help="copy the roles' logs of the split there"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args(argv)
    asked = Asked(args.shards, args.outboxes, args.splits, args.before, args.during, args.after, args.gap_max)
    if not (1 <= asked.splits <= 4 and 1 <= asked.shards << asked.splits <= 256):
        parser.error("--shards, --splits: 1 to 4 splits, up to 256 shards in the end")
    if min(asked.outboxes, asked.before_s, asked.split_s, asked.after_s) < 1:
        parser.error("--outboxes, --before, --during, --after: at least one (second) each")
    options = steady(args.rate, asked.load_s, args.connections, args.seed)
    return args, asked, checked(parser, options)


def main(argv: Sequence[str] | None = None) -> int:
    """Start a stack, load it, split, tell. The exit code."""
    args, asked, options = parse(argv)
    reporting.begin("shard split under load", args.seed)
    control: dict[str, Any] = {}
    try:
        if args.control:
            with running_stack(None, env=environment(asked)) as stack:
                control = uvloop.run(measure(asked._replace(splits=0), options, stack))
            print(f"control, without a split:\n{report(control)}\n\nwith a split:", flush=True)
        with running_stack(None, env=environment(asked)) as stack:
            found = uvloop.run(measure(asked, options, stack))
            if args.keep_logs is not None:
                shutil.copytree(stack.state_dir / "log", args.keep_logs, dirs_exist_ok=True)
    except (MeasurementError, QimError) as error:
        print(error, file=sys.stderr)
        return 1
    wrong, kept = problems(found, asked.gap_max_s), found | {"control": control}
    return reporting.conclude(report(found), args.json, "shard_split", args.seed, kept, wrong)


if __name__ == "__main__":
    sys.exit(main())
