"""Archiver processes on one archive, and what a test puts into the Outbox.

Spec: §1 ARCHIVED, §3, §14.8.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from qim_streams.archive.ports import SEQ_MAX, ArchiveReader
from qim_streams.archive.rocksdb_reader import RocksArchiveReader
from qim_streams.embedded.process import ChildProcess, child_env, start_child
from qim_streams.errors import StoreUnavailable
from qim_streams.placement import outbox_partition
from tests.integration.archive.conftest import PARTITIONS, Log
from tests.support.waiting import eventually
from tests.unit.archive.outbox_batches import TENANT, message, record

ROOT = Path(__file__).resolve().parents[3]
OUTBOX, DEAD_LETTERS = "qim.outbox.v1", "qim.dead-letter.v1"
NO_REDIS = "redis://127.0.0.1:1/0"  # nothing listens there: archiving does not need the hot tier


class Archiving:
    """Archiver processes on one archive, and what a test puts into the Outbox."""

    def __init__(
        self, log: Log, directory: Path, reader: ArchiveReader, environment: Mapping[str, str]
    ) -> None:
        """`environment`: the settings that name the archive."""
        self.log, self.directory, self.reader = log, directory, reader
        self.environment = environment
        self.good: dict[tuple[str, int], bytes] = {}
        self.ends = dict.fromkeys(range(PARTITIONS), 0)

    def start(self, slot: int = 0, failpoint: str = "") -> ChildProcess:
        """Start an archiver. Slot and state directory are its own, the archive is shared."""
        state = self.directory / f"archiver-{slot}"
        latch = self.directory / "latch"
        for path in (state, latch):
            path.mkdir(exist_ok=True)
        environment = {
            "QIM_BROKERS": self.log.brokers,
            "QIM_STATE_DIR": str(state),
            "QIM_OUTBOX_PARTITIONS": str(PARTITIONS),
            "QIM_MAILBOX_SHARDS": str(PARTITIONS),
            "QIM_WORKER_SLOT": str(slot),
            "QIM_STREAM_SESSION_TIMEOUT_MS": "3000",
            "QIM_STREAM_CHUNK_MAX": "20",
            "QIM_STREAM_BATCH_MAX": "20",
            "QIM_ARCHIVE_LOCK_WAIT_S": "3",
            "QIM_FAILPOINT": failpoint,
            "QIM_FAILPOINT_LATCH": str(latch),
            "QIM_REDIS_URL": NO_REDIS,
        } | self.environment
        child = start_child(
            "archiver",
            [sys.executable, "-m", "faust", "-A", "agents.history_archiver", "worker", "--loglevel", "info"],
            env=child_env(environment, settings=False),
            log_path=self.directory / f"archiver-{slot}.log",
            cwd=ROOT,
        )
        self.log.children.append(child)
        return child

    def send(self, room: str, seqs: range, body: bytes = b"hello") -> None:
        """Messages of a room into the Outbox."""
        partition = outbox_partition(TENANT, room, PARTITIONS)
        messages = [message(seq, room, body) for seq in seqs]
        self.good |= {(room, one.conversation_seq): one.encode() for one in messages}
        records = [record(0, one) for one in messages]
        self._append(partition, [(one.key, one.value) for one in records])

    def count(self, room: str) -> int:
        """How many messages of a room were sent."""
        return sum(1 for name, _ in self.good if name == room)

    def poison(self, partition: int, values: list[bytes | None]) -> None:
        """Poison records into the Outbox."""
        self._append(partition, [(b"key", value) for value in values])

    def _append(self, partition: int, records: list[tuple[bytes | None, bytes | None]]) -> None:
        self.log.append(OUTBOX, partition, records)
        self.ends[partition] += len(records)

    async def caught_up(self, within_s: float = 60.0) -> None:
        """Until the archive watermark of every partition is at its end."""

        async def done() -> bool:
            try:
                at = {p: await self.reader.watermark(p) for p in self.ends}
            except StoreUnavailable:
                return False  # the archive is just coming back
            return all(at[p] >= end - 1 for p, end in self.ends.items())

        try:
            await eventually(done, within_s, "the archive to catch up")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_text()[-3000:]}") from None

    def log_text(self, slot: int = 0) -> str:
        """What an archiver has logged."""
        return (self.directory / f"archiver-{slot}.log").read_text(errors="replace")

    async def archived(self) -> dict[tuple[str, int], bytes]:
        """Everything in the archive, by room and seq."""
        found: dict[tuple[str, int], bytes] = {}
        for room in {room for room, _ in self.good}:
            after = 0
            while page := await self.reader.range(TENANT, room, after, SEQ_MAX, 1_000):
                found |= {(room, one.conversation_seq): one.record for one in page}
                after = page[-1].conversation_seq
        return found

    async def check(self) -> None:
        """I12: what is archived is what is in the Outbox, no more, no less, byte for byte."""
        await self.caught_up()
        assert await self.archived() == self.good


def rocksdb_archiving(log: Log, directory: Path) -> Archiving:
    """On a RocksDB archive in `directory`."""
    archive = directory / "archive"
    return Archiving(
        log,
        directory,
        RocksArchiveReader(archive, refresh_ms=0),
        {"QIM_ARCHIVE_ROCKSDB_DIR": str(archive)},
    )
