"""EDIT_MESSAGE and RECALL_MESSAGE on real sockets, in both encodings: one answer each, what writers get."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from qim_streams.commit.outcome import refused, refused_by
from qim_streams.commit.ports import CommitStatus
from qim_streams.records import KIND_EDIT, KIND_RECALL
from qim_streams.wire import CODECS, Codec
from qim_streams.wire.frames import Error, Ping, SendAck
from qim_streams.wire.frames_changes import EditMessage, RecallMessage
from tests.support.gateway_world import GatewayWorld, WireClient

BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.subprotocol)


@pytest.fixture
async def world() -> AsyncIterator[GatewayWorld]:
    async with GatewayWorld(inflight_sends_max=4, message_body_bytes_max=1_000).running() as running:
        yield running


@BOTH
async def test_both_are_acked_like_a_send(world: GatewayWorld, codec: Codec) -> None:
    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann")
        ack = await ann.call(EditMessage(5, "e-1", "team", 42, b"new"))
        assert ack == SendAck(5, "e-1", "team", (1).to_bytes(16, "big"), 1, 1_001)
        ack = await ann.call(RecallMessage(6, "r-1", "team", 42))
        assert ack == SendAck(6, "r-1", "team", (2).to_bytes(16, "big"), 2, 1_002)


@BOTH
async def test_what_the_writer_is_asked(world: GatewayWorld, codec: Codec) -> None:
    """Who asks comes from the session."""
    world.writers.automatic = False
    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann", device="tablet")
        await ann.send(EditMessage(1, "e-1", "team", 42, b"new"))
        await ann.send(RecallMessage(2, "r-1", "team", 43))
        await ann.call(Ping(3))
        edit, recall = (request for request, _ in world.writers.waiting)
        ordinal = world.address("ann").ordinal
        assert edit[:6] == ("acme", "team", "ann", ordinal, "tablet", "e-1")
        assert edit[6:10] == (b"new", None, KIND_EDIT, 42)
        assert recall[6:10] == (b"", None, KIND_RECALL, 43)
        world.writers.answer()
        world.writers.answer()


@BOTH
async def test_refusals_name_field_and_request(world: GatewayWorld, codec: Codec) -> None:
    world.writers.automatic = False
    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann")
        for status, name, field in (
            (CommitStatus.NO_TARGET, "TARGET_NOT_FOUND", "conversation_seq"),
            (CommitStatus.NOT_A_MESSAGE, "TARGET_NOT_A_MESSAGE", "conversation_seq"),
            (CommitStatus.TARGET_RECALLED, "TARGET_RECALLED", "conversation_seq"),
            (CommitStatus.TOO_LATE, "CHANGE_TOO_LATE", "conversation_seq"),
            (CommitStatus.TOO_MANY_EDITS, "TOO_MANY_EDITS", "conversation_seq"),
            (CommitStatus.NOT_YOURS, "NOT_ALLOWED", None),
        ):
            await ann.send(EditMessage(7, "e", "team", 1, b"x"))
            await ann.call(Ping(8))
            world.writers.answer(refused_by(status))
            answer = await ann.expect(Error)
            assert (answer.name, answer.field, answer.rid) == (name, field, 7)
            assert (answer.temporary, answer.client_message_id) == (False, "e")
        await ann.send(RecallMessage(9, "r", "team", 1))
        await ann.call(Ping(10))
        world.writers.answer(refused("STORE_UNAVAILABLE", "the archive cannot be read now", 1_000))
        answer = await ann.expect(Error)
        assert (answer.name, answer.temporary, answer.retry_after_ms) == ("STORE_UNAVAILABLE", True, 1_000)


@BOTH
@pytest.mark.parametrize(
    ("frame", "name", "field"),
    [
        (EditMessage(1, "e", "team", 1, b"x" * 1_001), "BODY_TOO_LARGE", "body"),
        (EditMessage(1, "e", "team", 0, b"x"), "FIELD_INVALID", "conversation_seq"),
        (RecallMessage(1, "r", "team", 0), "FIELD_INVALID", "conversation_seq"),
        (RecallMessage(1, "r", "te am", 1), "FIELD_INVALID", "conversation_id"),
    ],
)
async def test_bad_fields_are_refused_here(
    world: GatewayWorld, codec: Codec, frame: Any, name: str, field: str
) -> None:
    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann")
        answer = await ann.call(frame)
        assert (answer.name, answer.field) == (name, field)
        assert not world.writers.waiting
