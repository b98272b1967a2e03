"""Making the archive's schema on a real node, and what is said when it is not as it must be.

Spec: §14.8.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from qim_streams.archive import cassandra_schema as schema
from qim_streams.archive.cassandra_admin import create_archive
from qim_streams.archive.cassandra_archive import CassandraArchive
from qim_streams.archive.cassandra_session import CassandraSession
from qim_streams.archive.ports import ArchivedMessage
from qim_streams.embedded.cassandra import EmbeddedCassandra
from qim_streams.errors import ConfigError, Outcome, StoreUnavailable
from tests.support.cassandra_node import options_of, run_apart

ONE = schema.replication({}, 1)
NAME = "qim_admin"


async def statement(server: EmbeddedCassandra, text: str) -> None:
    """Run CQL in no keyspace."""
    session = CassandraSession(options_of(server), keyspace=False)
    await session.execute(text, timeout_s=60)
    await session.close()


@pytest.fixture(scope="module")
def made(cassandra_node: EmbeddedCassandra) -> Iterator[EmbeddedCassandra]:
    """A node with an archive made by the command, in a keyspace of its own."""
    command = [sys.executable, "-m", "qim_streams.cli", "archive", "init", "--bucket-seqs", "50"]
    env = os.environ | {"QIM_CASSANDRA_PORT": str(cassandra_node.port), "QIM_CASSANDRA_KEYSPACE": NAME}
    for _ in range(2):
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert f"keyspace {NAME}" in done.stdout
        assert "50 messages in a bucket" in done.stdout
        assert "QIM_ARCHIVE=cassandra" in done.stderr
    yield cassandra_node
    run_apart(statement(cassandra_node, f"DROP KEYSPACE {NAME}"))


async def test_the_command_may_be_repeated_and_keeps_what_is_there(made: EmbeddedCassandra) -> None:
    options = options_of(made, NAME)
    archive = await CassandraArchive.open(options)
    stored = [ArchivedMessage("t", "c", seq, b"%d" % seq) for seq in (1, 49, 50, 51, 150)]
    await archive.store(0, stored, 4)
    assert await create_archive(options, ONE, 50) == schema.Layout(schema.LAYOUT_VERSION, 50)
    assert await archive.range("t", "c", 0, 1_000, 10) == stored
    await archive.close()


async def test_another_bucket_size_is_refused(made: EmbeddedCassandra) -> None:
    with pytest.raises(ConfigError, match=r"50 seqs in a bucket, not 60.*--bucket-seqs at 50"):
        await create_archive(options_of(made, NAME), ONE, 60)


async def test_an_archive_of_a_newer_version_is_refused(made: EmbeddedCassandra) -> None:
    row = f"INSERT INTO {NAME}.archive_layout (id, layout) VALUES ('archive', %d) USING TIMESTAMP %d"
    await statement(made, row % (9, 2))
    try:
        with pytest.raises(ConfigError, match="layout 9"):
            await CassandraArchive.open(options_of(made, NAME))
        with pytest.raises(ConfigError, match="layout 9"):
            await create_archive(options_of(made, NAME), ONE, 50)
    finally:
        await statement(made, row % (schema.LAYOUT_VERSION, 3))


async def test_a_keyspace_that_was_not_made_is_named(cassandra_node: EmbeddedCassandra) -> None:
    with pytest.raises(ConfigError, match=r"no keyspace nowhere: run `qim archive init`"):
        await CassandraArchive.open(options_of(cassandra_node, "nowhere"))


async def test_a_write_needs_a_quorum(cassandra_node: EmbeddedCassandra) -> None:
    """Three replicas and one node: nothing is tried, nothing is believed."""
    options = options_of(cassandra_node, "qim_three")
    try:
        with pytest.raises(StoreUnavailable, match="Unavailable") as raised:
            await create_archive(options, schema.replication({}, 3), 50)
        assert raised.value.outcome is Outcome.NOT_APPLIED
    finally:
        await statement(cassandra_node, "DROP KEYSPACE IF EXISTS qim_three")
