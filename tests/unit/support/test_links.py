"""Links that break: each fault does what it says, and a whole link changes nothing. T-N1."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from tests.support.links import CUT, WHOLE, Fault, Links
from tests.support.waiting import eventually

TEXT = b"all of it, " * 1_000


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """The port of a server that says what it hears."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4_096):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield int(server.sockets[0].getsockname()[1])
    server.close()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.split(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize(
    "fault", [WHOLE, Fault(slices=True), Fault(delay_s=lambda: 0.001)], ids=["whole", "slices", "slow"]
)
async def test_every_byte_arrives_in_order(echo: int, fault: Fault) -> None:
    with Links() as links:
        reader, writer = await connect(links.open("one", echo))
        links.set("one", fault)
        writer.write(TEXT)
        assert await asyncio.wait_for(reader.readexactly(len(TEXT)), 30) == TEXT
        writer.close()


@pytest.mark.parametrize(
    "fault", [CUT, Fault(to_server=False), Fault(to_client=False)], ids=["cut", "to server", "to client"]
)
async def test_what_is_held_comes_when_the_link_heals(echo: int, fault: Fault) -> None:
    """Nothing is closed meanwhile, and nothing is lost."""
    with Links() as links:
        reader, writer = await connect(links.open("one", echo))
        writer.write(b"before")
        assert await asyncio.wait_for(reader.readexactly(6), 30) == b"before"
        links.set("one", fault)
        writer.write(b"during")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.1)
        links.set("one", WHOLE)
        assert await asyncio.wait_for(reader.readexactly(6), 30) == b"during"
        writer.close()


async def test_a_reset_ends_connections_and_no_link(echo: int) -> None:
    with Links() as links:
        address = links.open("one", echo)
        reader, writer = await connect(address)
        await eventually(lambda: writer.write(b"x") or not reader.at_eof())
        await asyncio.wait_for(reader.readexactly(1), 30)
        assert links.reset("one") == 2  # one on each side
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(TEXT.__len__()), 30)
        again, other = await connect(address)
        other.write(b"y")
        assert await asyncio.wait_for(again.readexactly(1), 30) == b"y"
        other.close()


def test_a_server_that_is_away_is_away_behind_a_link() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with Links() as links:
        host, _, number = links.open("one", port).partition(":")
        with socket.create_connection((host, int(number)), timeout=30) as client:
            assert client.recv(1) == b""
