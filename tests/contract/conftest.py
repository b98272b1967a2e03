"""Fixtures of the conformance suites: one real Redis for all of them, emptied before each test."""

from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import SecretStr

from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.settings import Settings


@pytest.fixture(scope="session")
def hot_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(tmp_path_factory.mktemp("hot-redis"), progress=lambda _: None)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def hot_client(hot_redis: EmbeddedRedis) -> AsyncIterator[RedisClient]:
    client = connect(Settings(redis_url=SecretStr(hot_redis.url)))
    await client.flushdb()
    yield client
    await client.aclose()
