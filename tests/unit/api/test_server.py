"""The admin API on a real socket: it answers, refuses what it must, and stops when told. P16, P17."""

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from qim_streams import limits
from qim_streams.api.app import build_api
from qim_streams.api.server import is_loopback, listen, serve
from qim_streams.errors import ConfigError
from tests.unit.api.fakes import BASE, KEY, FakeWriter, deps


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A running server on a free loopback port."""
    listener, stop = listen("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(serve(build_api(deps(FakeWriter())), listener, stop))
    yield listener.getsockname()[1]
    stop.set()
    await asyncio.wait_for(serving, 10)


async def test_a_group_over_the_socket(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"X-Api-Key": KEY}) as session:
        answer = await session.post(f"{BASE}/groups", json={"conversation_id": "room", "members": ["ann"]})
        assert answer.status_code == 201
        assert "server" not in answer.headers
        assert (await session.get(f"{BASE}/groups/room")).json()["members"] == [
            {"user_id": "ann", "role": "owner"}
        ]
        large = await session.post(f"{BASE}/groups", content=b"x" * (limits.API_BODY_BYTES_MAX + 1))
        assert large.status_code == 413


async def test_an_announced_body_is_refused_before_it_is_sent(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/tenants/acme/groups HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
    await writer.drain()
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\xff" * 2_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /v1/tenants/a/groups HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/tenants/a/groups HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["noise", "huge header", "negative length", "broken chunk"],
)
async def test_broken_requests_end_their_connection_only(port: int, request_bytes: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 5)
    assert b" 200 " not in answer.split(b"\r\n")[0]
    writer.close()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as session:
        assert (await session.get("/healthz")).status_code == 200


def test_a_port_that_is_taken_names_the_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="QIM_API_PORT"):
            listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_what_counts_as_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local
