"""What an application may rely on: kept first, each event once over restarts, receipts, clear ends.

Spec: §3 (5), §7. Scenarios A2 A13 C1 C13 D10 E7 I10 I13.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from scripted_server import Goodbye, ScriptedServer
from test_qim_client import BOTH, ROOM, Screen, client_of

from qim_streams.client import (
    Delivery,
    Disconnected,
    MemoryStore,
    MessageSent,
    QimClient,
    Rebased,
    SendFailed,
    SqliteStore,
    Stopped,
    SyncFinished,
)
from qim_streams.client.store import Change
from qim_streams.errors import AdmissionRefused, ClientStopped, ConfigError, StoreError
from qim_streams.limits import FRAME_BYTES_MAX
from qim_streams.wire.frames import Auth, Event, SendMessage
from tests.support.waiting import eventually


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    one = ScriptedServer()
    await one.start()
    yield one
    await one.stop()


class GatedStore(MemoryStore):
    """A slow store whose disk works only while `gate` is set; `fails` makes it fail."""

    is_slow = True

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False
        self.threads: set[int] = set()
        self.changes: list[Change] = []

    def apply(self, change: Change) -> None:
        self.threads.add(threading.get_ident())
        assert self.gate.wait(10)
        if self.fails:
            raise StoreError("disk full")
        self.changes.append(change)
        super().apply(change)


def of(deliveries: Sequence[object], cls: type) -> list[object]:
    return [one for one in deliveries if type(one) is cls]


async def take(client: QimClient, count: int) -> list[bytes]:
    """The next events of a client, by its iterator; the last one is in hand when this returns."""
    bodies: list[bytes] = []
    async for one in client.events():
        if type(one) is Event:
            bodies.append(one.message.body)
            if len(bodies) == count:
                break
    return bodies


# -- kept first, once over restarts


async def test_nothing_is_shown_or_sent_before_it_is_kept(server: ScriptedServer) -> None:
    """The loop goes on meanwhile, and what collects goes into one transaction."""
    store, screen = GatedStore(), Screen()
    async with client_of(server, "ann", screen, store=store) as ann:
        await ann.send(b"first", to_user_id="bob")
        await ann.checkpoint()
        store.gate.clear()
        await server.publish(ROOM, "bob", b"1", BOTH)
        await eventually(lambda: ann.session.inbox.counters.events >= 2)
        before = len(store.changes)
        for n in range(2, 50):
            await server.publish(ROOM, "bob", str(n).encode(), BOTH)
        sending = asyncio.create_task(ann.send(b"second", to_user_id="bob"))
        await eventually(lambda: ann.session.inbox.counters.shown >= 50)  # frames are read on
        assert screen.bodies == [b"first"]
        assert len(server.frames(SendMessage)) == 1
        store.gate.set()
        await sending
        await eventually(lambda: len(screen.bodies) == 51)
        assert len(store.changes) - before < 12
    assert screen.bodies[1:50] == [str(n).encode() for n in range(1, 50)]
    assert threading.get_ident() not in store.threads


async def test_what_was_kept_and_not_taken_comes_first_after_a_restart(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """A2, C13: 20 events arrive, the application takes 7 and goes; the next process gets the other 13."""
    path = tmp_path / "ann.db"
    ann = client_of(server, "ann", store=SqliteStore(path))
    await ann.connect()
    for n in range(20):
        await server.publish(ROOM, "bob", str(n).encode(), BOTH)
    await ann.checkpoint()
    bodies = await take(ann, 7)
    await ann.close()
    ann = client_of(server, "ann", store=SqliteStore(path))
    await ann.connect()
    await server.publish(ROOM, "bob", b"20", BOTH)
    bodies += await take(ann, 14)
    await ann.close()
    assert bodies == [str(n).encode() for n in range(21)]
    screen = Screen()
    async with client_of(server, "ann", screen, store=SqliteStore(path)) as ann:
        await ann.checkpoint()
    assert screen.bodies == []


async def test_a_callback_that_fails_gets_the_same_events_again(server: ScriptedServer) -> None:
    """Kept, not taken: the next process is asked to take it again, nothing is skipped."""
    store, seen, marks = MemoryStore(), Screen(), Screen()

    def fail(deliveries: Sequence[Delivery]) -> None:
        marks(deliveries)
        if of(deliveries, Event):
            raise RuntimeError("application")

    ann = QimClient(server.url, "ann", "ann-1", store=store, on_deliveries=fail)
    await ann.connect()
    await server.publish(ROOM, "bob", b"1", BOTH)
    await eventually(lambda: marks.count(Stopped) == 1)
    with pytest.raises(ClientStopped, match="application"):
        await ann.wait_online(5)
    await ann.close()
    async with client_of(server, "ann", seen, store=store):
        await eventually(lambda: seen.bodies == [b"1"])


async def test_a_callback_that_fails_on_what_was_pending_stops_the_client(server: ScriptedServer) -> None:
    store = MemoryStore()
    async with client_of(server, "ann", store=store) as ann:  # nobody iterates
        await server.publish(ROOM, "bob", b"1", BOTH)
        await ann.checkpoint()

    def fail(_: Sequence[Delivery]) -> None:
        raise RuntimeError("application")

    ann = QimClient(server.url, "ann", "ann-1", store=store, on_deliveries=fail)
    with pytest.raises(ClientStopped, match="application"):
        await ann.connect(5)
    await ann.close()
    assert [one.message.body for one in store.load().pending] == [b"1"]


async def test_an_application_that_is_behind_is_noted_every_256_events(server: ScriptedServer) -> None:
    store = MemoryStore()
    ann = client_of(server, "ann", store=store)
    await ann.connect()
    for n in range(600):
        await server.publish(ROOM, "bob", str(n).encode(), BOTH)
    await ann.checkpoint()
    await take(ann, 520)
    left = len(store.load().pending)
    assert 80 <= left <= 80 + 256
    await ann.close()
    assert len(store.load().pending) == 80


# -- the outbox


async def test_posted_messages_survive_and_their_ends_are_told_to_the_next_process(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """C1: order per conversation, the same ids, receipts and refusals as marks."""
    path, screen = tmp_path / "ann.db", Screen()
    server.faults.refuse_auth = "SHUTTING_DOWN"  # never online
    ann = client_of(server, "ann", store=SqliteStore(path))
    ann.start()
    names = [
        await ann.post(str(n).encode(), to_user_id="bob" if n % 2 else "eve", client_message_id=f"m-{n}")
        for n in range(10)
    ]
    await ann.close()
    server.faults.refuse_auth = ""
    ann = client_of(server, "ann", screen, store=SqliteStore(path))
    assert ann.unsent == 10
    server.faults.refuse_sends = [("NOT_ALLOWED", None)]
    async with ann:
        await eventually(lambda: ann.unsent == 0)
    sent = server.frames(SendMessage)
    assert [one.client_message_id for one in sent if one.to_user_id == "eve"] == names[::2]
    assert [one.client_message_id for one in sent if one.to_user_id == "bob"] == names[1::2]
    failed = of(screen.all, SendFailed)
    receipts = [one.receipt.client_message_id for one in of(screen.all, MessageSent)]  # type: ignore[attr-defined]
    assert [(one.client_message_id, one.code) for one in failed] == [
        (sent[0].client_message_id, "NOT_ALLOWED")
    ]  # type: ignore[attr-defined]
    assert sorted(receipts) == sorted(set(names) - {sent[0].client_message_id})
    again = SqliteStore(path)
    assert again.load().unsent == []
    again.close()


async def test_a_receipt_comes_once_and_after_it_is_kept(server: ScriptedServer) -> None:
    store, screen = MemoryStore(), Screen()
    async with client_of(server, "ann", screen, store=store) as ann:
        receipt = await ann.send(b"x", to_user_id="bob")
        assert store.load().unsent == []
        await eventually(lambda: screen.bodies == [b"x"])
        assert of(screen.all, MessageSent) == [MessageSent(receipt)]
        await ann.checkpoint()
    assert of(screen.all, MessageSent) == [MessageSent(receipt)]


async def test_what_would_break_every_connection_is_refused_at_once(server: ScriptedServer) -> None:
    store = MemoryStore()
    async with client_of(server, "ann", store=store) as ann:
        for encoding in ("msgpack", "json"):
            other = client_of(server, "eve", encoding=encoding)
            with pytest.raises(AdmissionRefused, match="BODY_TOO_LARGE"):
                other.submit(b"x" * FRAME_BYTES_MAX, to_user_id="bob")
        with pytest.raises(ConfigError, match="not an id"):
            await ann.post(b"x", to_user_id="no spaces")
        with pytest.raises(ConfigError, match="not an id"):
            ann.submit(b"x", to_user_id="bob", client_message_id="a/b")
        assert (store.load().unsent, ann.unsent) == ([], 0)
    with pytest.raises(ClientStopped):
        await ann.post(b"x", to_user_id="bob")


async def test_a_message_given_up_before_it_was_kept_is_never_sent(server: ScriptedServer) -> None:
    store = GatedStore()
    async with client_of(server, "ann", store=store) as ann:
        store.gate.clear()
        ann.submit(b"x", to_user_id="bob", client_message_id="m-1")
        ann.give_up("m-1")
        store.gate.set()
        await ann.send(b"y", to_user_id="bob")
    assert [one.body for one in server.frames(SendMessage)] == [b"y"]
    assert store.load().unsent == []


# -- a store that fails, or is somebody else's


async def test_a_store_that_fails_stops_the_client_and_shows_nothing(server: ScriptedServer) -> None:
    store, screen = GatedStore(), Screen()
    ann = client_of(server, "ann", screen, store=store)
    await ann.connect()
    store.fails = True
    await server.publish(ROOM, "bob", b"1", BOTH)
    with pytest.raises(ClientStopped, match="disk full"):
        await ann.send(b"x", to_user_id="bob")
    assert screen.bodies == []
    assert of(screen.all, Stopped) == [Stopped("FAILED", "StoreError: disk full")]
    with pytest.raises(ClientStopped, match="disk full"):
        await ann.post(b"x", to_user_id="bob")
    await ann.close()
    assert not server.frames(SendMessage)


async def test_a_store_of_another_user_is_refused(server: ScriptedServer) -> None:
    store = MemoryStore()
    async with client_of(server, "ann", store=store):
        pass
    eve = client_of(server, "eve", store=store, device="ann-1")
    with pytest.raises(ClientStopped, match="WRONG_STORE"):
        await eve.connect(5)
    await eve.close()


async def test_a_slow_store_stops_the_reading(server: ScriptedServer) -> None:
    store, screen = GatedStore(), Screen()
    async with client_of(server, "ann", screen, store=store, events_max=20) as ann:
        store.gate.clear()
        for n in range(200):
            await server.publish(ROOM, "bob", str(n).encode(), BOTH)
        await eventually(lambda: ann._stream.is_full)
        assert ann.session.inbox.counters.events <= 30
        store.gate.set()
        await eventually(lambda: len(screen.bodies) == 200)
    assert screen.bodies == [str(n).encode() for n in range(200)]


# -- marks, and the ends of a connection


async def test_marks_of_a_connection_that_breaks_and_a_mailbox_that_moves(server: ScriptedServer) -> None:
    screen = Screen()
    async with client_of(server, "ann", screen) as ann:
        await ann.checkpoint()
        server.faults.rebase = True
        await server.cut()
        await eventually(lambda: screen.count(SyncFinished) == 2)
    (broken,) = of(screen.all, Disconnected)
    assert 0 <= broken.retry_in_ms <= 100  # type: ignore[attr-defined]
    assert of(screen.all, Rebased) == [Rebased(-1)]
    assert screen.count(Stopped) == 0  # closed by the application


async def test_a_terminal_end_is_the_last_delivery(server: ScriptedServer) -> None:
    screen = Screen()
    server.faults.refuse_auth = "SESSION_REPLACED"
    ann = client_of(server, "ann", screen)
    with pytest.raises(ClientStopped, match="SESSION_REPLACED"):
        await ann.connect(5)
    assert screen.all[-1] == Stopped("SESSION_REPLACED", "scripted")
    await ann.close()
    assert screen.count(Stopped) == 1


async def test_an_expired_token_is_exchanged_and_a_refused_one_never_sent_again(
    server: ScriptedServer,
) -> None:
    """I13: a token source is asked for another token, a few times in a row."""
    asked: list[str] = []

    async def source() -> str:
        asked.append(f"token-{len(asked)}")
        if len(asked) == 3:
            server.faults.refuse_auth = ""
        return asked[-1]

    server.faults.refuse_auth = "TOKEN_EXPIRED"
    ann = client_of(server, "ann", token=source)
    await ann.connect(5)
    assert [one.access_token for one in server.frames(Auth)] == ["token-0", "token-1", "token-2"]
    await ann.close()

    server.faults.refuse_auth = "TOKEN_EXPIRED"
    eve = client_of(server, "eve", token=source)
    with pytest.raises(ClientStopped, match="TOKEN_EXPIRED"):
        await eve.connect(5)
    await eve.close()
    assert len(asked) == 6

    async def stubborn() -> str:
        return "the-same"

    before = server.accepted
    bob = client_of(server, "bob", token=stubborn)
    with pytest.raises(ClientStopped, match="TOKEN_EXPIRED"):
        await bob.connect(5)
    await bob.close()
    assert server.accepted == before + 1


async def test_a_token_source_without_network_is_asked_again(server: ScriptedServer) -> None:
    tries = 0

    async def source() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError("no network")
        return "ann"

    async with client_of(server, "ann", token=source):
        assert tries == 3


@pytest.mark.parametrize("status", [101, 400])
async def test_a_server_that_does_not_speak_the_protocol_ends_it(status: int) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        if status == 400:
            raise web.HTTPBadRequest(text="offer a subprotocol")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        return socket

    app = web.Application()
    app.router.add_get("/ws", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ann = QimClient(f"ws://127.0.0.1:{runner.addresses[0][1]}/ws", "ann", "d")
    with pytest.raises(ClientStopped, match="UNSUPPORTED_PROTOCOL"):
        await ann.connect(5)
    await ann.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("wanted", "hosts", "followed"),
    [
        ("ws://127.0.0.1:9/ws", (), True),
        ("wss://127.0.0.1:9/ws", (), True),
        ("ws://evil.example/ws", (), False),
        ("ws://gw-2.example/ws", ("gw-2.example",), True),
        ("ws://127.0.0.1.evil.example/ws", (), False),
        ("http://127.0.0.1/ws", (), False),
        ("ws://[broken/ws", (), False),
    ],
)
async def test_only_known_hosts_get_the_token(
    server: ScriptedServer, wanted: str, hosts: tuple[str, ...], followed: bool
) -> None:
    ann = client_of(server, "ann", endpoint_hosts=hosts, connect_timeout_s=0.5, backoff_base_ms=100_000)
    await ann.connect()
    home = ann.keeper.url
    await server.say(Goodbye("moved", 60_000, wanted))
    await eventually(lambda: not ann.is_online)
    assert ann.keeper.url == (wanted if followed else home)
    await ann.close()
    secure = QimClient("wss://127.0.0.1/ws", "t", "d")
    assert not secure.keeper._is_allowed("ws://127.0.0.1/ws")
    await secure.close()


async def test_wall_clocks_mean_nothing(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """D10: this side's clock jumps by years, senders' times run backwards; order is by conversation_seq."""
    screen = Screen()
    async with client_of(server, "ann", screen) as ann:
        real = time.time
        for n, jump in enumerate((0.0, 1e9, -1e9, 5.0)):
            monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
            monkeypatch.setattr(time, "time_ns", lambda jump=jump: int((real() + jump) * 1e9))
            event = server.store(ROOM, "bob", str(n).encode(), BOTH)
            late = event._replace(message=event.message._replace(committed_at=10_000 - n))
            server.log["ann"][-1] = late
            await server._push_last(BOTH, None)
            await eventually(lambda n=n: len(screen.bodies) == n + 1)
        await ann.send(b"4", to_user_id="bob")
        await ann.checkpoint()
    assert screen.bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert screen.count(Disconnected) == 0
