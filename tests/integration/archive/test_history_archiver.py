"""The archiver as a process of its own on a real log: kill -9 at every step, poison, a full disk, a rival.

Spec: §1 ARCHIVED, §3, §14.8; P11, P13, I12, I15, T-R4.
"""

import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qim_streams import failpoints
from qim_streams.archive.rocksdb_reader import RocksArchiveReader
from qim_streams.embedded.process import ChildProcess, child_env, start_child
from qim_streams.placement import outbox_partition
from qim_streams.streaming.dead_letter import DeadLetter
from qim_streams.streaming.doubt import EXIT_CONFIG
from tests.integration.archive.conftest import PARTITIONS, Log
from tests.support.waiting import eventually, eventually_sync
from tests.unit.archive.outbox_batches import TENANT, message, record

ROOT = Path(__file__).resolve().parents[3]
OUTBOX, DEAD_LETTERS = "qim.outbox.v1", "qim.dead-letter.v1"

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fresh_outbox")]


class Archiving:
    """Archiver processes on one archive directory, and what a test puts into the Outbox."""

    def __init__(self, log: Log, directory: Path) -> None:
        self.log, self.directory = log, directory
        self.reader = RocksArchiveReader(directory / "archive", refresh_ms=0)
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
            "QIM_ARCHIVE_ROCKSDB_DIR": str(self.directory / "archive"),
            "QIM_OUTBOX_PARTITIONS": str(PARTITIONS),
            "QIM_MAILBOX_SHARDS": str(PARTITIONS),
            "QIM_WORKER_SLOT": str(slot),
            "QIM_STREAM_SESSION_TIMEOUT_MS": "3000",
            "QIM_STREAM_CHUNK_MAX": "20",
            "QIM_STREAM_BATCH_MAX": "20",
            "QIM_ARCHIVE_LOCK_WAIT_S": "3",
            "QIM_FAILPOINT": failpoint,
            "QIM_FAILPOINT_LATCH": str(latch),
        }
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

    def poison(self, partition: int, values: list[bytes | None]) -> None:
        """Poison records into the Outbox."""
        self._append(partition, [(b"key", value) for value in values])

    def _append(self, partition: int, records: list[tuple[bytes | None, bytes | None]]) -> None:
        self.log.append(OUTBOX, partition, records)
        self.ends[partition] += len(records)

    async def caught_up(self, within_s: float = 60.0) -> None:
        """Until the archive watermark of every partition is at its end."""

        async def done() -> bool:
            at = {p: await self.reader.watermark(p) for p in self.ends}
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
        rooms = {room for room, _ in self.good}
        found = [one for room in rooms for one in await self.reader.range(TENANT, room, 0, 2**40, 1_000)]
        return {(one.conversation_id, one.conversation_seq): one.record for one in found}

    async def check(self) -> None:
        """I12: what is archived is what is in the Outbox, no more, no less, byte for byte."""
        await self.caught_up()
        assert await self.archived() == self.good


@pytest.fixture
async def archiving(log: Log, tmp_path: Path) -> AsyncIterator[Archiving]:
    """Nothing runs yet."""
    archiving = Archiving(log, tmp_path)
    yield archiving
    await archiving.reader.close()


ROOMS = [f"room-{number}" for number in range(8)]


async def test_every_message_is_archived_once_through_kills_at_every_step(archiving: Archiving) -> None:
    """P11, I12: each failpoint kills the archiver once, in the middle of live traffic."""
    for room in ROOMS:
        archiving.send(room, range(1, 101))
    points = sorted(name for name in failpoints.NAMES if name.startswith("archiver."))
    spec = ",".join(f"{point}:{nth}:kill" for point, nth in zip(points, (7, 5, 9), strict=True))
    for number, _ in enumerate(points):
        killed = archiving.start(failpoint=spec)
        code = killed.wait(60)
        assert code == -signal.SIGKILL, archiving.log_text()[-3000:]
        archiving.send(ROOMS[number], range(101, 151))
    last = archiving.start(failpoint=spec)
    archiving.send(ROOMS[-1], range(101, 151))
    await archiving.check()
    assert last.poll() is None
    assert len(list((archiving.directory / "latch").iterdir())) == len(points), "every point was hit"
    last.send_signal(signal.SIGTERM)
    assert last.wait(30) == 0


async def test_poison_costs_only_itself(archiving: Archiving) -> None:
    """P13, I15: to the dead letters with bytes, cause and coordinates; its neighbours are archived."""
    partition = outbox_partition(TENANT, ROOMS[0], PARTITIONS)
    archiving.send(ROOMS[0], range(1, 11))
    archiving.poison(partition, [b"junk", None, b"", b"\x02future"])
    archiving.send(ROOMS[0], range(11, 21))
    archiving.start()
    await archiving.check()
    letters = [
        DeadLetter.decode(value or b"")
        for rows in archiving.log.read(DEAD_LETTERS, 1).values()
        for _, _, value in rows
    ]
    assert [(one.topic, one.partition, one.offset, one.value) for one in letters] == [
        (OUTBOX, partition, 10, b"junk"),
        (OUTBOX, partition, 11, None),
        (OUTBOX, partition, 12, b""),
        (OUTBOX, partition, 13, b"\x02future"),
    ]
    assert {(one.cause, one.role) for one in letters} == {("RecordError", "history-archiver")}
    assert all(one.message for one in letters)


async def test_the_start_is_the_archives_watermark_not_the_groups_offset(archiving: Archiving) -> None:
    """§11 rule 1: an archive that was thrown away is filled again, whatever the group has committed."""
    archiving.send(ROOMS[1], range(1, 201))
    first = archiving.start()
    await archiving.check()
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    await archiving.reader.close()
    archiving.directory = archiving.directory / "anew"
    archiving.directory.mkdir()
    archiving.reader = RocksArchiveReader(archiving.directory / "archive", refresh_ms=0)
    archiving.start()
    await archiving.check()


async def test_a_full_disk_holds_the_archiver_and_nothing_else(archiving: Archiving) -> None:
    """T-R4: retried in place, not acknowledged, not exited; it catches up when there is room."""
    archiving.send(ROOMS[2], range(1, 11))
    child = archiving.start()
    await archiving.check()
    _, hard = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (256 * 1024, hard))
    archiving.send(ROOMS[2], range(11, 111), body=b"x" * 20_000)
    eventually_sync(lambda: "StoreUnavailable" in archiving.log_text(), 30, "the archive to be unavailable")
    archiving.send(ROOMS[3], range(1, 11))  # sends go on
    partition = outbox_partition(TENANT, ROOMS[2], PARTITIONS)
    assert await archiving.reader.watermark(partition) < archiving.ends[partition] - 1
    assert child.poll() is None
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (hard, hard))
    await archiving.check()
    assert child.poll() is None


async def test_a_second_archiver_is_refused_and_harms_nothing(archiving: Archiving) -> None:
    """One process owns the RocksDB directory; the other never joins the group."""
    archiving.send(ROOMS[4], range(1, 51))
    first = archiving.start()
    await archiving.check()
    second = archiving.start(slot=1)
    eventually_sync(lambda: "is in use; waiting" in archiving.log_text(1), 30, "the second one to wait")
    archiving.send(ROOMS[4], range(51, 101))
    await archiving.check()
    assert second.wait(60) == EXIT_CONFIG
    assert "is in use by another process" in archiving.log_text(1)
    archiving.send(ROOMS[4], range(101, 151))
    await archiving.check()
    assert first.poll() is None
