"""Sends and group changes on real sockets: one answer each, bounds, what the writers were asked (C1)."""

from collections.abc import AsyncIterator

import pytest

from qim_streams.commit.outcome import NOT_OWNER, UNKNOWN, refused
from qim_streams.ids import direct_conversation_id
from qim_streams.membership.commands import GroupOp
from qim_streams.wire import CODECS, Codec
from qim_streams.wire.frames import Error, Ping, Pong, SendAck, SendMessage
from qim_streams.wire.frames_group import (
    GroupAdd,
    GroupCreate,
    GroupDismiss,
    GroupGet,
    GroupJoin,
    GroupLeave,
    GroupRemove,
    GroupSetRole,
    GroupState,
    GroupUpdate,
    MemberRow,
)
from tests.support.gateway_world import GatewayWorld, WireClient

BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.subprotocol)


@pytest.fixture
async def world() -> AsyncIterator[GatewayWorld]:
    async with GatewayWorld(inflight_sends_max=4, message_body_bytes_max=1_000).running() as running:
        yield running


@BOTH
async def test_a_send_is_acked(world: GatewayWorld, codec: Codec) -> None:
    """SEND_MESSAGE -> writer -> SEND_ACK, legal before ONLINE_READY."""
    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann")
        ack = await ann.call(SendMessage(5, "m-1", b"body", "team"))
        assert ack == SendAck(5, "m-1", "team", (1).to_bytes(16, "big"), 1, 1_001)


async def test_what_the_writer_is_asked(world: GatewayWorld) -> None:
    """Sender, ordinal and device come from the session, never from the frame."""
    world.writers.automatic = False
    async with await WireClient.connect(world.url) as ann:
        await ann.sign_on("ann", device="tablet")
        await ann.send(SendMessage(1, "m-1", b"body", to_user_id="ben"))
        await ann.call(Ping(2))
        request, _ = world.writers.waiting[0]
        assert request.conversation_id == direct_conversation_id("acme", "ann", "ben")
        assert request[:1] + request[2:5] == ("acme", "ann", world.address("ann").ordinal, "tablet")
        assert (request.client_message_id, request.body, request.to_user_id) == ("m-1", b"body", "ben")
        world.writers.answer()
        assert (await ann.expect(SendAck)).conversation_id == request.conversation_id


@pytest.mark.parametrize(
    ("outcome", "name", "temporary"),
    [
        (refused("NOT_MEMBER", "x"), "NOT_MEMBER", False),
        (refused("RATE_LIMITED", "x", 250), "RATE_LIMITED", True),
        (UNKNOWN, "OUTCOME_UNKNOWN", True),
        (NOT_OWNER, "SHARD_MOVED", True),
    ],
)
async def test_refusals_name_the_message(
    world: GatewayWorld, outcome: object, name: str, temporary: bool
) -> None:
    """Every outcome other than committed is an ERROR with rid, client_message_id and delay."""
    world.writers.automatic = False
    async with await WireClient.connect(world.url) as ann:
        await ann.sign_on("ann")
        await ann.send(SendMessage(5, "m-1", b"body", "team"))
        await ann.call(Ping(1))
        world.writers.answer(outcome)  # type: ignore[arg-type]
        answer = await ann.expect(Error)
        assert (answer.name, answer.rid, answer.client_message_id) == (name, 5, "m-1")
        assert (answer.temporary, answer.retry_after_ms is not None) == (temporary, temporary)
        if name == "RATE_LIMITED":
            assert answer.retry_after_ms == 250


async def test_bad_sends(world: GatewayWorld) -> None:
    """Too large, nowhere, to two places: refused here, and the connection goes on."""
    async with await WireClient.connect(world.url) as ann:
        await ann.sign_on("ann")
        for frame, name in (
            (SendMessage(1, "m", b"b" * 1_001, "team"), "BODY_TOO_LARGE"),
            (SendMessage(2, "m", b"b"), "FIELD_INVALID"),
            (SendMessage(3, "m", b"b", "team", "ben"), "FIELD_INVALID"),
        ):
            answer = await ann.call(frame)
            assert (answer.name, answer.rid, answer.client_message_id) == (name, frame.rid, "m")
        assert not world.writers.waiting
        assert type(await ann.call(SendMessage(4, "m", b"b" * 1_000, "team"))) is SendAck


async def test_unanswered_sends_are_bounded(world: GatewayWorld) -> None:
    """The fifth of four is refused with a delay; an answer makes room."""
    world.writers.automatic = False
    async with await WireClient.connect(world.url) as ann:
        await ann.sign_on("ann")
        for number in range(5):
            await ann.send(SendMessage(number, f"m-{number}", b"b", "team"))
        answer = await ann.expect(Error)
        assert (answer.name, answer.rid, answer.temporary) == ("TOO_MANY_IN_FLIGHT", 4, True)
        world.writers.answer()
        assert (await ann.expect(SendAck)).rid == 0
        await ann.send(SendMessage(9, "m-9", b"b", "team"))
        assert type(await ann.call(Ping(1))) is Pong
        assert len(world.writers.waiting) == 4


async def test_answers_after_the_end_are_dropped(world: GatewayWorld) -> None:
    """The writer answers a client that has gone: nothing happens."""
    world.writers.automatic = False
    async with await WireClient.connect(world.url) as ann:
        await ann.sign_on("ann")
        await ann.send(SendMessage(1, "m", b"b", "team"))
        await ann.call(Ping(1))
    async with await WireClient.connect(world.url) as ann:
        await ann.sign_on("ann")
        world.writers.answer()
        assert type(await ann.call(Ping(1))) is Pong


@BOTH
async def test_group_frames(world: GatewayWorld, codec: Codec) -> None:
    """Each frame becomes its command; the answer is GROUP_STATE."""
    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann")
        frames = [
            (GroupCreate(1, ["ben"], None, "The team"), GroupOp.CREATE),
            (GroupAdd(2, "team", ["ben"]), GroupOp.ADD),
            (GroupRemove(3, "team", ["ben"]), GroupOp.REMOVE),
            (GroupJoin(4, "team"), GroupOp.JOIN),
            (GroupLeave(5, "team"), GroupOp.LEAVE),
            (GroupDismiss(6, "team"), GroupOp.DISMISS),
            (GroupSetRole(7, "team", "ben", "admin"), GroupOp.SET_ROLE),
            (GroupUpdate(8, "team", send_policy="admins"), GroupOp.UPDATE),
            (GroupGet(9, "team", "ann", 5), GroupOp.GET),
        ]
        for frame, op in frames:
            answer = await ann.call(frame)
            assert type(answer) is GroupState, answer
            command = world.writers.commands[-1]
            assert (command.op, command.actor_id, command.tenant_id) == (op, "ann", "acme")
            assert answer.conversation_id == command.conversation_id
            assert answer.members == [MemberRow("ann", "owner")]
        created, updated, got = (world.writers.commands[at] for at in (0, 7, 8))
        assert (created.conversation_id, created.fields["name"]) == ("g.new", "The team")
        assert dict(updated.fields) == {"send_policy": "admins"}
        assert (got.after_user_id, got.limit) == ("ann", 5)
