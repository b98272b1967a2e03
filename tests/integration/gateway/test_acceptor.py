"""Taking connections: many per turn, a crowd answered cheaply, nobody lost (T-X7, P16)."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator

import pytest

from qim_streams.gateway import acceptor as acceptor_module
from qim_streams.gateway.acceptor import Acceptor
from tests.support.waiting import eventually

REQUEST = b"GET /ws HTTP/1.1\r\nHost: x\r\n\r\n"


class Echo(asyncio.Protocol):
    """Answers what comes."""

    def __init__(self, made: "list[Echo]") -> None:
        made.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"heard " + data)  # type: ignore[attr-defined]  # a stream's


class Door:
    """An acceptor, who came through it, and whether there is a crowd."""

    def __init__(self) -> None:
        self.made: list[Echo] = []
        self.wait_ms = self.refused = 0
        self.acceptor = Acceptor(lambda: Echo(self.made), "/ws", lambda: self.wait_ms, self._refused)
        self.port = 0

    def _refused(self) -> None:
        self.refused += 1

    async def ask(self, request: bytes = REQUEST) -> bytes:
        """What a new connection is answered; everything up to the end if it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(4_096), 20)
        writer.close()
        return answer


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    made = Door()
    made.port = await made.acceptor.start("127.0.0.1", 0)
    yield made
    made.acceptor.close()


async def test_many_are_taken_in_one_turn(door: Door) -> None:
    """A thousand in the queue cost a few dozen turns of the loop, not a thousand."""
    loop, clients = asyncio.get_running_loop(), []
    for _ in range(1_000):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", door.port))
        clients.append(client)
    turns = 0
    while len(door.made) < len(clients) and turns < 300:
        await asyncio.sleep(0)
        turns += 1
    assert len(door.made) == len(clients)
    for client in clients[:3]:
        await loop.sock_sendall(client, b"hi")
        assert await loop.sock_recv(client, 100) == b"heard hi"
    for client in clients:
        client.close()


async def test_a_crowd_is_told_when_to_come_again(door: Door) -> None:
    """503 with Retry-After in whole seconds, rounded up; no protocol is made; then they are let in."""
    assert await door.ask() == b"heard " + REQUEST
    door.wait_ms = 2_300
    answers = [await _ask_early(door) for _ in range(5)]
    for answer in answers:
        status, *fields = answer.decode().split("\r\n")
        assert status == "HTTP/1.1 503 Service Unavailable"
        assert "Retry-After: 3" in fields
        assert "Content-Length: 0" in fields
    assert (door.refused, len(door.made)) == (5, 1)
    door.wait_ms = 0
    assert await door.ask() == b"heard " + REQUEST


async def _ask_early(door: Door) -> bytes:
    """A client whose request lies in the socket when it is taken."""
    loop, client = asyncio.get_running_loop(), socket.socket()
    client.connect(("127.0.0.1", door.port))  # the kernel answers: nobody has to accept yet
    client.send(REQUEST)
    client.setblocking(False)
    found = b""
    while data := await loop.sock_recv(client, 4_096):
        found += data
    client.close()
    return found


@pytest.mark.parametrize("request_", [b"GET /readyz HTTP/1.1\r\n\r\n", b"GET /", b"\0"])
async def test_only_newcomers_are_turned_away(door: Door, request_: bytes) -> None:
    """Health checks, and what cannot be told yet, go to the server."""
    door.wait_ms = 5_000
    assert await door.ask(request_) == b"heard " + request_
    assert door.refused == 0


async def test_without_descriptors_the_queue_waits(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """EMFILE: the loop does not turn for nothing, and everybody is taken afterwards."""
    monkeypatch.setattr(acceptor_module, "PAUSE_S", 0.05)
    door.acceptor.close()
    failing = _Failing("127.0.0.1")
    door.acceptor._listening.append(failing)
    door.acceptor._watch(failing)
    door.port = failing.getsockname()[1]
    assert await door.ask() == b"heard " + REQUEST
    assert failing.failures == 3


class _Failing(socket.socket):
    """A listening socket that fails three times."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.failures = 0
        self.bind((host, 0))
        self.listen(10)
        self.setblocking(False)

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures < 3:
            self.failures += 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


async def test_a_taken_address_is_an_error(door: Door) -> None:
    other = Door()
    with pytest.raises(OSError, match=r"[Aa]ddress"):
        await other.acceptor.start("127.0.0.1", door.port)


async def test_nobody_is_taken_after_the_end(door: Door) -> None:
    door.acceptor.close()
    door.acceptor.close()
    with pytest.raises(ConnectionRefusedError, match="Connect"):
        await asyncio.open_connection("127.0.0.1", door.port)


async def test_a_client_that_is_gone_harms_nobody(door: Door) -> None:
    """Reset before it was taken, in quiet times and in a crowd."""
    for wait_ms in (0, 1_000):
        door.wait_ms = wait_ms
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        client.connect(("127.0.0.1", door.port))
        client.send(REQUEST)
        client.close()
        await asyncio.sleep(0)
    door.wait_ms = 0
    assert await door.ask() == b"heard " + REQUEST
    await eventually(lambda: not door.acceptor._taken)
