"""One real Cassandra for all tests of a session, started at the first need, with one archive on it.

Starting takes 4 to 6 s, and making tables about 2 s: hence one server, one keyspace, and tables that are
emptied between tests. TRUNCATE leaves no tombstone, so the small write timestamps of the archive stay valid.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from qim_streams.archive.cassandra_admin import create_archive
from qim_streams.archive.cassandra_schema import replication
from qim_streams.archive.cassandra_session import CassandraOptions, CassandraSession
from qim_streams.embedded.cassandra import EmbeddedCassandra
from qim_streams.embedded.errors import JavaMissingError
from qim_streams.embedded.java import find_java

T = TypeVar("T")
KEYSPACE = "qim_test"
BUCKET_SEQS = 10  # small, so that every test crosses edges of buckets
TABLES = ("messages", "conversation_buckets", "archive_watermarks", "user_conversation_state")


def options_of(server: EmbeddedCassandra, keyspace: str = KEYSPACE) -> CassandraOptions:
    """How to reach the archive of `server`."""
    return CassandraOptions(("127.0.0.1",), server.port, keyspace)


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, run to its end beside whatever event loop the test has."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def empty(options: CassandraOptions) -> None:
    """Remove every row but the layout's."""
    session = CassandraSession(options)
    for table in TABLES:
        await session.execute(f"TRUNCATE {table}", timeout_s=60)
    await session.close()


@pytest.fixture(scope="session")
def cassandra_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCassandra]:
    """A running node with an empty archive in `KEYSPACE`."""
    try:
        find_java()
    except JavaMissingError as error:
        pytest.skip(f"unproven here: the archive on a real Cassandra (P11, I12, T-R4). {error}")
    server = EmbeddedCassandra(tmp_path_factory.mktemp("cassandra"), progress=lambda _: None).start()
    try:
        run_apart(create_archive(options_of(server), replication({}, 1), BUCKET_SEQS))
        yield server
    finally:
        server.kill()  # a clean stop takes 5 s, and nobody reads the data again


@pytest.fixture
def cassandra_options(cassandra_node: EmbeddedCassandra) -> CassandraOptions:
    """The shared archive, emptied."""
    options = options_of(cassandra_node)
    run_apart(empty(options))
    return options
