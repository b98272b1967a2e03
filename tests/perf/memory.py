"""What a message keeps in Redis and in the processes.

    python -m tests.perf.memory [--messages N] [--workload direct|group:100]
    python -m tests.perf.memory --minutes 30 [--rate R]

Without `--minutes`: messages are committed by the real writer and drained by the real stages; Redis is
weighed in between (used memory without its clients' and append-only buffers), so that each part has its
price: a conversation with its members, a message in it (record, dedup key), an entry in a mailbox.

With `--minutes`: a stack under a constant rate (``qim bench``), the memory of every process sampled and its
growth told in MB per hour. Redis grows by what it keeps; nothing else should.

Exit codes: 0 measured and right, 1 something was lost, doubled, stuck or grew too fast, 2 wrong usage.
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
from qim_streams.redis_tier import RedisClient, connect
from tests.perf import reporting, soak
from tests.perf.backlog import workload_of
from tests.perf.draining import watch
from tests.perf.filling import Filler, Tally, Workload, chats_of
from tests.perf.processes import MeasurementError, Servers, rss_mb
from tests.perf.stages import FANOUT, MAILBOX, Ours

NOT_DATA = ("mem_clients_normal", "mem_clients_slaves", "mem_aof_buffer")


async def weigh(client: RedisClient) -> int:
    """Bytes that Redis holds for data."""
    info = await client.info("memory")
    return int(info["used_memory"]) - sum(int(info.get(name, 0)) for name in NOT_DATA)


async def drained(servers: Servers, pair: Ours, tally: Tally) -> None:
    """Run both stages until everything of `tally` is in the mailboxes."""
    started_s = time.monotonic()
    for stage in (FANOUT, MAILBOX):
        pair.start(stage)
    progress = {stage: pair.progress(stage) for stage in (FANOUT, MAILBOX)}
    await watch(servers, progress, pair.totals(tally), started_s)


async def run(servers: Servers, workload: Workload) -> dict[str, Any]:
    """Weigh Redis before and after each part."""
    client = connect(servers.settings)
    try:
        return await _run(servers, client, workload)
    finally:
        await client.aclose()


async def _run(servers: Servers, client: RedisClient, workload: Workload) -> dict[str, Any]:
    filler, pair = Filler(servers.settings, client), Ours(servers, client)
    empty = await weigh(client)
    # Every conversation once, so that what comes then makes none.
    chats = chats_of(workload)
    first = (await filler.fill(workload._replace(messages=chats))).tallies[OUTBOX_TOPIC]
    made = await weigh(client)
    await drained(servers, pair, first)
    idle = {name: rss_mb(pid) for name, pid in servers.pids.items()}
    servers.stop_workers()
    before = await weigh(client)
    more = (await filler.fill(workload._replace(first=chats))).tallies[OUTBOX_TOPIC]
    committed = await weigh(client)
    await drained(servers, pair, first + more)
    after = await weigh(client)
    loaded = {name: rss_mb(pid) for name, pid in servers.pids.items()}
    await pair.check(first + more)
    message, entry = (committed - before) / more.messages, (after - committed) / more.entries
    return {
        "messages": more.messages,
        "entries": more.entries,
        "record_bytes": more.nbytes / more.messages,
        "redis_bytes": {
            "conversation": (made - empty) / chats - message,
            "message": message,
            "entry": entry,
            "message with its entries": message + entry * more.entries / more.messages,
        },
        "rss_mb": {name: {"after first": idle[name], "after all": loaded[name]} for name in loaded},
    }


def report(results: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [
        f"{results['messages']:,} messages, {results['entries']:,} entries, "
        f"{results['record_bytes']:.0f} bytes an Outbox record",
        reporting.table(
            ["Redis", "bytes"], [[name, value] for name, value in results["redis_bytes"].items()]
        ),
        reporting.table(
            ["process", "MB after the first messages", "MB after all"],
            [[name, row["after first"], row["after all"]] for name, row in results["rss_mb"].items()],
        ),
    ]
    return "\n\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; ends the process with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.memory", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=50_000, metavar="N")
    parser.add_argument("--workload", type=workload_of, default="direct", help="direct, or group:<members>")
    parser.add_argument("--users", type=int, default=1_000, metavar="N")
    parser.add_argument("--body", type=int, default=128, metavar="BYTES")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--minutes", type=float, metavar="M", help="soak a stack for so long instead")
    parser.add_argument(
        "--rate", type=float, default=500.0, metavar="R", help="messages per second of the soak"
    )
    parser.add_argument(
        "--growth-max",
        type=float,
        metavar="MB",
        help="fail when a process grows faster per hour (default: tell)",
    )
    parser.add_argument("--quick", action="store_true", help="the broker's cheap start, dearer under load")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    asked = parser.parse_args(argv)
    if asked.messages < 1_000 or asked.users < max(10, asked.workload):
        parser.error("--messages: at least 1,000; --users: at least 10, and a group's size")
    if asked.minutes is not None and not 0.5 <= asked.minutes <= 1_440:
        parser.error("--minutes: 0.5 to 1440")
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    asked = parse(argv)
    workload = Workload(asked.messages, asked.users, asked.workload, asked.body, asked.seed)
    try:
        with tempfile.TemporaryDirectory(prefix="qim-memory-") as folder:
            if asked.minutes is not None:
                reporting.begin(f"soak, {asked.minutes:g} minutes at {asked.rate:g} msg/s", asked.seed)
                results = soak.run(
                    Path(folder), soak.Soak(asked.minutes * 60, asked.rate, asked.seed, asked.growth_max)
                )
                print(soak.report(results))
            else:
                reporting.begin(f"memory, {workload.name}", asked.seed)
                with Servers(Path(folder), quick=asked.quick) as servers:
                    results = uvloop.run(run(servers, workload))
                print(report(results))
    except MeasurementError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    reporting.save(asked.json, "memory", asked.seed, results)
    return 1 if results.get("too_fast") else 0


if __name__ == "__main__":
    sys.exit(main())
