"""Reading a RocksDB archive from another process than its writer: a RocksDB secondary instance.

A secondary takes no lock, follows the writer's log and manifest when it is told to catch up, and goes
on over restarts of the writer. It catches up at most every `refresh_ms` (1.3 ms of one core each), and
once more before it answers that something is missing. So answers may be `refresh_ms` old, and a
message that the writer stored before the call is never reported missing.

An archive that does not exist yet reads as empty: gateways may start before the first archiver.

Spec: §14.8.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from rocksdict import Rdict

from qim_streams.archive import rocksdb_table as table
from qim_streams.archive.ports import ArchivedMessage, require_limit
from qim_streams.archive.rocksdb_states import read_states
from qim_streams.bounded_calls import BoundedCalls
from qim_streams.sessions.ports import ArchivedState

REFRESH_MS = 200
T = TypeVar("T")


class RocksArchiveReader:
    """An `ArchiveReader` beside the writer. Nothing is opened before the first read."""

    def __init__(
        self, directory: Path, *, refresh_ms: int = REFRESH_MS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory = directory
        self._refresh_s = refresh_ms / 1000
        self._clock = clock
        self._calls = BoundedCalls(f"archive reader {directory.name}")
        self._db: Rdict | None = None
        self._fresh_until = float("-inf")

    async def watermark(self, partition: int) -> int:
        """The archive watermark of an Outbox partition, -1 for none; at most `refresh_ms` old."""
        return await self._calls.run(self._read, partial(table.read_watermark, partition=partition), -1)

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where the archive has none."""
        nothing: list[bytes | None] = [None] * len(wanted)
        return await self._calls.run(
            self._read_fully,
            partial(table.read_records, wanted=wanted),
            nothing,
            lambda found: None not in found,
        )

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
        full = max(0, min(require_limit(limit), up_to_seq - after_seq))
        nothing: list[ArchivedMessage] = []
        return await self._calls.run(
            self._read_fully,
            lambda db: table.read_range(
                db, (tenant_id, conversation_id), after_seq, up_to_seq, limit, newest_first=newest_first
            ),
            nothing,
            # From the upper end a full page may still lack the newest ones.
            lambda found: (
                len(found) >= full
                and (not newest_first or not full or found[0].conversation_seq == up_to_seq)
            ),
        )

    async def latest(self, tenant_id: str, conversation_id: str) -> int:
        """The largest archived seq of a conversation, 0 for none; at most `refresh_ms` old."""
        return await self._calls.run(
            self._read, lambda db: table.read_latest(db, tenant_id, conversation_id), 0
        )

    async def user_states(
        self, tenant_id: str, user_id: str, after_conversation_id: str, limit: int
    ) -> list[ArchivedState]:
        """States of a user, from the newest state of the archive; see `sessions.ports.UserStateReader`."""
        nothing: list[ArchivedState] = []
        return await self._calls.run(
            self._read_fully,
            lambda db: read_states(db, (tenant_id, user_id), after_conversation_id, limit),
            nothing,
            lambda found: False,  # what is there may be an old version: always the newest state
        )

    async def close(self) -> None:
        """Release the secondary."""
        await self._calls.close(self._drop)

    # -- in the reader's thread

    def _read_fully(self, read: Callable[[Rdict], T], missing: T, complete: Callable[[T], bool]) -> T:
        """As `_read`, and once more from the newest state when the answer is not `complete`."""
        found = self._read(read, missing)
        if complete(found):
            return found
        self._fresh_until = float("-inf")
        return self._read(read, missing)

    def _read(self, read: Callable[[Rdict], T], missing: T) -> T:
        what = f"the archive {self.directory}"
        try:
            db = self._caught_up()
            return missing if db is None else read(db)
        except Exception as error:
            self._drop()
            raise table.translate(error, what) from error

    def _caught_up(self) -> Rdict | None:
        if self._db is None:
            if not (self.directory / "CURRENT").exists():
                return None
            # RocksDB wants a directory for a secondary's log file and writes nothing else there. It is
            # gone from the file system at once, so a process that is killed leaves nothing behind.
            with tempfile.TemporaryDirectory(prefix="qim-archive-reader-") as scratch:
                self._db = table.open_secondary(self.directory, Path(scratch))
        elif self._clock() < self._fresh_until:
            return self._db
        else:
            self._db.try_catch_up_with_primary()
        self._fresh_until = self._clock() + self._refresh_s
        return self._db

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            table.close(db, f"the archive {self.directory}")
