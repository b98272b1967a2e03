"""The RocksDB archive as pairs: read beside its writer, and written anew.

Spec: §14.8.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from rocksdict import Rdict, WriteBatch

from qim_streams.archive import rocksdb_layout as layout
from qim_streams.archive import rocksdb_table as table
from qim_streams.backup.ports import Pair

BATCH_BYTES: Final = 1024 * 1024
BATCH_ROWS: Final = 2_000


class RocksPairs:
    """`ArchivePairs` of a directory: what the archiver had made durable when `open` was called."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._db: Rdict | None = None

    async def open(self) -> "RocksPairs":
        """Take the view. A directory without an archive is an empty one."""
        await asyncio.to_thread(self._open)
        return self

    def _open(self) -> None:
        if (self._directory / "CURRENT").exists():
            with tempfile.TemporaryDirectory(prefix="qim-backup-") as scratch:
                self._db = table.open_secondary(self._directory, Path(scratch))

    async def watermark(self, partition: int) -> int:
        """See the port."""
        db = self._db
        return -1 if db is None else await asyncio.to_thread(table.read_watermark, db, partition)

    async def pairs(self) -> AsyncIterator[Sequence[Pair]]:
        """See the port."""
        if self._db is None:
            return
        rows = iter(self._db.items())
        while batch := await asyncio.to_thread(_some, rows):
            yield batch

    async def close(self) -> None:
        """Give the view up."""
        db, self._db = self._db, None
        if db is not None:
            await asyncio.to_thread(table.close, db, f"the archive {self._directory}")


def _some(rows: Iterator[Pair]) -> list[Pair]:
    batch: list[Pair] = []
    nbytes = 0
    for key, value in islice(rows, BATCH_ROWS):
        batch.append((key, value))
        nbytes += len(key) + len(value)
        if nbytes >= BATCH_BYTES:
            break
    return batch


def write_pairs(directory: Path, batches: Iterator[Sequence[Pair]]) -> int:
    """Write an archive anew; how many pairs. Blocking. Durable afterwards."""
    db, count = table.open_writer(directory), 0
    try:
        for batch in batches:
            writes = WriteBatch(raw_mode=True)
            for key, value in batch:
                writes.put(bytes(key), bytes(value))
            db.write(writes)
            count += len(batch)
        db.flush_wal(sync=True)
    finally:
        table.close(db, f"the archive {directory}")
    return count


def begin_anew(directory: Path, partitions: int, watermark: int) -> None:
    """Let the archive say that it has everything up to `watermark` of a new Outbox, and no barrier yet."""
    db = table.open_writer(directory)
    try:
        for partition in range(partitions):
            db.delete(layout.fence_key(partition))
            db.put(layout.watermark_key(partition), layout.encode_watermark(watermark))
        db.flush_wal(sync=True)
    finally:
        table.close(db, f"the archive {directory}")
