"""The internal RPC on loopback sockets: handshake, batches, owners that move, links that break, bounds."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest

from qim_streams.commit import rpc_client, rpc_protocol
from qim_streams.commit.outcome import SendOutcome, SendStatus
from qim_streams.commit.ports import OutboxAppend
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.commit.rpc_listener import LOITER_S
from qim_streams.commit.rpc_server import RpcServer
from qim_streams.errors import AdmissionRefused, Outcome, StoreUnavailable
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.ownership.ports import Grant
from qim_streams.placement import outbox_partition
from qim_streams.testing.memory_outbox import Hold, without_barriers
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore
from qim_streams.testing.memory_writer import WriterRig
from tests.support.waiting import eventually

SECRET = b"s" * 32
S = SendStatus
PARTITIONS = 4
TIMEOUT_S = 5.0


@dataclass
class Node:
    """A writer with its RPC server."""

    rig: WriterRig
    server: RpcServer
    port: int

    async def own(self, *partitions: int) -> None:
        for partition in partitions:
            address = f"127.0.0.1:{self.port}"
            grant = await self.rig.leases.acquire(
                f"ob:{partition}", self.rig.node, self.rig.boot, address, 60_000
            )
            assert isinstance(grant, Grant)
            await self.rig.writer.grant(grant).ready.wait()


@dataclass
class World:
    """A hot tier, a log, writers and one gateway's links."""

    tier: MemoryHotTier = field(
        default_factory=lambda: MemoryHotTier(lambda t, c: outbox_partition(t, c, PARTITIONS))
    )
    log: list[OutboxAppend] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    async def node(self, name: str, boot: int = 1, secret: bytes = SECRET, port: int = 0) -> Node:
        rig = WriterRig(self.tier, self.log, node=name, boot=boot)
        server = RpcServer(rig.writer, rig.groups, secret, rig.die)
        port = await server.start("127.0.0.1", port)
        self.nodes.append(Node(rig, server, port))
        return self.nodes[-1]

    def links(self, secret: bytes = SECRET, **bounds: int) -> WriterLinks:
        leases = MemoryLeaseStore(self.tier)
        return WriterLinks(leases, secret, "gw-1", PARTITIONS, rng=random.Random(1), **bounds)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    for node in world.nodes:
        await node.server.close(0.2)
        node.rig.kill()


@pytest.fixture
async def links(world: World) -> AsyncIterator[WriterLinks]:
    links = world.links()
    await links.start()
    yield links
    await links.close()


async def test_sends_of_many_partitions_through_one_link(world: World, links: WriterLinks) -> None:
    node = await world.node("w1")
    await node.own(*range(PARTITIONS))
    requests = [await node.rig.direct("ann", f"u{n}", "m1", b"%d" % n) for n in range(60)]
    outcomes = await asyncio.gather(*(links.send(request, TIMEOUT_S) for request in requests))
    assert all(outcome.status is S.COMMITTED and outcome.conversation_seq == 1 for outcome in outcomes)
    assert len(without_barriers(world.log)) == 60
    again = await asyncio.gather(*(links.send(request, TIMEOUT_S) for request in requests))
    assert again == outcomes
    refused = await links.send(requests[0]._replace(body=b"other"), TIMEOUT_S)
    assert (refused.status, refused.code) == (S.REFUSED, "CLIENT_MESSAGE_ID_CONFLICT")
    assert links.waiting == 0


async def test_messages_of_one_sender_keep_their_order(world: World, links: WriterLinks) -> None:
    node = await world.node("w1")
    await node.own(*range(PARTITIONS))
    requests = [await node.rig.direct("ann", "bob", f"m{n}", b"%d" % n) for n in range(200)]
    outcomes = await asyncio.gather(*(links.send(request, TIMEOUT_S) for request in requests))
    assert [outcome.conversation_seq for outcome in outcomes] == list(range(1, 201))


async def test_group_commands_and_their_refusals(world: World, links: WriterLinks) -> None:
    node = await world.node("w1")
    await node.own(*range(PARTITIONS))
    made = await links.group(GroupCommand(GroupOp.CREATE, "t", "ann", "g", ("bob",)), TIMEOUT_S)
    assert (made.conversation.members_active, made.conversation.version) == (2, 1)
    state = await links.group(GroupCommand(GroupOp.GET, "t", "bob", "g", limit=1), TIMEOUT_S)
    assert [(m.user_id, m.role, m.intervals) for m in state.members] == [("ann", "owner", ((0, None),))]
    assert state.next_user_id == "ann"
    with pytest.raises(AdmissionRefused) as caught:
        await links.group(GroupCommand(GroupOp.ADD, "t", "bob", "g", ("cat",)), TIMEOUT_S)
    assert caught.value.code == "NOT_ALLOWED"
    operator = GroupCommand(GroupOp.ADD, "t", None, "g", ("cat",))
    assert (await links.group(operator, TIMEOUT_S)).conversation.members_active == 3


async def test_a_partition_that_moved_is_found_again(world: World, links: WriterLinks) -> None:
    one, two = await world.node("w1"), await world.node("w2")
    await one.own(*range(PARTITIONS))
    request = await one.rig.direct("ann", "bob", "m1")
    first = await links.send(request, TIMEOUT_S)
    await one.rig.writer.close(1)
    grants = [Grant(f"ob:{p}", 1) for p in range(PARTITIONS)]
    await one.rig.leases.release(grants, "w1", 1)
    sending = asyncio.create_task(links.send(request._replace(client_message_id="m2"), TIMEOUT_S))
    await two.own(*range(PARTITIONS))
    assert (await sending).conversation_seq == 2
    assert await links.send(request, TIMEOUT_S) == first


async def test_a_writer_that_dies_with_a_send_in_its_hands(world: World, links: WriterLinks) -> None:
    """T-K1 through the gateway's eyes: repeated at the next boot, one message, one answer."""
    one = await world.node("w1")
    await one.own(*range(PARTITIONS))
    one.rig.outbox.hold = Hold.BUFFERED
    request = await one.rig.direct("ann", "bob", "m1")
    sending = asyncio.create_task(links.send(request, TIMEOUT_S))
    await eventually(lambda: one.rig.outbox.unacknowledged, what="the message is committed and buffered")
    one.rig.kill()
    await one.server.close(0)
    two = await world.node("w1", boot=2)
    await two.own(*range(PARTITIONS))
    outcome = await sending
    assert (outcome.status, outcome.conversation_seq) == (S.COMMITTED, 1)
    assert len(without_barriers(world.log)) == 1


async def test_the_next_life_of_a_writer_is_not_left_alone_for_the_last_one(
    world: World, links: WriterLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back under its old address, where nobody answered for a while (P15)."""
    monkeypatch.setattr(rpc_client, "DOWN_S", (3_600.0, 3_600.0))
    one = await world.node("w1")
    await one.own(*range(PARTITIONS))
    request = await one.rig.direct("ann", "bob", "m1")
    await links.send(request, TIMEOUT_S)
    one.rig.kill()
    await one.server.close(0)
    sending = asyncio.create_task(links.send(request._replace(client_message_id="m2"), 60.0))
    await eventually(lambda: links._down, what="nobody is there")
    two = await world.node("w1", boot=2, port=one.port)
    await two.own(*range(PARTITIONS))
    assert (await sending).conversation_seq == 2


async def test_without_an_owner_the_deadline_gives_a_clean_refusal(links: WriterLinks) -> None:
    rig = WriterRig(MemoryHotTier(lambda *_: 0), [])
    request = await rig.direct("ann", "bob", "m1")
    outcome = await links.send(request, 0.2)
    assert (outcome.status, outcome.code) == (S.REFUSED, "SHARD_MOVED")
    assert outcome.retry_after_ms
    with pytest.raises(StoreUnavailable) as caught:
        await links.group(GroupCommand(GroupOp.GET, "t", "ann", "g"), 0.2)
    assert caught.value.outcome is Outcome.NOT_APPLIED


async def test_without_an_answer_the_deadline_gives_unknown(world: World, links: WriterLinks) -> None:
    node = await world.node("w1")
    await node.own(*range(PARTITIONS))
    node.rig.outbox.hold = Hold.ARRIVED
    request = await node.rig.direct("ann", "bob", "m1")
    assert (await links.send(request, 0.2)).status is S.UNKNOWN
    node.rig.outbox.hold = Hold.NONE
    node.rig.outbox.acknowledge()
    assert (await links.send(request, TIMEOUT_S)).conversation_seq == 1


async def test_a_refusal_for_now_after_a_lost_writer_is_no_proof(world: World, links: WriterLinks) -> None:
    """What the first writer did is unknown, so the second one's "not now" must not look like "not done"."""
    one = await world.node("w1")
    await one.own(*range(PARTITIONS))
    one.rig.outbox.hold = Hold.BUFFERED
    request = await one.rig.direct("ann", "bob", "m1")
    sending = asyncio.create_task(links.send(request, TIMEOUT_S))
    await eventually(lambda: one.rig.outbox.unacknowledged, what="committed")
    one.rig.kill()
    await one.server.close(0)
    two = await world.node("w1", boot=2)
    two.rig.writer._limits = type(two.rig.writer._limits)(queue_max=0)
    await two.own(*range(PARTITIONS))
    assert (await sending).status is S.UNKNOWN


async def test_the_secret_is_needed_on_both_sides(world: World) -> None:
    node = await world.node("w1", secret=b"x" * 32)
    await node.own(*range(PARTITIONS))
    links = world.links()
    await links.start()
    try:
        outcome = await links.send(await node.rig.direct("ann", "bob", "m1"), 0.3)
        assert (outcome.status, outcome.code) == (S.REFUSED, "SHARD_MOVED")
        assert without_barriers(world.log) == []
    finally:
        await links.close()


async def test_too_many_calls_are_refused_here(world: World) -> None:
    links = world.links(calls_max=2)
    await links.start()
    rig = WriterRig(world.tier, [])
    request = await rig.direct("ann", "bob", "m1")
    answers: list[SendOutcome] = []
    for _ in range(4):
        links.submit(request, 0.2, answers.append)
    assert [answer.code for answer in answers] == ["OVERLOADED", "OVERLOADED"]
    await eventually(lambda: len(answers) == 4)
    assert links.waiting == 0
    await links.close()


async def test_closing_answers_what_waits(world: World) -> None:
    links = world.links()
    await links.start()
    rig = WriterRig(world.tier, [])
    sending = asyncio.create_task(links.send(await rig.direct("ann", "bob", "m1"), 60))
    await eventually(lambda: links.waiting)
    await links.close()
    assert (await sending).status is S.REFUSED


async def test_readiness_is_a_served_partition(world: World) -> None:
    node = await world.node("w1")
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{node.port}/readyz") as answer:
            assert answer.status == 503
            assert await answer.json() == {
                "ready": False,
                "reasons": ["no partition is served"],
                "partitions": 0,
            }
        node.server.stands_by = lambda: True
        async with session.get(f"http://127.0.0.1:{node.port}/readyz") as answer:
            assert (answer.status, (await answer.json())["partitions"]) == (200, 0)
        node.server.stands_by = lambda: False
        await node.own(0)
        async with session.get(f"http://127.0.0.1:{node.port}/readyz") as answer:
            assert answer.status == 200


# -- hostile peers


async def test_who_connects_and_asks_for_nothing_is_ended(world: World, links: WriterLinks) -> None:
    """T-X1: no word, half a request; a link that has proved itself stays, and who asks is answered."""
    node = await world.node("w1")
    await node.own(*range(PARTITIONS))
    request = await node.rig.direct("ann", "ben", "m1", b"1")
    first = await links.send(request, TIMEOUT_S)
    assert first.status is S.COMMITTED
    held = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(20)]
    for _, out in held[::2]:
        out.write(b"GET /rpc HTTP/1.1\r\nX-Qim")
    now_s = asyncio.get_running_loop().time()

    def all_are_seen() -> bool:
        node.server.end_loiterers(now_s)
        return node.server.loitering == 20

    await eventually(all_are_seen)
    assert node.server.end_loiterers(now_s + LOITER_S + 5) == 20
    for reader, _ in held:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 60)
    assert await links.send(request, TIMEOUT_S) == first
    node.server.end_loiterers(now_s)
    assert node.server.loitering == 0
    async with aiohttp.ClientSession() as http:
        for _ in range(3):
            answer = await http.get(f"http://127.0.0.1:{node.port}/readyz")
            assert answer.headers["Connection"] == "close"


async def test_another_version_is_told_so(world: World) -> None:
    node = await world.node("w1")
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {rpc_protocol.VERSION_HEADER: "2"}):
            async with session.get(f"http://127.0.0.1:{node.port}/rpc", headers=headers) as answer:
                assert answer.status == 400
                assert "version 1" in await answer.text()


@pytest.mark.parametrize(
    "first", [b"", b"\xc1", b"\x90" * 3, rpc_protocol.pack((1, b"n" * 32, "gw", b"p" * 32))]
)
async def test_who_cannot_prove_the_secret_is_closed(world: World, first: bytes) -> None:
    """P17, P19."""
    node = await world.node("w1")
    async with aiohttp.ClientSession() as session:
        socket = await _connect(session, node.port)
        await socket.receive_bytes()
        await socket.send_bytes(first)
        end = await socket.receive()
        assert end.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)


async def test_a_recorded_proof_is_worthless(world: World) -> None:
    node = await world.node("w1")
    async with aiohttp.ClientSession() as session:
        recorded = b""
        for attempt in range(2):
            socket = await _connect(session, node.port)
            nonce = rpc_protocol.read_challenge(await socket.receive_bytes())
            if attempt == 0:
                proof = rpc_protocol.client_proof(SECRET, nonce, b"c" * 32, "gw")
                recorded = rpc_protocol.pack((1, b"c" * 32, "gw", proof))
            await socket.send_bytes(recorded)
            answer = await socket.receive()
            assert (answer.type is aiohttp.WSMsgType.BINARY) == (attempt == 0)
            await socket.close()


@pytest.mark.parametrize(
    "frame",
    [
        b"\xc1",
        rpc_protocol.pack({}),
        rpc_protocol.pack([1]),
        rpc_protocol.pack([[1, 9, 5, []]]),
        rpc_protocol.pack([["1", 1, 5, []]]),
        rpc_protocol.pack([[1, 1, 5, ["t"] * 9]]),
        rpc_protocol.pack([[1, 1, 5, ["t", "c", "s", -1, "d", "m", b"", None, 0]]]),
        rpc_protocol.pack([[1, 1, 5, [b"t", "c", "s", 1, "d", "m", b"", None, 0]]]),
    ],
)
async def test_a_peer_that_breaks_the_protocol_is_closed(world: World, frame: bytes) -> None:
    node = await world.node("w1")
    async with aiohttp.ClientSession() as session:
        socket = await _authenticated(session, node.port)
        await socket.send_bytes(frame)
        end = await socket.receive()
        assert end.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)


async def test_a_bad_group_command_is_answered(world: World) -> None:
    node = await world.node("w1")
    async with aiohttp.ClientSession() as session:
        socket = await _authenticated(session, node.port)
        await socket.send_bytes(rpc_protocol.pack([[7, 2, 1_000, [99, "t", None, "g", [], "", {}, "", 0]]]))
        ((rid, status, code, *_),) = rpc_protocol.unpack(await socket.receive_bytes())
        assert (rid, status, code) == (7, 1, "FIELD_INVALID")
        await socket.close()


async def _connect(session: aiohttp.ClientSession, port: int) -> aiohttp.ClientWebSocketResponse:
    headers = {rpc_protocol.VERSION_HEADER: "1"}
    return await session.ws_connect(f"http://127.0.0.1:{port}/rpc", headers=headers)


async def _authenticated(session: aiohttp.ClientSession, port: int) -> aiohttp.ClientWebSocketResponse:
    socket = await _connect(session, port)
    nonce = rpc_protocol.read_challenge(await socket.receive_bytes())
    proof = rpc_protocol.client_proof(SECRET, nonce, b"c" * 32, "gw")
    await socket.send_bytes(rpc_protocol.pack((1, b"c" * 32, "gw", proof)))
    rpc_protocol.check_server(SECRET, nonce, b"c" * 32, await socket.receive_bytes())
    return socket


async def test_an_address_that_does_not_answer_is_left_alone_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    link = rpc_client.WriterLink

    def counted(address: str, *args: object) -> object:
        tries.append(address)
        return link(address, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(rpc_client, "WriterLink", counted)
    await MemoryLeaseStore(world.tier).acquire("ob:0", "gone", 1, "127.0.0.1:9", 60_000)
    links = world.links()
    await links.start()
    rig = WriterRig(world.tier, [])
    chat = next(f"c{n}" for n in range(99) if outbox_partition("t", f"c{n}", PARTITIONS) == 0)
    outcome = await links.send(await rig.request(chat, "ann", "m1"), 1.0)
    assert outcome.status is S.REFUSED
    assert 2 <= len(tries) <= 12
    await links.close()
