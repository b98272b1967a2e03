"""The archiver as a process of its own on a real log: kill -9 at every step, poison, a full disk, a rival.

Spec: §1 ARCHIVED, §3, §14.8; P11, P13, I12, I15, T-R4.
"""

import resource
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qim_streams import failpoints
from qim_streams.placement import outbox_partition
from qim_streams.streaming.dead_letter_record import DeadLetter
from qim_streams.streaming.doubt import EXIT_CONFIG
from tests.integration.archive.archiving import DEAD_LETTERS, OUTBOX, Archiving, rocksdb_archiving
from tests.integration.archive.conftest import PARTITIONS, Log
from tests.support.waiting import eventually_sync
from tests.unit.archive.outbox_batches import TENANT

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fresh_outbox")]


@pytest.fixture
async def archiving(log: Log, tmp_path: Path) -> AsyncIterator[Archiving]:
    """Nothing runs yet."""
    archiving = rocksdb_archiving(log, tmp_path)
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
    anew = archiving.directory / "anew"
    anew.mkdir()
    again = rocksdb_archiving(archiving.log, anew)
    archiving.directory, archiving.reader, archiving.environment = anew, again.reader, again.environment
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
