"""Reconnecting and syncing over a real stack: A1, A4, A5, A13, A14. Spec: §6, §7."""

import asyncio
import contextlib
import itertools

import pytest

from qim_streams.client import SendReceipt
from qim_streams.wire.frames import Event, Frame, PushEvents
from tests.integration.scenarios.conftest import Cast, Person
from tests.support.frame_proxy import Passage
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, pull_range

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def bodies(events: list[Event]) -> list[bytes]:
    return [event.message.body for event in events]


async def test_A1_a_live_message_before_the_first_pull_moves_no_cursor(cast: Cast) -> None:
    """500 offline entries, one live message, a cut after 2 of 5 batches: 501 messages, cursors as covered."""
    ann, ben = cast.people("ann", "ben")
    cursor = await ben.cursor()
    sender = await ann.online(per_conversation_inflight=64)
    sends = (sender.send(f"m{number}".encode(), to_user_id=ben.user_id) for number in range(500))
    await asyncio.gather(*sends)
    assert len(await ben.mailbox(500)) == 500

    async with ben.wire() as phone:
        auth = await phone.auth(cursor)
        assert auth.has_offline
        await sender.send(b"live", to_user_id=ben.user_id)
        await ben.mailbox(501)
        first = await phone.pull(auth.after_seq, auth.sync_to_seq, 100)
        second = await phone.pull(first.covered_through_seq, auth.sync_to_seq, 100)
        assert not phone.pushed(), "a push came through the login barrier"
    saved = second.cursor
    assert saved is not None
    async with ben.wire() as phone:
        again = await phone.auth(saved)
        assert again.after_seq == second.covered_through_seq
        rest = await pull_range(phone, again.after_seq, again.sync_to_seq, 100)
        await phone.sync_complete(again.sync_to_seq)
    assert not rest.problems
    got = [*first.entries, *second.entries, *rest.events]
    assert len({event.message.message_id for event in got}) == len(got) == 501
    assert bodies(got)[-1] == b"live"
    for covered, held in rest.cursors[::2]:
        async with ben.wire() as phone:
            assert (await phone.auth(held)).after_seq == covered


async def test_A4_what_is_before_auth_is_pulled_what_is_after_is_pushed(cast: Cast) -> None:
    """One message just before AUTH, one between AUTH_OK and SYNC_COMPLETE."""
    ann, ben = cast.people("ann", "ben")
    cursor = await ben.cursor()
    sender = await ann.online()
    await sender.send(b"before", to_user_id=ben.user_id)
    await ben.mailbox(1)
    async with ben.wire() as phone:
        auth = await phone.auth(cursor)
        await sender.send(b"after", to_user_id=ben.user_id)
        await ben.mailbox(2)
        pulled = await pull_range(phone, auth.after_seq, auth.sync_to_seq)
        assert bodies(pulled.events) == [b"before"]
        assert not phone.pushed()
        await phone.sync_complete(auth.sync_to_seq)
        await eventually(phone.pushed, 20, "the push")
        assert bodies(phone.pushed()) == [b"after"]
        assert all(event.mailbox_seq > auth.sync_to_seq for event in phone.pushed())


async def test_A4_signing_on_again_and_again_while_messages_stream_in(cast: Cast) -> None:
    """Whatever the moment of AUTH: pull and push share nothing and together leave no hole."""
    ann, ben = cast.people("ann", "ben")
    cursor: str | None = await ben.cursor()
    sender = await ann.online(per_conversation_inflight=16)
    receipts: list[SendReceipt] = []
    streaming = True

    async def stream() -> None:
        for number in itertools.count():
            if not streaming:
                return
            receipts.append(await sender.send(f"m{number}".encode(), to_user_id=ben.user_id))

    streams = [asyncio.create_task(stream()) for _ in range(3)]
    got: list[Event] = []
    for _ in range(12):
        async with ben.wire() as phone:
            cursor = await _one_session(phone, cursor, got)
    streaming = False
    await asyncio.gather(*streams)
    whole = await ben.mailbox(len(receipts))
    last = got[-1].mailbox_seq
    assert [event.event_id for event in got] == [one.event_id for one in whole if one.mailbox_seq <= last]


async def _one_session(phone: WireClient, cursor: str | None, got: list[Event], pushes: int = 5) -> str:
    """Sync, take a few pushes, and pull over them once: they come again, and the cursor covers them."""
    auth = await phone.auth(cursor)
    pulled = await pull_range(phone, auth.after_seq, auth.sync_to_seq, 5)
    ready = await phone.sync_complete(auth.sync_to_seq)
    await eventually(lambda: len(phone.pushed()) >= pushes, 20, f"{pushes} pushes")
    pushed = phone.pushed()
    assert all(event.mailbox_seq <= auth.sync_to_seq for event in pulled.events)
    assert all(event.mailbox_seq > auth.sync_to_seq for event in pushed)
    top = pushed[-1].mailbox_seq
    again = await pull_range(phone, auth.sync_to_seq, top)
    assert [one.event_id for one in again.events] == [one.event_id for one in pushed], "a hole in the push"
    got.extend(pulled.events)
    got.extend(again.events)
    return again.cursors[-1][1] or ready.cursor


WINDOW = 90  # messages, 30 a second
CUTS = (8, 16, 24, 36, 48, 60, 72)  # after how many of them


async def _arriving(cast: Cast, ann: Person, ben: Person, receipts: list[SendReceipt]) -> None:
    """30 messages a second from ann to ben."""
    sender = await ann.online()
    for number in range(WINDOW):
        receipts.append(await sender.send(f"m{number}".encode(), to_user_id=ben.user_id))
        await asyncio.sleep(1 / 30)


async def test_A14_what_comes_while_a_client_resumes_is_shown_once(cast: Cast) -> None:
    """Its link is cut again and again, and it resumes within the lease of its former session."""
    ann, ben = cast.people("ann", "ben")
    proxy = await cast.proxy()
    await ben.online(url=proxy.url)
    receipts: list[SendReceipt] = []
    arriving = cast.background(_arriving(cast, ann, ben, receipts))
    for count in CUTS:
        await eventually(lambda count=count: len(receipts) >= count, 60, f"{count} messages")  # type: ignore[misc]
        await proxy.cut()
    await arriving
    await eventually(lambda: len(ben.shown) >= WINDOW, 60, "everything to be shown")
    assert [one.message.message_id for one in ben.shown] == [one.message_id for one in receipts]
    assert len(proxy.passages) > 1


async def test_A14_a_device_comes_back_while_its_old_session_is_still_there(cast: Cast) -> None:
    """The old socket stays open, unread: of each session pull and push share nothing and leave no hole."""
    ann, ben = cast.people("ann", "ben")
    cursor: str | None = await ben.cursor()
    receipts: list[SendReceipt] = []
    arriving = cast.background(_arriving(cast, ann, ben, receipts))
    got: list[Event] = []
    async with contextlib.AsyncExitStack() as sockets:
        while len(receipts) < CUTS[-1]:
            phone = await sockets.enter_async_context(ben.wire())
            cursor = await _one_session(phone, cursor, got, pushes=1)
        await arriving
        auth = await (phone := await sockets.enter_async_context(ben.wire())).auth(cursor)
        got += (await pull_range(phone, auth.after_seq, auth.sync_to_seq)).events
    whole = await ben.mailbox(WINDOW)
    assert [one.message.message_id for one in whole] == [one.message_id for one in receipts]
    last = got[-1].mailbox_seq
    assert [one.event_id for one in got] == [one.event_id for one in whole if one.mailbox_seq <= last]
    assert len(got) >= CUTS[-1]


class DropPush:
    """A rule that loses the next PUSH_EVENTS frames."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.dropped: list[Event] = []

    def __call__(self, _: Passage, frame: Frame) -> int:
        if isinstance(frame, PushEvents) and self.left > 0:
            self.left -= 1
            self.dropped.extend(frame.events)
            return 0
        return 1


async def _through_a_proxy(cast: Cast, ben: Person) -> tuple[DropPush, Person]:
    proxy = await cast.proxy()
    rule = DropPush(0)
    proxy.to_client = rule
    await ben.online(url=proxy.url)
    return rule, ben


async def test_A5_a_lost_push_is_found_by_the_next_one_and_repaired(cast: Cast) -> None:
    """The first of two messages is lost on the socket: the second waits for it, both show in order."""
    ann, ben = cast.people("ann", "ben")
    sender = await ann.online()
    rule, _ = await _through_a_proxy(cast, ben)
    await sender.send(b"zero", to_user_id=ben.user_id)
    await eventually(lambda: len(ben.shown) == 1, 20, "the first push")
    rule.left = 1
    await sender.send(b"one", to_user_id=ben.user_id)
    await eventually(lambda: rule.dropped, 20, "the push that is lost")
    await sender.send(b"two", to_user_id=ben.user_id)
    await eventually(lambda: len(ben.shown) == 3, 20, "the repair")
    assert bodies(ben.shown) == [b"zero", b"one", b"two"]


async def test_A5_a_lost_last_push_is_found_by_the_next_checkpoint(cast: Cast) -> None:
    """Nothing follows the lost message: the pull of a checkpoint brings it."""
    ann, ben = cast.people("ann", "ben")
    sender = await ann.online()
    rule, _ = await _through_a_proxy(cast, ben)
    rule.left = 1
    await sender.send(b"last", to_user_id=ben.user_id)
    await eventually(lambda: rule.dropped, 20, "the push that is lost")
    assert not ben.shown
    await cast.clients[-1].checkpoint()
    assert bodies(ben.shown) == [b"last"]


async def test_A13_written_to_a_dead_socket_is_not_delivered(cast: Cast) -> None:
    """The receiver's link goes dark without a reset: sends are acknowledged, all 50 come by pull later."""
    ann, ben = cast.people("ann", "ben")
    cursor = await ben.cursor()
    sender = await ann.online()
    proxy = await cast.proxy()
    async with ben.wire(url=proxy.url) as phone:
        await phone.go_online(cursor)
        proxy.blackhole(True)
        receipts = [await sender.send(f"m{n}".encode(), to_user_id=ben.user_id) for n in range(50)]
        assert [receipt.conversation_seq for receipt in receipts] == list(range(1, 51))
        await ben.mailbox(50)
        assert not phone.pushed()
    async with ben.wire() as phone:
        auth = await phone.auth(cursor)
        pulled = await pull_range(phone, auth.after_seq, auth.sync_to_seq)
        await phone.sync_complete(auth.sync_to_seq)
    assert [event.message.message_id for event in pulled.events] == [one.message_id for one in receipts]
