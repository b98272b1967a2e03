"""From bytes of the wire to the account: what a device does with pushes that are not as they should be."""

import asyncio
import base64
import hashlib
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from qim_streams.client.discovery import StackAddress
from qim_streams.errors import ProtocolError
from qim_streams.loadgen import message
from qim_streams.loadgen.device import Device
from qim_streams.loadgen.frames import DRIVERS
from qim_streams.loadgen.generator import Generator
from qim_streams.loadgen.options import BenchOptions
from qim_streams.loadgen.plan import make_plan
from qim_streams.loadgen.socket import _GUID, LeanSocket, header
from qim_streams.loadgen.traffic import Draw
from qim_streams.loadgen.verdict import judge
from qim_streams.wire.answers import error
from qim_streams.wire.frames import Event, Message, PushEvents, SendAck, SendMessage
from tests.support.waiting import eventually

RUN = 99
NOW = 10**18


class FakeSocket:
    """Keeps what a device writes."""

    is_open = True

    def __init__(self) -> None:
        self.out: list[bytes] = []

    def put(self, payload: bytes) -> None:
        """Keep it."""
        self.out.append(payload)

    def flush(self) -> None:
        """Nothing to do."""


class Chat:
    """One direct chat of two users, both online in one process."""

    def __init__(self, encoding: str = "msgpack") -> None:
        options = BenchOptions(
            connections=2, users=2, contacts=2, processes=1, encoding=encoding, duration_s=10
        )
        self.plan = make_plan(options, "t", "demo")
        self.all = Generator(options, self.plan, 0, StackAddress("ws://x", "demo", "s" * 40), RUN, 16)
        self.all.clock_ns = lambda: NOW + 5_000_000
        self.all.measured = (NOW, NOW + 10**10)
        self.codec = DRIVERS[encoding].codec
        self.sockets: list[FakeSocket] = []
        for user in range(2):
            device = self.all.devices[user] = self.all.new_device(user)
            socket = FakeSocket()
            device.online, device._socket = True, socket  # type: ignore[assignment]
            self.sockets.append(socket)
        (self.name,) = {one.conversation_id for one in self.plan.conversations}

    @property
    def receiver(self) -> Device:
        """User 1."""
        return self.all.devices[1]

    def send(self) -> tuple[int, bytes]:
        """User 0 sends; (number, body)."""
        number = self.all.number
        self.all.send(Draw(0, 0, 64), NOW)
        return number, self.all.devices[0].pending[number].body

    def ack(self, number: int, seq: int) -> None:
        """The server acknowledges."""
        frame = SendAck(number, "x", self.name, b"m" * 16, seq, 5)
        self.all.devices[0]._on_message(self.codec.encode(frame))

    def event(self, mailbox_seq: int, seq: int, body: bytes) -> Event:
        """A push to user 1."""
        sender = self.plan.user_id(0)
        inner = Message(b"m" * 16, self.name, seq, sender, 1, 0, 5, body)
        return Event(mailbox_seq, 0, b"e" * 16, 0, 0, inner, None)

    def push(self, *events: Event) -> None:
        """PUSH_EVENTS comes to user 1."""
        self.receiver._on_message(self.codec.encode(PushEvents(list(events))))

    def verdict(self) -> Any:
        """The judgement."""
        return judge(self.plan, [self.all.ledger], range(2))


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
async def test_what_is_sent_is_a_frame_that_the_server_understands(encoding: str) -> None:
    chat = Chat(encoding)
    number, body = chat.send()
    frame = chat.codec.decode_client(chat.sockets[0].out[0])
    assert frame == SendMessage(number, chat.all.client_message_id(number).decode(), body, chat.name)
    first = chat.all.open_chat(0, 0, 1, 300)
    opened = chat.codec.decode_client(chat.sockets[0].out[1])
    assert isinstance(opened, SendMessage)
    assert (opened.to_user_id, opened.conversation_id) == (chat.plan.user_id(1), None)
    assert opened.body == first.pending[1].body


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
async def test_a_good_delivery_is_clean_and_timed(encoding: str) -> None:
    chat = Chat(encoding)
    number, body = chat.send()
    chat.ack(number, 1)
    chat.push(chat.event(7, 1, body))
    assert chat.verdict().clean
    assert chat.all.e2e_by_second[0].max_us == 5_000
    assert chat.all.ack_by_second[0].max_us == 5_000
    assert list(chat.all.samples.seqs) == [7]
    assert chat.all.acked_at[0] == chat.all.delivered_at[0] == 1


async def test_a_missing_delivery_is_lost() -> None:
    chat = Chat()
    number, _ = chat.send()
    chat.ack(number, 1)
    assert chat.verdict().lost == 1


async def test_one_repeated_and_one_second_position() -> None:
    chat = Chat()
    number, body = chat.send()
    chat.ack(number, 1)
    chat.push(chat.event(7, 1, body))
    chat.push(chat.event(7, 1, body))
    assert (chat.verdict().duplicated_raw, chat.verdict().clean) == (1, True)
    chat.push(chat.event(8, 1, body))
    assert (chat.verdict().duplicated_visible, chat.verdict().clean) == (1, False)


async def test_a_step_back() -> None:
    chat = Chat()
    sent = [chat.send() for _ in range(3)]
    for seq, (number, _) in enumerate(sent, 1):
        chat.ack(number, seq)
    events = [chat.event(seq, seq, body) for seq, (_, body) in enumerate(sent, 1)]
    chat.push(events[0], events[2], events[1])
    assert (chat.verdict().reordered, chat.verdict().clean) == (1, False)


async def test_a_damaged_body() -> None:
    chat = Chat()
    number, body = chat.send()
    chat.ack(number, 1)
    chat.push(chat.event(7, 1, body[:40] + b"!" + body[41:]))
    found = chat.verdict()
    assert found.reasons == {"damaged": 1}
    assert found.lost == 1


async def test_a_message_of_an_earlier_run_is_only_noted() -> None:
    chat = Chat()
    chat.push(chat.event(7, 1, message.body(RUN + 1, 0, 0, NOW, 64)))
    assert chat.all.noted == {"of_an_earlier_run": 1}
    assert not chat.verdict().reasons


async def test_a_refusal_ends_a_send_and_a_doubt_repeats_it_until_the_ack() -> None:
    chat = Chat()
    refused, _ = chat.send()
    doubtful, _ = chat.send()
    sender, encode = chat.all.devices[0], chat.codec.encode
    sender._on_message(encode(error("RATE_LIMITED", "", refused)))
    sender._on_message(encode(error("OUTCOME_UNKNOWN", "", doubtful, retry_after_ms=1)))
    assert list(sender.pending) == [doubtful]
    assert chat.verdict().refused == 1
    await eventually(lambda: len(chat.sockets[0].out) == 3, 5, "the repeat")
    assert chat.sockets[0].out[2] == chat.sockets[0].out[1]
    # A refusal of the repeat says nothing about the first attempt.
    sender._on_message(encode(error("OVERLOADED", "", doubtful, retry_after_ms=1)))
    assert list(sender.pending) == [doubtful]
    assert chat.verdict().unknown == 1
    chat.ack(doubtful, 1)
    assert chat.verdict().unknown == 0


# -- the socket


async def echo(request: web.Request) -> web.WebSocketResponse:
    """Greets with three messages in one write and returns what comes."""
    socket = web.WebSocketResponse(protocols=("p",))
    await socket.prepare(request)
    for size in (1, 200, 70_000):
        await socket.send_bytes(b"g" * size)
    async for one in socket:
        if one.type is WSMsgType.BINARY:
            await socket.send_bytes(one.data)
    return socket


@pytest.fixture
async def url() -> Any:
    """An echo server."""
    app = web.Application()
    app.router.add_get("/ws", echo)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"ws://127.0.0.1:{runner.addresses[0][1]}/ws"
    await runner.cleanup()


async def test_messages_of_all_sizes_go_and_come(url: str) -> None:
    seen: list[bytes] = []
    lost: list[int | None] = []
    socket = LeanSocket(url, "p", True, seen.append, lost.append)
    await socket.open(5)
    sent = [bytes((size % 251,)) * size for size in (0, 1, 125, 126, 127, 65_535, 65_536, 100_000)]
    for one in sent:
        socket.put(one)
    socket.flush()
    await eventually(lambda: len(seen) == 3 + len(sent), 5, "the echoes")
    assert [len(one) for one in seen[:3]] == [1, 200, 70_000]
    assert seen[3:] == sent
    socket.close()
    await eventually(lambda: lost, 5, "the end")
    assert not socket.is_open


async def test_an_address_without_a_websocket_is_an_error(url: str) -> None:
    socket = LeanSocket(url + "/no", "p", True, lambda _: None, lambda _: None)
    with pytest.raises(ProtocolError, match="404"):
        await socket.open(5)


async def test_a_server_that_does_not_answer_in_time_is_left() -> None:
    """Its late answer must find a closed connection, not somebody who has given up."""
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1_000):
            pass
        writer.close()
        gone.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        socket = LeanSocket(f"ws://127.0.0.1:{port}/ws", "p", True, lambda _: None, lambda _: None)
        with pytest.raises(TimeoutError):
            await socket.open(0.05)
        async with asyncio.timeout(10):
            await gone.wait()


async def test_an_answer_that_was_read_while_the_wait_ended_is_dropped() -> None:
    """A transport may hand over what it has read after it was told to end."""
    socket = LeanSocket("ws://x/", "p", True, lambda _: None, lambda _: None)
    socket._opened.cancel()
    accept = base64.b64encode(hashlib.sha1(socket._key + _GUID, usedforsecurity=False).digest())
    socket.data_received(b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    assert not socket.is_open


async def test_messages_in_any_pieces_and_no_fragments() -> None:
    seen: list[bytes] = []
    socket = LeanSocket("ws://x/", "p", True, seen.append, lambda _: None)
    socket._is_open = True
    frame = b"\x82\x7e\x01\x00" + b"a" * 256 + b"\x82\x01b"
    for at in range(len(frame)):
        socket.data_received(frame[at : at + 1])
    assert seen == [b"a" * 256, b"b"]
    with pytest.raises(ProtocolError):
        socket.data_received(b"\x02\x01c")


def test_headers_carry_their_length_and_the_key_zero() -> None:
    assert header(2, 5) == b"\x82\x85\0\0\0\0"
    assert header(1, 300) == b"\x81\xfe\x01\x2c\0\0\0\0"
    assert header(2, 70_000)[:2] == b"\x82\xff"
