"""`QimClient` against a scripted server over real sockets (A1 A2 A5 A13 C1 C2 D11 F1 I13 T-N4)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from scripted_server import Goodbye, LiveLost, ScriptedServer

from qim_streams.client import (
    ClientOptions,
    Disconnected,
    MemoryStore,
    QimClient,
    SqliteStore,
    SyncFinished,
)
from qim_streams.client.conversations import KnownConversations
from qim_streams.errors import AdmissionRefused, ClientStopped, ConfigError
from qim_streams.wire.frames import Auth, Event, PullMailbox, SendMessage
from tests.support.waiting import eventually

FAST = {"backoff_base_ms": 10, "backoff_cap_ms": 50, "tick_s": 0.02, "gap_grace_ms": 30}
ROOM = "room"
BOTH = ["ann", "bob"]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    one = ScriptedServer()
    await one.start()
    yield one
    await one.stop()


class Screen:
    """What an application would show."""

    def __init__(self) -> None:
        self.all: list[object] = []

    def __call__(self, deliveries: object) -> None:
        self.all.extend(deliveries)  # type: ignore[call-overload]

    @property
    def bodies(self) -> list[bytes]:
        return [one.message.body for one in self.all if type(one) is Event]

    @property
    def seqs(self) -> list[int]:
        return [one.message.conversation_seq for one in self.all if type(one) is Event]

    def count(self, cls: type) -> int:
        return sum(type(one) is cls for one in self.all)


def client_of(
    server: ScriptedServer, user: str, screen: Screen | None = None, **options: object
) -> QimClient:
    extra = {
        name: options.pop(name) for name in ("store", "token", "conversations", "device") if name in options
    }
    extra.setdefault("conversations", KnownConversations)  # the scripted server has no session list
    return QimClient(
        server.url,
        extra.pop("token", user),  # type: ignore[arg-type]
        str(extra.pop("device", f"{user}-1")),
        options=ClientOptions(**{**FAST, **options}),  # type: ignore[arg-type]
        on_deliveries=screen,
        **extra,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
async def test_two_people_talk(server: ScriptedServer, encoding: str) -> None:
    seen_by_ann, seen_by_bob = Screen(), Screen()
    ann = client_of(server, "ann", seen_by_ann, encoding=encoding)
    bob = client_of(server, "bob", seen_by_bob, encoding=encoding)
    async with ann, bob:
        first = await ann.send(b"hi \x00\xff", to_user_id="bob")
        await eventually(lambda: seen_by_bob.bodies == [b"hi \x00\xff"])
        second = await bob.send(b"yo", conversation_id=first.conversation_id)
        await eventually(lambda: seen_by_ann.bodies == [b"hi \x00\xff", b"yo"])
    assert (first.conversation_seq, second.conversation_seq) == (1, 2)
    assert first.message_id < second.message_id


async def test_events_iterator_gives_marks_and_events_and_ends_with_close(server: ScriptedServer) -> None:
    server.store(ROOM, "bob", b"before", BOTH)
    ann = client_of(server, "ann", first_sync="mailbox")
    got: list[object] = []

    async def read() -> None:
        async for one in ann.events():
            got.append(one)  # noqa: PERF401 - looked at while it grows

    reader = asyncio.create_task(read())
    await ann.connect()
    await server.publish(ROOM, "bob", b"after", BOTH)
    await eventually(lambda: len(got) == 4)
    await ann.close()
    await asyncio.wait_for(reader, 5)
    assert [type(one).__name__ for one in got] == ["SyncStarted", "Event", "SyncFinished", "Event"]


async def test_lost_ack_is_repeated_with_the_same_id(server: ScriptedServer) -> None:
    """C1, T-N4: acks vanish; the message is there once and the receipt is the first one."""
    server.faults.drop_acks = 3
    async with client_of(server, "ann", answer_ms=60) as ann:
        receipt = await ann.send(b"once", to_user_id="bob", client_message_id="m-1", timeout_s=10)
    sent = server.frames(SendMessage)
    assert len(sent) == 4
    assert {(one.client_message_id, one.body) for one in sent} == {("m-1", b"once")}
    assert receipt.conversation_seq == 1
    assert len(server.log["bob"]) == 1


async def test_sends_survive_reconnects_and_keep_their_order(server: ScriptedServer) -> None:
    screen = Screen()
    async with client_of(server, "bob", screen) as bob, client_of(server, "ann") as ann:
        await bob.wait_online()
        server.faults.drop_acks = 1
        first = asyncio.create_task(ann.send(b"0", to_user_id="bob"))
        await eventually(lambda: len(server.sends) == 1)
        rest = [asyncio.create_task(ann.send(str(n).encode(), to_user_id="bob")) for n in range(1, 20)]
        await server.cut()
        receipts = await asyncio.gather(first, *rest)
        await eventually(lambda: len(screen.bodies) == 20)
    assert [one.conversation_seq for one in receipts] == list(range(1, 21))
    assert screen.bodies == [str(n).encode() for n in range(20)]
    assert screen.seqs == list(range(1, 21))


async def test_not_now_is_repeated_and_no_is_final(server: ScriptedServer) -> None:
    server.faults.refuse_sends = [("OVERLOADED", 10), ("OUTCOME_UNKNOWN", 10), ("NOT_MEMBER", None)]
    async with client_of(server, "ann") as ann:
        with pytest.raises(AdmissionRefused, match="NOT_MEMBER"):
            await ann.send(b"x", conversation_id=ROOM)
        assert (await ann.send(b"y", to_user_id="bob")).conversation_seq == 1
    assert len({one.client_message_id for one in server.frames(SendMessage)}) == 2
    assert len(server.frames(SendMessage)) == 4


async def test_another_body_under_a_used_id_is_refused(server: ScriptedServer) -> None:
    async with client_of(server, "ann") as ann:
        await ann.send(b"first", to_user_id="bob", client_message_id="m-1")
        with pytest.raises(AdmissionRefused, match="CLIENT_MESSAGE_ID_CONFLICT"):
            await ann.send(b"second", to_user_id="bob", client_message_id="m-1")


async def test_duplicate_pushes_are_shown_once(server: ScriptedServer) -> None:
    """C2."""
    server.faults.repeat_pushes = 3
    screen = Screen()
    async with client_of(server, "ann", screen) as ann:
        for n in range(5):
            await server.publish(ROOM, "bob", str(n).encode(), BOTH)
        await eventually(lambda: ann.session.inbox.counters.events == 15)
        assert ann.session.inbox.counters.wire_duplicates == 10
    assert screen.bodies == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_dropped_push_is_repaired_in_order(server: ScriptedServer) -> None:
    """A5, D11: the second message waits for the first, which comes by pull."""
    screen = Screen()
    async with client_of(server, "ann", screen) as ann:
        await server.publish(ROOM, "bob", b"1", BOTH)
        server.faults.drop_pushes = 1
        await server.publish(ROOM, "bob", b"2", BOTH)
        await server.publish(ROOM, "bob", b"3", BOTH)
        await eventually(lambda: screen.bodies == [b"1", b"2", b"3"])
        assert ann.session.inbox.counters.gaps == 1
        assert ann.session.inbox.counters.reordered == 0


async def test_a_dropped_last_push_comes_with_the_next_checkpoint(server: ScriptedServer) -> None:
    screen = Screen()
    async with client_of(server, "ann", screen, checkpoint_interval_ms=50):
        await server.publish(ROOM, "bob", b"1", BOTH)
        server.faults.drop_pushes = 1
        await server.publish(ROOM, "bob", b"2", BOTH)
        await eventually(lambda: screen.bodies == [b"1", b"2"])


async def test_reversed_pushes_are_shown_in_order(server: ScriptedServer) -> None:
    """D11."""
    screen = Screen()
    async with client_of(server, "ann", screen) as ann:
        await server.publish(ROOM, "bob", b"1", BOTH)
        server.faults.drop_pushes, server.faults.reverse_pushes = 1, True
        await server.publish(ROOM, "bob", b"2", BOTH)
        await server.publish(ROOM, "bob", b"3", BOTH)
        await eventually(lambda: screen.bodies == [b"1", b"2", b"3"])
        assert ann.session.inbox.counters.reordered == 0


async def test_cut_mid_sync_resumes_and_push_moves_no_cursor(server: ScriptedServer) -> None:
    """A1, A2: 500 offline entries, one live message before the first pull, cut after two batches."""
    store, screen = MemoryStore(), Screen()
    async with client_of(server, "ann", store=store):
        pass
    for n in range(500):
        server.store(ROOM, "bob", str(n).encode(), BOTH)
    server.faults.batch_entries, server.faults.cut_after_batches = 100, 2
    injected = []

    async def inject(_: object) -> None:
        if not injected:
            injected.append(1)
            await server.publish(ROOM, "bob", b"live", BOTH)

    server.before_batch = inject
    cursors: list[str | None] = []
    async with client_of(server, "ann", screen, store=store) as ann:
        await eventually(lambda: len(screen.bodies) == 501)
        cursors.append(ann.cursor)
    assert server.accepted == 3
    assert screen.bodies == [*(str(n).encode() for n in range(500)), b"live"]
    auths = server.frames(Auth)
    assert auths[-1].mailbox_cursor not in (None, auths[-2].mailbox_cursor)  # went on, no full restart
    assert screen.count(SyncFinished) == 1


async def test_nothing_but_auth_is_sent_before_auth_ok(server: ScriptedServer) -> None:
    """A7: a pull that was to be repeated when the connection ended waits for the next AUTH_OK."""
    for n in range(30):
        server.store(ROOM, "bob", str(n).encode(), BOTH)
    server.faults.refuse_pulls = [("STORE_UNAVAILABLE", 50)]
    screen = Screen()

    def slow_down(_: object) -> None:
        server.faults.auth_delay_s = 0.3  # longer than the pull's delay, many ticks of the client

    server.before_batch = slow_down
    async with client_of(server, "ann", screen, first_sync="mailbox"):
        pass
    assert len(server.frames(PullMailbox)) == 2
    assert len(screen.bodies) == 30
    assert server.accepted == 2


async def test_first_sync_from_the_mailbox_is_pipelined(server: ScriptedServer) -> None:
    for n in range(900):
        server.store(ROOM, "bob", str(n).encode(), BOTH)
    server.faults.batch_entries = 50
    screen = Screen()
    async with client_of(server, "ann", screen, first_sync="mailbox"):
        assert screen.bodies == [str(n).encode() for n in range(900)]
    assert len(server.frames(PullMailbox)) >= 18


async def test_first_sync_cut_short_goes_on(server: ScriptedServer) -> None:
    for n in range(300):
        server.store(ROOM, "bob", str(n).encode(), BOTH)
    server.faults.batch_entries, server.faults.cut_after_batches = 50, 3
    screen = Screen()
    async with client_of(server, "ann", screen, first_sync="mailbox"):
        await eventually(lambda: len(screen.bodies) == 300)
    assert screen.bodies == [str(n).encode() for n in range(300)]
    assert server.accepted == 2


async def test_rebase_takes_the_new_cursor(server: ScriptedServer) -> None:
    store, screen = MemoryStore(), Screen()
    async with client_of(server, "ann", screen, store=store) as ann:
        await server.publish(ROOM, "bob", b"1", BOTH)
        await eventually(lambda: screen.bodies == [b"1"])
        await ann.checkpoint()
    server.store(ROOM, "bob", b"2", BOTH)
    server.faults.rebase = True
    async with client_of(server, "ann", screen, store=store):
        await eventually(lambda: screen.bodies == [b"1", b"2"])
    assert [one.mailbox_cursor for one in server.frames(Auth)] == [None, "c.0", "c.-1"]


async def test_live_lost_pulls(server: ScriptedServer) -> None:
    screen = Screen()
    async with client_of(server, "ann", screen):
        server.store(ROOM, "bob", b"1", BOTH)
        await server.say(LiveLost("slow_reader", server.watermark))
        await eventually(lambda: screen.bodies == [b"1"])


async def test_checkpoint_moves_the_cursor_and_pushes_do_not(server: ScriptedServer) -> None:
    screen = Screen()
    async with client_of(server, "ann", screen, checkpoint_events=4) as ann:
        for n in range(3):
            await server.publish(ROOM, "bob", str(n).encode(), BOTH)
        await eventually(lambda: len(screen.bodies) == 3)
        assert ann.cursor == "c.-1"
        await server.publish(ROOM, "bob", b"3", BOTH)
        await eventually(lambda: ann.cursor == "c.3")
    assert len(screen.bodies) == 4


async def test_the_other_device_of_a_sender_gets_his_messages(server: ScriptedServer) -> None:
    """F1: own entries come to the second device once and are marked as own."""
    phone, desk = Screen(), Screen()
    one, two = client_of(server, "ann", phone), client_of(server, "ann", desk, device="ann-2")
    async with one, two:
        receipt = await one.send(b"from my phone", to_user_id="bob")
        await eventually(lambda: desk.bodies == [b"from my phone"])
        await one.checkpoint()
    assert phone.bodies == [b"from my phone"]  # by the ack, and the pulled entry is no second one
    own = [event for event in desk.all if type(event) is Event]
    assert own[0].client_message_id == receipt.client_message_id


async def test_without_echo_own_messages_are_receipts_only(server: ScriptedServer) -> None:
    screen = Screen()
    async with client_of(server, "ann", screen, echo_own=False) as ann:
        receipt = await ann.send(b"mine", to_user_id="bob")
        await server.publish(receipt.conversation_id, "bob", b"yours", BOTH)
        await ann.checkpoint()
    assert screen.bodies == [b"yours"]


@pytest.mark.parametrize("name", ["BAD_TOKEN", "SESSION_REPLACED", "TOKEN_EXPIRED"])
async def test_terminal_answers_stop_the_client(server: ScriptedServer, name: str) -> None:
    """I13: no loop of reconnects; what was being sent ends with an unknown outcome."""
    server.faults.refuse_auth = name
    ann = client_of(server, "ann")
    sending = asyncio.create_task(ann.send(b"x", to_user_id="bob"))
    with pytest.raises(ClientStopped, match=name):
        await ann.connect(5)
    with pytest.raises(ClientStopped, match=name):
        await sending
    with pytest.raises(ClientStopped, match=name):
        async for _ in ann.events():
            pass
    await ann.close()
    assert server.accepted == 1


async def test_temporary_refusals_are_tried_again(server: ScriptedServer) -> None:
    server.faults.refuse_auth = "SHUTTING_DOWN"
    ann = client_of(server, "ann")
    connecting = asyncio.create_task(ann.connect(20))
    await eventually(lambda: server.accepted >= 1)
    server.faults.refuse_auth = ""
    await connecting
    await ann.close()


async def test_goodbye_is_followed_by_another_connection(server: ScriptedServer) -> None:
    async with client_of(server, "ann") as ann:
        await server.say(Goodbye("shutting_down", 20))
        await eventually(lambda: server.accepted == 2 and ann.is_online)


async def test_a_silent_server_is_left(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A13: the socket is open and nobody is there."""
    monkeypatch.setattr("qim_streams.client.heartbeat.PEER_DEAD_MS", 100)
    server.faults.ignore_pings = True
    async with client_of(server, "ann", close_timeout_s=0.1) as ann:
        await eventually(lambda: server.accepted >= 2)
        assert ann.connections >= 1


async def test_unsent_messages_survive_the_process(server: ScriptedServer, tmp_path: Path) -> None:
    server.faults.drop_acks = 1
    store = SqliteStore(tmp_path / "ann.db")
    ann = client_of(server, "ann", store=store)
    await ann.connect()
    lost = asyncio.create_task(ann.send(b"kept", to_user_id="bob", client_message_id="m-1"))
    await eventually(lambda: len(server.sends) == 1)
    await ann.close()
    with pytest.raises(ClientStopped):
        await lost
    again = SqliteStore(tmp_path / "ann.db")
    async with client_of(server, "ann", store=again):
        await eventually(lambda: not again.load().unsent)
    assert len(server.log["bob"]) == 1


async def test_a_slow_application_stops_the_reading(server: ScriptedServer) -> None:
    async with client_of(server, "ann", events_max=10) as ann:
        for n in range(300):
            await server.publish(ROOM, "bob", str(n).encode(), BOTH)
        await eventually(lambda: len(ann._stream._queue) >= 10)
        bodies = []
        async for one in ann.events():
            if type(one) is Event:
                bodies.append(one.message.body)
            assert len(ann._stream._queue) <= 12
            if len(bodies) == 300:
                break
    assert bodies == [str(n).encode() for n in range(300)]


async def test_sync_delay_hint_is_waited_for(server: ScriptedServer) -> None:
    server.store(ROOM, "bob", b"1", BOTH)
    server.faults.sync_delay_ms = 3_600_000
    ann = client_of(server, "ann", first_sync="mailbox")
    with pytest.raises(TimeoutError):
        await ann.connect(0.3)
    assert server.frames(Auth)
    assert not server.frames(PullMailbox)
    await ann.close()


async def test_group_calls_are_repeated_over_a_lost_connection(server: ScriptedServer) -> None:
    server.faults.drop_group_answers = 1
    async with client_of(server, "ann") as ann:
        with pytest.raises(AdmissionRefused, match="CONVERSATION_EXISTS"):
            await ann.groups.create(["bob"], conversation_id="g-1")
        assert (await ann.groups.get("g-1")).members_active == 2
        assert (await ann.groups.create(["bob", "eve"])).members_active == 3


async def test_give_up_and_bad_arguments(server: ScriptedServer) -> None:
    server.faults.drop_acks = 1_000
    async with client_of(server, "ann") as ann:
        with pytest.raises(TimeoutError):
            await ann.send(b"x", to_user_id="bob", timeout_s=0.1)
        assert len(ann.session.sends) == 0
        with pytest.raises(ConfigError, match="either"):
            await ann.send(b"x")
    with pytest.raises(ConfigError, match="ws://"):
        QimClient("ftp://x", "t", "d")
    with pytest.raises(ConfigError, match="encoding"):
        ClientOptions(encoding="xml")


async def test_a_preferred_endpoint_is_followed_and_given_up_when_nobody_is_there(
    server: ScriptedServer,
) -> None:
    screen = Screen()
    async with client_of(server, "ann", screen, connect_timeout_s=1.0) as ann:
        await server.say(Goodbye("moved", 0, "ws://127.0.0.1:9/ws"))
        await eventually(lambda: ann.is_online and server.accepted == 2)
    ends = [one for one in screen.all if type(one) is Disconnected]
    assert [one.reason.partition(":")[0] for one in ends] == ["moved"] + ["ClientConnectorError"] * 3


async def test_a_lost_live_stream_before_online_is_pulled_afterwards(server: ScriptedServer) -> None:
    screen = Screen()

    async def lose(_: object) -> None:
        server.before_batch = None
        await server.say(LiveLost("held_overflow", server.watermark))

    server.store(ROOM, "bob", b"1", BOTH)
    server.before_batch = lose
    async with client_of(server, "ann", screen, first_sync="mailbox"):
        await eventually(lambda: len(server.frames(PullMailbox)) >= 2)
    assert screen.bodies == [b"1"]


async def test_a_failing_callback_in_a_timer_stops_the_client(server: ScriptedServer) -> None:
    ann = client_of(server, "ann")
    await ann.connect(5)

    def fail(_: int) -> None:
        raise RuntimeError("tick")

    ann.session.tick = fail  # type: ignore[method-assign]
    with pytest.raises(ClientStopped, match="tick"):
        async for _ in ann.events():
            pass
    await ann.close()


async def test_a_failing_callback_stops_the_client(server: ScriptedServer) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("application")

    ann = QimClient(server.url, "ann", "d", on_deliveries=fail)
    with pytest.raises(ClientStopped, match="application"):
        await ann.connect(5)
    await ann.close()
