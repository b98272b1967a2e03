"""The RocksDB archive between processes: one writer, readers beside it, kill -9, a full disk.

Real processes and files, no servers. Spec: §14.8; P11, T-R4.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qim_streams.archive.errors import ArchiveLockedError
from qim_streams.archive.rocksdb_archive import RocksArchive
from qim_streams.archive.rocksdb_reader import RocksArchiveReader

WRITER = """
import asyncio, sys
from pathlib import Path
from qim_streams.archive.ports import ArchivedMessage
from qim_streams.archive.rocksdb_archive import RocksArchive

async def main():
    archive = await RocksArchive.open(Path(sys.argv[1]))
    at = await archive.watermark(0) + 1
    print("open at", at, flush=True)
    while at < int(sys.argv[2]):
        batch = [ArchivedMessage("acme", "room", seq, b"%d" % seq) for seq in range(at + 1, at + 11)]
        at += 10
        await archive.store(0, batch, at - 1)
    print("done", flush=True)
    sys.stdin.readline()

asyncio.run(main())
"""

FULL_DISK = """
import asyncio, resource, signal, sys
from pathlib import Path
from qim_streams.archive.ports import ArchivedMessage
from qim_streams.archive.rocksdb_archive import RocksArchive
from qim_streams.errors import StoreUnavailable

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    archive = await RocksArchive.open(Path(sys.argv[1]))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    seq, failed = 0, 0
    while seq < 40:
        limit = 64 * 1024 if 10 <= seq and failed < 3 else hard
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        batch = [ArchivedMessage("acme", "room", seq + 1, b"x" * 20_000)]
        try:
            await archive.store(0, batch, seq)
        except StoreUnavailable as error:
            failed += 1
            print("failed", error, flush=True)
        else:
            seq += 1
    assert failed == 3, failed
    assert await archive.watermark(0) == 39
    found = await archive.range("acme", "room", 0, 40, 100)
    assert [one.conversation_seq for one in found] == list(range(1, 41))
    await archive.close()
    print("done", flush=True)

asyncio.run(main())
"""


def start(directory: Path, end: int, failpoint: str = "") -> "subprocess.Popen[str]":
    """A writer process that stores messages up to `end`, then waits for a line."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory), str(end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"QIM_FAILPOINT": failpoint},
    )


def line(process: "subprocess.Popen[str]") -> str:
    """The next line that the writer says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def test_one_writer_and_readers_beside_it(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    writer = start(directory, 1_000)
    try:
        assert line(writer) == "open at 0"
        assert line(writer) == "done"
        with pytest.raises(ArchiveLockedError, match="in use by another process"):
            await RocksArchive.open(directory)
        reader = RocksArchiveReader(directory, refresh_ms=0)
        assert await reader.watermark(0) == 999
        assert len(await reader.range("acme", "room", 0, 2_000, 1_000)) == 1_000
        await reader.close()
    finally:
        writer.communicate("\n", timeout=20)
    archive = await RocksArchive.open(directory)
    assert await archive.latest("acme", "room") == 1_000
    await archive.close()


@pytest.mark.parametrize(
    ("point", "nth"),
    [("archiver.batch_partial", 7), ("archiver.batch_durable", 5), ("archiver.batch_durable", 1)],
)
async def test_kill_at_each_step_leaves_a_true_watermark(tmp_path: Path, point: str, nth: int) -> None:
    """P11, I12: after kill -9 everything up to the watermark is there, and the next writer goes on."""
    directory = tmp_path / "archive"
    reader = RocksArchiveReader(directory, refresh_ms=0)
    killed = start(directory, 200, f"{point}:{nth}:kill")
    killed.communicate(timeout=20)
    assert killed.returncode == -signal.SIGKILL
    watermark = await reader.watermark(0)
    assert watermark == (nth - 1) * 10 - 1
    found = await reader.range("acme", "room", 0, 1_000, 1_000)
    assert [one.conversation_seq for one in found][: watermark + 1] == list(range(1, watermark + 2))
    again = start(directory, 200)
    assert line(again) == f"open at {watermark + 1}"
    assert line(again) == "done"
    again.communicate("\n", timeout=20)
    found = await reader.range("acme", "room", 0, 1_000, 1_000)
    assert [(one.conversation_seq, one.record) for one in found] == [(n, b"%d" % n) for n in range(1, 201)]
    await reader.close()


def test_a_full_disk_is_unavailable_until_there_is_room(tmp_path: Path) -> None:
    """T-R4: the limit on file sizes stands for a full disk; RocksDB is opened anew after each failure."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "archive")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("failed") == 3
    assert done.stdout.endswith("done\n")
