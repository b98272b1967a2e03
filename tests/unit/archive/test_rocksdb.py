"""What is special to the RocksDB archive: key order, publication order, repair, readers, opening.

Spec: §14.8.
"""

import asyncio
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from qim_streams import failpoints
from qim_streams.archive import rocksdb_layout as layout
from qim_streams.archive import rocksdb_table
from qim_streams.archive.errors import ArchiveLockedError
from qim_streams.archive.opening import open_archive, open_archive_reader
from qim_streams.archive.ports import SEQ_MAX, ArchivedMessage
from qim_streams.archive.rocksdb_archive import CHUNK_BYTES, RocksArchive
from qim_streams.archive.rocksdb_reader import RocksArchiveReader
from qim_streams.bounded_calls import BoundedCalls
from qim_streams.errors import ConfigError, Outcome, StoreError, StoreUnavailable
from qim_streams.settings import Settings

IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@~-]{0,6}", fullmatch=True)
Address = tuple[str, str, int]
ADDRESSES = st.tuples(IDS, IDS, st.integers(0, SEQ_MAX))


@given(ADDRESSES, ADDRESSES)
def test_keys_are_distinct_and_a_conversation_is_one_range(a: Address, b: Address) -> None:
    key_a, key_b = layout.message_key(*a), layout.message_key(*b)
    assert (key_a == key_b) == (a == b)
    assert layout.seq_of(key_a) == a[2]
    assert key_a.startswith(layout.conversation_prefix(a[0], a[1]))
    if a[:2] == b[:2]:
        assert (key_a < key_b) == (a[2] < b[2])
    else:
        assert not key_b.startswith(layout.conversation_prefix(a[0], a[1]))


@given(st.integers(-1, 2**63))
def test_watermarks_survive_their_encoding(watermark: int) -> None:
    assert layout.decode_watermark(layout.encode_watermark(watermark)) == watermark
    assert layout.decode_watermark(None) == -1


def message(seq: int, nbytes: int = 10) -> ArchivedMessage:
    return ArchivedMessage("acme", "room", seq, b"x" * nbytes)


@pytest.mark.parametrize(("point", "stored"), [("archiver.batch_partial", 0), ("archiver.batch_durable", 3)])
async def test_the_watermark_is_published_last(tmp_path: Path, point: str, stored: int) -> None:
    archive = await RocksArchive.open(tmp_path / "a")
    reader = RocksArchiveReader(tmp_path / "a", refresh_ms=0)
    failpoints.arm(f"{point}:1:raise")
    try:
        with pytest.raises(failpoints.FailpointError):
            await archive.store(0, [message(1), message(2), message(3)], 9)
    finally:
        failpoints.arm("")
    assert await archive.watermark(0) == await reader.watermark(0) == -1
    assert len(await archive.range("acme", "room", 0, 9, 9)) >= stored
    await archive.store(0, [message(1), message(2), message(3)], 9)
    assert await reader.watermark(0) == 9
    assert len(await reader.range("acme", "room", 0, 9, 9)) == 3
    await reader.close()
    await archive.close()


async def test_a_large_batch_is_written_in_bounded_pieces(tmp_path: Path) -> None:
    archive = await RocksArchive.open(tmp_path / "a")
    hits = 0

    def count(name: str) -> None:
        nonlocal hits
        hits += name == "archiver.batch_partial"

    original, failpoints.hit = failpoints.hit, count  # the archive looks it up at each call
    try:
        await archive.store(0, [message(seq, CHUNK_BYTES // 4) for seq in range(1, 18)], 0)
    finally:
        failpoints.hit = original
    assert hits == 5
    assert await archive.latest("acme", "room") == 17
    await archive.close()


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    archive = await RocksArchive.open(tmp_path / "a")
    await archive.store(2, [message(seq) for seq in range(1, 100)], 98)
    await archive.close()
    archive = await RocksArchive.open(tmp_path / "a")
    assert await archive.watermark(2) == 98
    await archive.store(2, [], 50)
    assert await archive.watermark(2) == 98, "the watermark read from disk is not lowered either"
    assert await archive.latest("acme", "room") == 99
    await archive.close()


async def test_a_failed_write_is_repaired_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await RocksArchive.open(tmp_path / "a")
    await archive.store(0, [message(1)], 0)
    broken = archive._db

    class Broken:
        def get(self, keys: list[bytes]) -> object:
            return broken.get(keys)  # type: ignore[union-attr]

        def write(self, batch: object) -> None:
            raise Exception("IO error: No space left on device")

        def close(self) -> None:
            broken.close()  # type: ignore[union-attr]

    monkeypatch.setattr(archive, "_db", Broken())
    with pytest.raises(StoreUnavailable, match="No space left") as raised:
        await archive.store(0, [message(2)], 1)
    assert raised.value.outcome is Outcome.UNKNOWN
    await archive.store(0, [message(2)], 1)
    assert await archive.watermark(0) == 1
    assert await archive.latest("acme", "room") == 2
    await archive.close()


async def test_a_second_writer_in_this_process_is_refused(tmp_path: Path) -> None:
    archive = await RocksArchive.open(tmp_path / "a")
    with pytest.raises(ArchiveLockedError, match="in use by another process"):
        await RocksArchive.open(tmp_path / "a")
    await archive.close()
    again = await RocksArchive.open(tmp_path / "a")
    await again.close()


async def test_another_layout_is_refused(tmp_path: Path) -> None:
    db = Rdict(str(tmp_path / "a"), Options(raw_mode=True))
    db.put(layout.VERSION_KEY, b"\x07")
    db.close()
    with pytest.raises(ConfigError, match="layout 07"):
        await RocksArchive.open(tmp_path / "a")
    reader = RocksArchiveReader(tmp_path / "a")
    with pytest.raises(ConfigError, match="layout 07"):
        await reader.watermark(0)
    await reader.close()


async def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        await RocksArchive.open(tmp_path / "file" / "a")


async def test_a_reader_may_come_first_and_follows_restarts(tmp_path: Path) -> None:
    reader = RocksArchiveReader(tmp_path / "a", refresh_ms=0)
    assert await reader.watermark(0) == -1
    assert await reader.latest("acme", "room") == 0
    assert await reader.range("acme", "room", 0, 5, 5) == []
    for seq in range(1, 4):
        archive = await RocksArchive.open(tmp_path / "a")
        await archive.store(0, [message(seq)], seq)
        assert await reader.watermark(0) == seq
        await archive.close()
        assert len(await reader.range("acme", "room", 0, 9, 9)) == seq
    await reader.close()


async def test_a_reader_catches_up_rarely_but_before_it_says_missing(tmp_path: Path) -> None:
    now = 0.0
    archive = await RocksArchive.open(tmp_path / "a")
    await archive.store(0, [message(1)], 0)
    reader = RocksArchiveReader(tmp_path / "a", refresh_ms=200, clock=lambda: now)
    assert await reader.watermark(0) == 0
    await archive.store(0, [message(2)], 1)
    assert await reader.watermark(0) == 0, "at most 200 ms old"
    assert await reader.records([("acme", "room", 2)]) == [message(2).record], "missing is asked twice"
    await archive.store(0, [message(3)], 2)
    assert len(await reader.range("acme", "room", 0, 3, 10)) == 3
    await archive.store(0, [message(4)], 3)
    now = 0.25
    assert await reader.watermark(0) == 3
    await reader.close()
    await archive.close()


async def test_a_reader_survives_compaction_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    archive = await RocksArchive.open(tmp_path / "a")
    await archive.store(0, [message(seq, 1_000) for seq in range(1, 400)], 0)
    reader = RocksArchiveReader(tmp_path / "a", refresh_ms=0)
    assert await reader.latest("acme", "room") == 399
    for start in range(400, 4_000, 400):
        await archive.store(0, [message(seq, 1_000) for seq in range(start, start + 400)], start)
        assert archive._db is not None
        archive._db.flush()
        archive._db.compact_range(None, None)
        found = await reader.range("acme", "room", start - 1, start + 399, 1_000)
        assert len(found) == 400
        assert not list(scratch.iterdir()), "also while it is open: it may be killed"
    await reader.close()
    await archive.close()


def test_errors_of_the_binding_are_translated() -> None:
    what = "the archive a"
    assert isinstance(rocksdb_table.translate(Exception("Corruption: bad block"), what), StoreError)
    assert not isinstance(rocksdb_table.translate(Exception("Corruption: bad block"), what), StoreUnavailable)
    assert isinstance(rocksdb_table.translate(Exception("IO error: disk"), what), StoreUnavailable)
    known = ConfigError("x")
    assert rocksdb_table.translate(known, what) is known


async def test_calls_are_bounded_and_survive_a_cancelled_caller() -> None:
    """P16: what piles up in front of a slow disk has a bound."""
    gate, calls = threading.Event(), BoundedCalls("test", calls_max=3)
    running = [asyncio.create_task(calls.run(gate.wait, 10)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="3 calls wait"):
        await calls.run(gate.wait, 10)
    running[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await running[0]
    gate.set()
    assert await running[1] is True
    assert await running[2] is True
    assert await calls.run(lambda: 5) == 5
    closed: list[bool] = []
    await calls.close(lambda: closed.append(True))
    await calls.close(lambda: closed.append(True))
    assert closed == [True]
    with pytest.raises(StoreError, match="closed"):
        await calls.run(lambda: 5)


async def test_opening_by_settings(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    reader = open_archive_reader(settings)
    archive = await open_archive(settings)
    await archive.store(0, [message(1)], 5)
    assert await reader.watermark(0) == 5
    with pytest.raises(ArchiveLockedError):
        await open_archive(settings.model_copy(update={"archive_lock_wait_s": 0.0}))
    waiting = asyncio.create_task(open_archive(settings))
    await asyncio.sleep(0)
    await archive.close()
    again = await waiting
    assert await again.watermark(0) == 5
    await again.close()
    await reader.close()
