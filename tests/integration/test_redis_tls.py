"""`rediss://` against a Redis that ends TLS itself: who gets in, and that all kinds of calls work through it.

The Redis of the wheel knows no TLS. With none that does these tests are skipped, and the front of
`tests/integration/test_secured_stack.py` is what stands in for it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from qim_streams.errors import StoreUnavailable
from qim_streams.ownership.ports import Grant, Holder
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.redis_tier import RedisClient, connect, translated
from qim_streams.settings import Settings
from tests.support.certificates import Authority
from tests.support.secured_servers import TlsRedis, redis_that_knows_tls
from tests.support.waiting import eventually

PROGRAM = redis_that_knows_tls()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        PROGRAM is None,
        reason="no Redis with TLS here (apt-get install redis-server): rediss:// proven through a front only",
    ),
]


class Tls:
    """The server, and clients of it."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAM is not None
        self.authority = Authority(folder / "pki")
        self.pair = self.authority.issue("role", "127.0.0.1")
        self.server = TlsRedis(
            folder / "redis", PROGRAM, self.authority.issue("redis", "127.0.0.1"), self.authority.ca
        )

    def client(self, **changes: Any) -> RedisClient:
        """A client of the roles' user, by settings as an operator writes them."""
        password = self.server.roles_url.partition(":")[2].partition(":")[2].partition("@")[0]
        given: dict[str, Any] = {
            "redis_url": SecretStr(f"rediss://qim:{password}@127.0.0.1:{self.server.tls_port}/0"),
            "redis_tls_ca_file": self.authority.ca,
            "redis_tls_cert_file": self.pair.cert,
            "redis_tls_key_file": self.pair.key,
        }
        return connect(Settings(**(given | changes)))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    made = Tls(tmp_path_factory.mktemp("redis-tls"))
    with made.server:
        yield made


async def refused(client: RedisClient) -> str:
    """Why the server does not let a client in."""
    try:
        with pytest.raises(StoreUnavailable) as why:
            async with translated("redis"):
                await client.ping()
        return str(why.value)
    finally:
        await client.aclose()


async def test_who_proves_himself_gets_in_and_nobody_else(tls: Tls, tmp_path: Path) -> None:
    client = tls.client()
    assert await client.ping()
    await client.aclose()
    stranger = Authority(tmp_path, "stranger")
    pair = stranger.issue("role", "127.0.0.1")
    assert await refused(tls.client(redis_tls_cert_file=None, redis_tls_key_file=None))
    assert await refused(tls.client(redis_tls_cert_file=pair.cert, redis_tls_key_file=pair.key))
    assert "certificate" in (await refused(tls.client(redis_tls_ca_file=stranger.ca))).lower()
    plain = SecretStr(f"redis://127.0.0.1:{tls.server.tls_port}/0")
    nothing = dict.fromkeys(("redis_tls_ca_file", "redis_tls_cert_file", "redis_tls_key_file"))
    assert await refused(tls.client(redis_url=plain, **nothing))


async def test_scripts_pipes_and_large_values_go_through(tls: Tls) -> None:
    """What roles do: scripts by their hash, pipes of many calls, answers longer than a TLS record."""
    client = tls.client()
    leases = RedisLeaseStore(client)
    assert isinstance(await leases.acquire("s:1", "a", 1, "a:1", 60_000), Grant)
    assert isinstance(await leases.acquire("s:1", "b", 1, "b:1", 60_000), Holder)
    async with client.pipeline(transaction=False) as pipe:
        for number in range(500):
            pipe.hset("{s:1}:test", str(number), b"x" * 4_096)
        assert await pipe.execute() == [1] * 500
    assert len(await client.hgetall("{s:1}:test")) == 500
    await client.delete("{s:1}:test")
    await client.aclose()


async def test_a_client_comes_back_when_the_server_does(tls: Tls) -> None:
    client = tls.client()
    leases = RedisLeaseStore(client)
    assert isinstance(await leases.acquire("s:2", "a", 1, "a:1", 60_000), Grant)
    tls.server.restart()  # here, not in a thread: children die with the thread that started them

    async def held() -> bool:
        try:
            (holder,) = await leases.holders(["s:2"])
        except StoreUnavailable:
            return False
        return holder is not None and holder.node == "a"

    await eventually(held, 60, "the lease, read from the server that was started again")
    await client.aclose()
