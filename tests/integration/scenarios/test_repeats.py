"""Repeated sends and repeated pushes over a real stack: C1, C2, C4, C13. Spec: §3.5, §6, §7."""

import pytest

from qim_streams.client import MemoryStore
from qim_streams.wire.frames import Frame, PushEvents, SendAck, SendMessage
from tests.integration.scenarios.conftest import Cast
from tests.support.frame_proxy import Passage
from tests.support.waiting import eventually
from tests.support.wire_client import WireError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


async def test_C1_every_ack_is_lost_until_the_sixth_try(cast: Cast) -> None:
    """T-N4: the client repeats on this connection and the next: one record, one seq, the same answer."""
    ann, ben = cast.people("ann", "ben")
    proxy = await cast.proxy()
    lost: list[SendAck] = []

    def lose_acks(_: Passage, frame: Frame) -> int:
        if isinstance(frame, SendAck) and len(lost) < 5:
            lost.append(frame)
            return 0
        return 1

    proxy.to_client = lose_acks
    sender = await ann.online(url=proxy.url, answer_ms=300)
    name = f"{ann.user_id}.once"
    task = cast.background(sender.send(b"once", to_user_id=ben.user_id, client_message_id=name))
    await eventually(lambda: len(lost) >= 3, 30, "three lost acks")
    await proxy.cut()
    receipt = await task
    tries = [frame for one in proxy.passages for frame in one.to_server if isinstance(frame, SendMessage)]
    assert len(tries) >= 6
    assert len(proxy.passages) >= 2
    assert {ack[1:] for ack in lost} == {tuple(receipt)}
    assert len(await cast.outbox(name)) == 1
    assert [event.message.message_id for event in await ben.mailbox(1)] == [receipt.message_id]


async def test_C2_a_repeated_push_shows_once(cast: Cast) -> None:
    """The server sends every push twice; a new connection pulls all again (C13): the application sees one."""
    ann, ben = cast.people("ann", "ben")
    proxy = await cast.proxy()
    proxy.to_client = lambda _, frame: 2 if isinstance(frame, PushEvents) else 1
    sender = await ann.online()
    phone = await ben.online(url=proxy.url, store=MemoryStore())
    before = phone.cursor
    for number in range(20):
        await sender.send(f"m{number}".encode(), to_user_id=ben.user_id)
    await eventually(lambda: len(ben.shown) >= 20, 20, "20 events")
    assert phone.cursor == before, "a push moved the cursor"
    await proxy.cut()
    await eventually(lambda: phone.connections == 2 and phone.is_online, 20, "the next connection")
    await phone.checkpoint()
    assert [event.message.body for event in ben.shown] == [f"m{number}".encode() for number in range(20)]
    counters = phone.session.inbox.counters
    assert counters.wire_duplicates >= 20
    assert counters.visible_duplicates == counters.reordered == 0


async def test_C4_two_ids_at_once_then_the_first_again(cast: Cast) -> None:
    """X and Y are sent together, then X again, also by another device: one X, one Y, the same answers."""
    ann, ben = cast.people("ann", "ben")
    async with ann.wire("phone") as phone, ann.wire("tablet") as tablet:
        await phone.go_online()
        await tablet.go_online()
        frames = [
            SendMessage(phone.next_rid(), name, name.encode(), None, ben.user_id) for name in ("X", "Y")
        ]
        for frame in frames:
            await phone.send(frame)
        acks = {}
        for frame in frames:
            ack = await phone.take(SendAck, lambda one, rid=frame.rid: one.rid == rid)
            acks[frame.client_message_id] = ack
        again = await phone.say("X", b"X", to=ben.user_id)
        elsewhere = await tablet.say("X", b"X", to=ben.user_id)
    assert acks["X"][1:] == again[1:] == elsewhere[1:]
    assert acks["X"].message_id != acks["Y"].message_id
    mailbox = await ben.mailbox(2)
    assert sorted(event.message.body for event in mailbox) == [b"X", b"Y"]


async def test_the_same_id_with_another_payload_is_a_conflict_and_the_first_stands(cast: Cast) -> None:
    """Spec §3.5: an explicit error; the first body is kept."""
    ann, ben = cast.people("ann", "ben")
    async with ann.wire() as phone:
        await phone.go_online()
        first = await phone.say("one", b"first", to=ben.user_id)
        with pytest.raises(WireError) as refused:
            await phone.say("one", b"second", to=ben.user_id)
        assert refused.value.frame is not None
        assert refused.value.frame.name == "CLIENT_MESSAGE_ID_CONFLICT"
        assert (await phone.say("one", b"first", to=ben.user_id))[1:] == first[1:]
    assert [event.message.body for event in await ben.mailbox(1)] == [b"first"]
