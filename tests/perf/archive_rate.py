"""How fast the archive takes messages: rows per second of the archiver, on RocksDB and on Cassandra.

    python -m tests.perf.archive_rate [--messages N] [--body BYTES] [--archive NAMES] [--json FILE]

Batches of 1,000 Outbox records of one partition go through the real archiver (decode, look-up, store,
watermark), one after the other, in three shapes: one busy conversation, 50 conversations, a conversation for
each message (direct chats). Then one page of 100 messages is read many times. Cassandra is one node of this
machine, so client and server share its processors: `server_us` is what the node's process took.

Exit codes: 0 measured, 1 something was lost, 2 wrong usage.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import uvloop

from qim_streams.archive.cassandra_admin import create_archive
from qim_streams.archive.cassandra_archive import CassandraArchive
from qim_streams.archive.cassandra_schema import BUCKET_SEQS_DEFAULT, replication
from qim_streams.archive.ports import Archive
from qim_streams.archive.rocksdb_archive import RocksArchive
from qim_streams.archive.service import HistoryArchiver
from qim_streams.embedded.cassandra import EmbeddedCassandra
from tests.perf import reporting
from tests.support.cassandra_node import options_of
from tests.unit.archive.outbox_batches import TENANT, Batch, RememberedLetters, message, record

BATCH = 1_000
PAGE, PAGES = 100, 300
SHAPES = {"one conversation": 1, "50 conversations": 50, "a conversation each": 0}
TICKS_PER_S = 100


class Rate(NamedTuple):
    """One shape on one archive. CPU µs per row: this process, and the server's where there is one."""

    archive: str
    shape: str
    rows_per_s: float
    client_us: float
    server_us: float | None


def batches(shape: str, count: int, body: bytes, first_offset: int) -> list[Batch]:
    """Batches of one partition in that shape."""
    rooms = SHAPES[shape]
    made = []
    for start in range(0, count, BATCH):
        records = []
        for number in range(start, min(start + BATCH, count)):
            room = f"{shape.replace(' ', '-')}-{number % rooms if rooms else number}"
            seq = number // rooms + 1 if rooms else 1
            records.append(record(first_offset + number, message(seq, room, body)))
        made.append(Batch(0, records, first_offset + start - 1))
    return made


def server_cpu_s(pid: int | None) -> float:
    """CPU seconds that a process has used; 0 for none."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


async def rate(
    name: str, archive: Archive, pid: int | None, shape: str, asked: argparse.Namespace, offset: int
) -> Rate:
    """Archive `asked.messages` messages in that shape; the first tenth is not counted."""
    work = batches(shape, asked.messages, b"x" * asked.body, offset)
    archiver = HistoryArchiver("outbox", archive, RememberedLetters(), now_ms=lambda: 0)
    await archiver.start_position(0)
    warm = max(1, len(work) // 10)
    for one in work[:warm]:
        await archiver.handle(one)
    began, cpu, server = time.monotonic(), time.process_time(), server_cpu_s(pid)
    for one in work[warm:]:
        await archiver.handle(one)
    rows = sum(len(one.records) for one in work[warm:])
    taken, cpu, server = time.monotonic() - began, time.process_time() - cpu, server_cpu_s(pid) - server
    server_us = None if pid is None else server / rows * 1e6
    return Rate(name, shape, rows / taken, cpu / rows * 1e6, server_us)


async def page_ms(archive: Archive) -> tuple[float, float]:
    """P50 and P99 of a page of 100 of the busy conversation, in milliseconds."""
    taken = []
    for number in range(PAGES):
        began = time.monotonic()
        after = number * 37 % 1_500
        page = await archive.range(TENANT, "one-conversation-0", after, after + PAGE, PAGE)
        taken.append((time.monotonic() - began) * 1_000)
        if len(page) != PAGE:
            raise SystemExit(f"a page has {len(page)} messages instead of {PAGE}")
    taken.sort()
    return taken[len(taken) // 2], taken[len(taken) * 99 // 100]


async def measure(asked: argparse.Namespace, folder: Path, server: EmbeddedCassandra | None) -> int:
    """Measure and print; the exit code."""
    rates: list[Rate] = []
    pages: list[tuple[str, float, float]] = []
    async with AsyncExitStack() as opened:
        for name in asked.archive.split(","):
            archive: Archive
            if server is not None and name == "cassandra":
                await create_archive(options_of(server), replication({}, 1), BUCKET_SEQS_DEFAULT)
                archive = await CassandraArchive.open(options_of(server))
            else:
                archive = await RocksArchive.open(folder / "rocksdb")
            opened.push_async_callback(archive.close)
            pid = server.pid if server is not None and name == "cassandra" else None
            for number, shape in enumerate(SHAPES):
                rates.append(await rate(name, archive, pid, shape, asked, number * asked.messages))
            if await archive.watermark(0) != len(SHAPES) * asked.messages - 1:
                print(f"{name}: the watermark is {await archive.watermark(0)}", file=sys.stderr)
                return 1
            pages.append((name, *await page_ms(archive)))
    report(rates, pages, asked)
    return 0


def report(
    rates: Sequence[Rate], pages: Sequence[tuple[str, float, float]], asked: argparse.Namespace
) -> None:
    """Print the tables; write the file."""
    head = ("archive", "shape", "rows/s", "client us", "server us")
    print(reporting.table(head, [list(one) for one in rates]))
    print(reporting.table(("archive", f"page of {PAGE}: P50 ms", "P99 ms"), [list(one) for one in pages]))
    results = {
        "messages": asked.messages,
        "body_bytes": asked.body,
        "rates": [one._asdict() for one in rates],
        "page_ms": {name: {"p50": median, "p99": high} for name, median, high in pages},
    }
    reporting.save(asked.json, "archive_rate", None, results)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000, help="of each shape")
    parser.add_argument("--body", type=int, default=300, help="bytes of a body")
    parser.add_argument("--archive", default="rocksdb,cassandra", help="which, comma separated")
    parser.add_argument("--json", type=Path, help="write the figures there")
    asked = parser.parse_args()
    if asked.messages < 10 * BATCH or set(asked.archive.split(",")) - {"rocksdb", "cassandra"}:
        parser.error(f"--messages: at least {10 * BATCH}; --archive: rocksdb, cassandra")
    reporting.begin("archive: rows per second", None)
    with tempfile.TemporaryDirectory(prefix="qim-archive-rate-") as text:
        folder = Path(text)
        server = None
        if "cassandra" in asked.archive:
            server = EmbeddedCassandra(folder / "cassandra", quick=False).start()
        try:
            return uvloop.run(measure(asked, folder, server))
        finally:
            if server is not None:
                server.kill()


if __name__ == "__main__":
    sys.exit(main())
