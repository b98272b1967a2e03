"""Archiver processes on a real Cassandra: kills at every step, several of them, a node that dies or freezes.

Spec: §1 ARCHIVED, §3, §14.8; P11, I12, T-R4.
"""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qim_streams import failpoints
from qim_streams.archive.cassandra_archive import CassandraArchive
from qim_streams.archive.cassandra_session import CassandraOptions
from qim_streams.embedded.cassandra import EmbeddedCassandra
from tests.integration.archive.archiving import Archiving
from tests.integration.archive.conftest import Log
from tests.support.waiting import eventually_sync

ROOMS = [f"room-{number}" for number in range(8)]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fresh_outbox")]


@pytest.fixture
async def archiving(
    log: Log, tmp_path: Path, cassandra_options: CassandraOptions
) -> AsyncIterator[Archiving]:
    """Nothing runs yet; the archive is empty."""
    environment = {
        "QIM_ARCHIVE": "cassandra",
        "QIM_CASSANDRA_HOSTS": ",".join(cassandra_options.hosts),
        "QIM_CASSANDRA_PORT": str(cassandra_options.port),
        "QIM_CASSANDRA_KEYSPACE": cassandra_options.keyspace,
        "QIM_CASSANDRA_REQUEST_TIMEOUT_MS": "1000",
    }
    archiving = Archiving(log, tmp_path, CassandraArchive(cassandra_options), environment)
    yield archiving
    await archiving.reader.close()


async def test_kills_at_every_step_with_two_archivers(archiving: Archiving) -> None:
    """P11, I12: partitions go to and fro between two archivers, and every message is archived once."""
    for room in ROOMS:
        archiving.send(room, range(1, 61))
    steady = archiving.start(slot=1)
    points = sorted(name for name in failpoints.NAMES if name.startswith("archiver."))
    spec = ",".join(f"{point}:3:kill" for point in points)
    for number, _ in enumerate(points):
        killed = archiving.start(failpoint=spec)

        while killed.poll() is None:
            first = archiving.count(ROOMS[number]) + 1
            archiving.send(ROOMS[number], range(first, first + 5))
            assert first < 5_000, archiving.log_text()[-3000:]
        assert killed.poll() == -signal.SIGKILL, archiving.log_text()[-3000:]
    await archiving.check()
    assert steady.poll() is None
    assert len(list((archiving.directory / "latch").iterdir())) == len(points), "every point was hit"


async def test_a_node_that_is_down_holds_the_archiver_and_nothing_else(
    archiving: Archiving, cassandra_node: EmbeddedCassandra
) -> None:
    """T-R4: at its start and later: it waits, it does not end, and it catches up."""
    archiving.send(ROOMS[0], range(1, 21))
    cassandra_node.kill()
    try:
        child = archiving.start()
        eventually_sync(lambda: "start position" in archiving.log_text(), 60, "it to ask for its position")
        archiving.send(ROOMS[1], range(1, 21))
    finally:
        cassandra_node.start()
    await archiving.check()
    cassandra_node.kill()
    try:
        for room in ROOMS:
            first = archiving.count(room) + 1
            archiving.send(room, range(first, first + 50))
        eventually_sync(lambda: "StoreUnavailable" in archiving.log_text(), 60, "it to meet the outage")
    finally:
        cassandra_node.start()
    await archiving.check()
    assert child.poll() is None, "the same process all the time"


async def test_a_write_without_an_answer_is_written_again_until_it_is_settled(
    archiving: Archiving, cassandra_node: EmbeddedCassandra
) -> None:
    """A node that freezes in the middle: time-outs say nothing about what was applied."""
    child = archiving.start()
    archiving.send(ROOMS[0], range(1, 11))
    await archiving.caught_up()
    cassandra_node.pause()
    try:
        for room in ROOMS:
            first = archiving.count(room) + 1
            archiving.send(room, range(first, first + 50))
        eventually_sync(lambda: "StoreUnavailable" in archiving.log_text(), 60, "writes to time out")
    finally:
        cassandra_node.resume()
    await archiving.check()
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 0
