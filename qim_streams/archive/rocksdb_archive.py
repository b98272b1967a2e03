"""The RocksDB archive: the embedded default. One process writes a directory, any number read beside it.

Invariants:

* `store` writes the messages, waits for the disk, and only then writes the watermark. The watermark
  that anybody can see therefore covers durable messages only. A power loss may take the newest
  watermark with it (it reaches the disk with the next batch), never a message below the one that is left.
* One writer: RocksDB's lock on the directory. A second one gets `ArchiveLockedError`.
* After a failed write the database is opened anew before the next call, since RocksDB refuses writes
  for good after some disk errors.

Why not one synchronous write of messages and watermark: the binding keeps the interpreter lock while
``write`` waits for the disk, which stops the event loop and its heartbeats for as long as the disk
takes; ``flush_wal`` gives the lock back. Measured with 300 MB: longest stop of another thread 1,359 ms
in ``write``, 0.3 ms in ``flush_wal(sync=True)``. Hence small unsynchronised writes (`CHUNK_BYTES`) and
one ``flush_wal``: 0.9 ms for 500 messages of 400 bytes, with one disk flush.

What it does not do: coalesce the batches of several partitions into one disk flush (batches grow by
themselves while a lane waits), or trim: the archive is for ever.

Spec: §1, §3, §14.8.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from rocksdict import Rdict, WriteBatch

from qim_streams import failpoints
from qim_streams.archive import rocksdb_layout as layout
from qim_streams.archive import rocksdb_table as table
from qim_streams.archive.ports import ArchivedMessage, require_limit
from qim_streams.archive.rocksdb_states import read_states, write_states
from qim_streams.bounded_calls import BoundedCalls
from qim_streams.sessions.ports import ArchivedState

CHUNK_BYTES = 256 * 1024  # about 1 ms of interpreter lock per write
T = TypeVar("T")


class RocksArchive:
    """The archive's only writer. `open` it; blocking calls run in one thread of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._calls = BoundedCalls(f"archive {directory.name}")
        self._db: Rdict | None = None
        self._watermarks: dict[int, int] = {}

    @classmethod
    async def open(cls, directory: Path) -> Self:
        """The archive of `directory`, created if missing; ArchiveLockedError when another process has it."""
        archive = cls(directory)
        try:
            await archive._calls.run(archive._opened)
        except BaseException:
            await archive.close()
            raise
        return archive

    async def store(self, partition: int, messages: Sequence[ArchivedMessage], watermark: int) -> None:
        """Messages durable, then the watermark; see the port."""
        await self._calls.run(self._store, partition, messages, watermark)

    async def fence(self, partition: int) -> int:
        """The epoch of the last barrier that was passed, 0 for none."""
        return await self._calls.run(self._read, partial(_fence_of, partition=partition))

    async def raise_fence(self, partition: int, epoch: int) -> None:
        """In the write-ahead log before any later watermark; see the port."""
        await self._calls.run(self._raise_fence, partition, epoch)

    async def watermark(self, partition: int) -> int:
        """The archive watermark of an Outbox partition, -1 for none."""
        return await self._calls.run(self._read, partial(table.read_watermark, partition=partition))

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where there is none."""
        return await self._calls.run(self._read, partial(table.read_records, wanted=wanted))

    async def range(
        self,
        tenant_id: str,
        conversation_id: str,
        after_seq: int,
        up_to_seq: int,
        limit: int,
        *,
        newest_first: bool = False,
    ) -> list[ArchivedMessage]:
        """after_seq < seq <= up_to_seq, at most `limit`, from the end that `newest_first` names."""
        require_limit(limit)
        return await self._calls.run(
            self._read,
            lambda db: table.read_range(
                db, (tenant_id, conversation_id), after_seq, up_to_seq, limit, newest_first=newest_first
            ),
        )

    async def latest(self, tenant_id: str, conversation_id: str) -> int:
        """The largest archived seq of a conversation, 0 for none."""
        return await self._calls.run(self._read, lambda db: table.read_latest(db, tenant_id, conversation_id))

    async def store_states(self, states: Sequence[ArchivedState]) -> None:
        """States of users durable; see `sessions.ports.UserStateArchive`."""
        await self._calls.run(self._store_states, states)

    async def user_states(
        self, tenant_id: str, user_id: str, after_conversation_id: str, limit: int
    ) -> list[ArchivedState]:
        """States of a user; see `sessions.ports.UserStateReader`."""
        user = (tenant_id, user_id)
        return await self._calls.run(
            self._read, lambda db: read_states(db, user, after_conversation_id, limit)
        )

    async def close(self) -> None:
        """Let waiting calls end and release the directory."""
        await self._calls.close(self._drop)

    # -- in the archive's thread

    def _opened(self) -> Rdict:
        if self._db is None:
            self._db = table.open_writer(self.directory)
            self._watermarks.clear()
        return self._db

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            table.close(db, f"the archive {self.directory}")

    def _read(self, read: Callable[[Rdict], T]) -> T:
        db = self._opened()
        try:
            return read(db)
        except Exception as error:
            raise table.translate(error, f"the archive {self.directory}") from error

    def _store(self, partition: int, messages: Sequence[ArchivedMessage], watermark: int) -> None:
        db = self._opened()
        try:
            for batch in _batches(table.without_superseded(db, messages)):
                db.write(batch)
                failpoints.hit("archiver.batch_partial")
            if messages:
                db.flush_wal(True)
            failpoints.hit("archiver.batch_durable")
            self._publish(db, partition, watermark)
        except failpoints.FailpointError:
            raise
        except Exception as error:
            self._drop()
            raise table.translate(error, f"the archive {self.directory}") from error

    def _raise_fence(self, partition: int, epoch: int) -> None:
        db = self._opened()
        try:
            if epoch > _fence_of(db, partition):
                db.put(layout.fence_key(partition), layout.encode_fence(epoch))
        except Exception as error:
            self._drop()
            raise table.translate(error, f"the archive {self.directory}") from error

    def _store_states(self, states: Sequence[ArchivedState]) -> None:
        db = self._opened()
        try:
            write_states(db, states)
        except Exception as error:
            self._drop()
            raise table.translate(error, f"the archive {self.directory}") from error

    def _publish(self, db: Rdict, partition: int, watermark: int) -> None:
        current = self._watermarks.get(partition)
        if current is None:
            current = table.read_watermark(db, partition)
        if watermark > current:
            db.put(layout.watermark_key(partition), layout.encode_watermark(watermark))
            current = watermark
        self._watermarks[partition] = current


def _fence_of(db: Rdict, partition: int) -> int:
    return layout.decode_fence(db.get(layout.fence_key(partition)))


def _batches(messages: Sequence[ArchivedMessage]) -> Iterator[WriteBatch]:
    batch = WriteBatch(raw_mode=True)
    for message in messages:
        batch.put(
            layout.message_key(message.tenant_id, message.conversation_id, message.conversation_seq),
            layout.encode_message(message.record, message.revision),
        )
        if batch.size_in_bytes() >= CHUNK_BYTES:
            yield batch
            batch = WriteBatch(raw_mode=True)
    if not batch.is_empty():
        yield batch
