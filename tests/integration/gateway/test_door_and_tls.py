"""The gateway's TLS and its door, on real sockets. P17, T-X5."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from qim_streams.tls import CertificateWatch, ServerFiles, client_context
from tests.support.certificates import Authority
from tests.support.gateway_world import GatewayWorld, WireClient
from tests.support.waiting import eventually


async def test_a_session_under_tls_and_no_other_way(tmp_path: Path) -> None:
    """Sign-on and push under TLS; a client that does not know the authority, or speaks plain, gets nothing;
    a new certificate is shown to newcomers while the session goes on."""
    authority, watch = Authority(tmp_path), CertificateWatch(1)
    pair, world = authority.issue("gateway"), GatewayWorld()
    world.tls = watch.context(ServerFiles("gateway_tls_cert_file", pair.cert, pair.key))
    trust = client_context("x", authority.ca)
    async with world.running(), await WireClient.connect(world.url, tls=trust) as ann:
        await ann.sign_on("ann")
        await ann.go_online()
        await world.ready("ann")
        await world.deliver("ann", b"under tls")
        assert [event.message.body for event in await ann.pushed(1)] == [b"under tls"]
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await WireClient.connect(world.url)
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await WireClient.connect(world.url.replace("wss", "ws"))
        fresh = authority.issue("gateway")
        assert fresh.cert == pair.cert
        assert watch.look() == 1
        async with await WireClient.connect(world.url, tls=trust) as bob:
            await bob.sign_on("bob")
        await world.deliver("ann", b"x" * 200_000)
        assert len((await ann.pushed(1))[0].message.body) == 200_000


async def test_whoever_never_ends_the_handshake_is_closed(tmp_path: Path) -> None:
    """Slow handshakes are strangers as others are, are counted as long as they last, and end in time."""
    authority = Authority(tmp_path)
    pair, world = authority.issue("gateway"), GatewayWorld(auth_deadline_s=0.5, door_trusted="")
    world.tls = CertificateWatch(1).context(ServerFiles("gateway_tls_cert_file", pair.cert, pair.key))
    async with world.running():
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
        writer.write(b"\x16\x03\x01")  # a record that never comes to its end
        await eventually(lambda: world.server.strangers_of("127.0.0.1") == 1)
        world.server.close_strangers(asyncio.get_running_loop().time())
        assert world.server.strangers_of("127.0.0.1") == 1
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        await eventually(lambda: world.server.strangers_of("127.0.0.1") == 0)


async def test_one_address_may_have_so_many_strangers() -> None:
    """Beyond the bound newcomers of the address are refused with a time; sign-ons make room."""
    world = GatewayWorld(door_trusted="", door_strangers_max=3, auth_deadline_s=60)
    async with world.running(), AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(await WireClient.connect(world.url)) for _ in range(3)]
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await WireClient.connect(world.url)
        assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "1")
        assert world.counters.door_refused == 1
        for number, client in enumerate(clients):
            await client.sign_on(f"u{number}")
        await eventually(lambda: world.server.strangers_of("127.0.0.1") == 0)
        async with await WireClient.connect(world.url) as late:
            await late.sign_on("late")


async def test_one_address_may_knock_so_often() -> None:
    """The burst, then the rate; health checks of a trusted network are not counted."""
    world = GatewayWorld(door_trusted="", door_handshakes_per_s=0.001, door_handshakes_burst=4)
    async with world.running(), aiohttp.ClientSession() as session:
        url = world.url.replace("ws:", "http:").replace("/ws", "/healthz")
        said = []
        for _ in range(6):
            async with session.get(url, headers={"Connection": "close"}) as answer:
                said.append(answer.status)
        assert said == [200] * 4 + [503] * 2
    trusting = GatewayWorld(door_handshakes_per_s=0.001, door_handshakes_burst=1)
    async with trusting.running(), aiohttp.ClientSession() as session:
        url = trusting.url.replace("ws:", "http:").replace("/ws", "/healthz")
        for _ in range(5):
            async with session.get(url, headers={"Connection": "close"}) as answer:
                assert answer.status == 200
