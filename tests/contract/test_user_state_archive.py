"""`UserStateArchive`: one suite on the fake, RocksDB, a RocksDB reader, and Cassandra."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qim_streams.errors import StoreError
from qim_streams.sessions.ports import ArchivedState
from tests.contract.test_archive import Pair, opened

TENANT = "acme"


@pytest.fixture(params=["memory", "rocksdb", "rocksdb-reader", "cassandra"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    """Each implementation, fresh."""
    archive, reader = await opened(request, tmp_path)
    yield Pair(archive, reader)
    await reader.close()
    await archive.close()


def state(name: str, version: int, user: str = "ann", tenant: str = TENANT) -> ArchivedState:
    """A state whose bytes tell what it is."""
    return ArchivedState(tenant, user, name, version, f"{user}/{name}/{version}".encode())


async def states_of(pair: Pair, user: str = "ann", after: str = "", limit: int = 100) -> list[ArchivedState]:
    """What a reader sees."""
    reader: Any = pair.reader
    found: list[ArchivedState] = await reader.user_states(TENANT, user, after, limit)
    return found


async def store(pair: Pair, *states: ArchivedState) -> None:
    """The writer stores."""
    archive: Any = pair.archive
    await archive.store_states(states)


async def test_the_highest_version_stands(pair: Pair) -> None:
    """Whatever the order and however often; bytes come back as they were."""
    await store(pair, state("a", 5), state("b", 1))
    assert await states_of(pair) == [state("a", 5), state("b", 1)]
    await store(pair, state("a", 4), state("b", 1_760_000_000_000))
    await store(pair, state("b", 2))
    assert await states_of(pair) == [state("a", 5), state("b", 1_760_000_000_000)]
    await store(pair)


async def test_users_and_pages(pair: Pair) -> None:
    """Neighbouring ids share nothing; pages continue after the last id, without repeating it."""
    others = [state("a", 1, "anna"), state("a", 1, "an"), state("a", 1, tenant="acme2")]
    mine = [state(f"c{number:02}", 1) for number in range(25)] + [state("c1.x", 1), state("c1", 1)]
    await store(pair, *others, *mine)
    expected = sorted(mine)
    seen: list[ArchivedState] = []
    while part := await states_of(pair, after=seen[-1].conversation_id if seen else "", limit=10):
        seen += part
    assert seen == expected
    assert await states_of(pair, "anna") == [state("a", 1, "anna")]
    assert await states_of(pair, "nobody") == []


async def test_messages_and_states_are_apart(pair: Pair) -> None:
    await store(pair, state("a", 1))
    assert await pair.reader.latest(TENANT, "ann") == 0
    assert await pair.reader.watermark(0) == -1


async def test_a_closed_archive_says_so(pair: Pair) -> None:
    await pair.archive.close()
    with pytest.raises(StoreError):
        await store(pair, state("a", 1))
