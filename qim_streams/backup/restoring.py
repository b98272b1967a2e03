"""Restoring a backup into empty servers, before any role runs.

1. *Checks*: every file is what was written; the partition counts are the same; log, hot tier and archive are
   empty.
2. *The archive*, then the Outbox records that it lacked, by the archiver's own rules: afterwards it has every
   message of the backup.
3. *Logs of changes*: members and push devices, record by record.
4. *The Outbox* gets one barrier, which is removed again, so that it begins at offset 1; the archive says that
   it has everything below. So whatever is lost later, numbers are proved by the archive as always
   (`commit.lost_range`).
5. *The hot tier*: the families of the backup; then each partition is recovered as a writer would, and every
   conversation leaves `left_out` numbers out: what was sent after the backup had some of them.

Mailboxes are not restored: positions of the new logs are new ones, under epochs above all old ones, so every
device rebuilds from history, once.

Killed at any point: the servers are not empty then; empty them and repeat.

Spec: §8, §14.4, §14.8.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from qim_streams.archive.service import HistoryArchiver
from qim_streams.backup.files import check, read_rows
from qim_streams.backup.ports import HotFamilies, Logs
from qim_streams.backup.rocksdb_pairs import begin_anew, write_pairs
from qim_streams.backup.taking import ARCHIVE_FILE, CHANGES, HOT_FILE, OUTBOX, Shape, Tell, log_file
from qim_streams.errors import ConfigError
from qim_streams.log_ports import LogBatch
from qim_streams.ownership.log_fence import BARRIER_KEY, encode_barrier

BEGIN: Final = 1
BEGIN_EPOCH: Final = 1
APPEND_MAX: Final = 1_000
LEFT_OUT: Final = 10_000

Recover = Callable[[int, int], Awaitable[int]]
"""(partition, numbers to leave out) -> conversations."""

Carry = Callable[[], Awaitable[int]]
"""Carries states of users that wait for the archive into it -> how many."""


class _Record(NamedTuple):
    """`LogRecord` of a backup."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class _Batch:
    """`LogBatch` of a backup."""

    partition: int
    records: Sequence[_Record]
    previous_offset: int


class Restoring:
    """`archive_dir` must not exist or be empty; `archiver(directory)` opens an archiver on it."""

    def __init__(
        self,
        source: Path,
        shape: Shape,
        logs: Logs,
        hot: HotFamilies,
        archive_dir: Path,
        archiver: "Callable[[Path], Awaitable[tuple[HistoryArchiver, Callable[[], Awaitable[None]]]]]",
        recover: Recover,
        carry: Carry,
        tell: Tell,
    ) -> None:
        self._source, self._shape, self._logs, self._hot = source, shape, logs, hot
        self._archive_dir, self._archiver, self._recover = archive_dir, archiver, recover
        self._carry, self._tell = carry, tell

    async def run(self, left_out: int = LEFT_OUT) -> None:
        """All of it. ConfigError before anything was written, or when a store refuses."""
        manifest = await asyncio.to_thread(check, self._source)
        self._require_shape(manifest)
        await self._require_empty()
        await self._archive(manifest["watermarks"])
        for topic in CHANGES:
            for number in range(self._shape.partitions(topic)):
                await self._append(topic, number)
        self._tell("logs of members and devices: appended")
        for number in range(self._shape.outbox_partitions):
            await self._logs.append(OUTBOX, number, [(BARRIER_KEY, encode_barrier(BEGIN_EPOCH))])
            await self._logs.drop_below(OUTBOX, number, BEGIN)
        keys = 0
        for rows in read_rows(self._source / HOT_FILE):
            await self._hot.put([(bytes(key), int(ttl), bytes(dump)) for key, ttl, dump in rows])
            keys += len(rows)
        self._tell(f"hot tier: {keys} keys that no log has")
        for number in range(self._shape.outbox_partitions):
            count = await self._recover(number, left_out)
            self._tell(f"ob:{number}: whole, {count} conversations, {left_out} numbers of each are left out")
        # Before the first list is made: one that is made without them is believed.
        self._tell(f"session lists: {await self._carry()} states that the archive lacked")

    def _require_shape(self, manifest: dict[str, Any]) -> None:
        for name, wanted in self._shape.facts().items():
            if manifest.get(name) != wanted:
                raise ConfigError(
                    f"QIM_{name.upper()}: the backup is of {manifest.get(name)}, here are {wanted}; set it"
                )

    async def _require_empty(self) -> None:
        for topic in (OUTBOX, *CHANGES):
            for number in range(self._shape.partitions(topic)):
                if (await self._logs.bounds(topic, number))[1]:
                    raise ConfigError(f"{topic}[{number}]: is not empty; restore into new topics")
        if not await self._hot.is_empty():
            raise ConfigError("redis is not empty; restore into a new server")
        if self._archive_dir.exists() and any(self._archive_dir.iterdir()):
            raise ConfigError(f"{self._archive_dir}: is not empty; move the archive that is there away")

    async def _archive(self, watermarks: Sequence[int]) -> None:
        count = await asyncio.to_thread(
            write_pairs, self._archive_dir, read_rows(self._source / ARCHIVE_FILE)
        )
        archiver, close = await self._archiver(self._archive_dir)
        more = 0
        try:
            for number, watermark in enumerate(watermarks):
                before = await archiver.start_position(number) - 1
                if before != watermark:
                    raise ConfigError(
                        f"the archive of the backup is at {before}, its manifest says {watermark}"
                    )
                for batch in self._batches(number, before):
                    await archiver.handle(batch)
                    more += len(batch.records)
        finally:
            await close()
        await asyncio.to_thread(begin_anew, self._archive_dir, self._shape.outbox_partitions, BEGIN - 1)
        self._tell(f"archive: {count} rows, and {more} records that it lacked")

    def _batches(self, partition: int, before: int) -> Iterator[LogBatch]:
        for rows in read_rows(self._source / log_file(OUTBOX, partition)):
            yield _Batch(partition, [_Record(*row) for row in rows], before)
            before = rows[-1][0]

    async def _append(self, topic: str, partition: int) -> None:
        for rows in read_rows(self._source / log_file(topic, partition)):
            for start in range(0, len(rows), APPEND_MAX):
                part = rows[start : start + APPEND_MAX]
                await self._logs.append(topic, partition, [(key, value) for _, key, value in part])
