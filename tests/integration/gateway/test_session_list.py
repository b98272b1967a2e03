"""The session list on real sockets, both encodings: pages, marks, deltas to other devices, receipts, totals.

Scenarios F13 F14 F17 C17; totals of AUTH_OK; deleted messages in history.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.wire import CODECS, JSON, MSGPACK, Codec
from qim_streams.wire.frames import Error, HistoryBreak, HistoryPage, Ping, Pong, PullHistory
from qim_streams.wire.frames_group import GroupCreate, GroupState
from qim_streams.wire.frames_sessions import (
    ClearConversation,
    DeleteMessages,
    GetReadCount,
    GetSessionTotals,
    HideConversation,
    MarkRead,
    PullSessionList,
    ReadCount,
    ReadReceipt,
    SessionDelta,
    SessionList,
    SessionState,
    SessionTotals,
    SetMute,
    SetPin,
    Typing,
    UserTyping,
)
from tests.support.gateway_world import GatewayWorld, WireClient
from tests.support.session_world import SessionWorld

BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.subprotocol)
ALWAYS = ((0, None),)


@pytest.fixture
async def world() -> AsyncIterator[GatewayWorld]:
    async with GatewayWorld().running() as running:
        yield running


def sessions_of(world: GatewayWorld, *names: str) -> SessionWorld:
    """The session list behind the gateway; its users have the gateway's ordinals."""
    for name in names:
        world.session_world.user(name, world.address(name).ordinal)
    return world.session_world


async def chat_with_20(world: GatewayWorld) -> tuple[SessionWorld, str]:
    """A direct chat in which ben has said 20 messages."""
    lists = sessions_of(world, "ann", "ben")
    chat = lists.direct("ann", "ben")
    for name in ("ann", "ben"):
        await lists.saw(name, chat, 5)
    lists.say(chat, "ben", 20, body=b"hello")
    return lists, chat


@BOTH
async def test_a_page_over_the_wire(world: GatewayWorld, codec: Codec) -> None:
    _, chat = await chat_with_20(world)
    async with await WireClient.connect(world.url, codec) as ann:
        auth = await ann.sign_on("ann")
        assert (auth.total_unread, auth.total_mention, auth.muted_unread) == (20, 0, 0)
        assert auth.projection_complete
        page = await ann.call(PullSessionList(5))
        assert isinstance(page, SessionList)
        (row,) = page.rows
        assert (row.conversation_id, row.kind, row.peer_user_id) == (chat, "direct", "ben")
        assert (row.unread, row.unread_exact, row.latest_seq, row.read_seq) == (20, True, 20, 0)
        assert row.last is not None
        assert (row.last.preview, row.last.sender_id) == (b"hello", "ben")
        assert (page.rid, page.next_cursor, page.projection_complete) == (5, None, True)


@BOTH
async def test_f14_marks_reach_the_other_devices_and_the_peer(world: GatewayWorld, codec: Codec) -> None:
    """F13 F14: 10 of 20, then 4: 10. The reader's other device hears once, the peer gets a receipt (F7)."""
    _, chat = await chat_with_20(world)
    async with (
        await WireClient.connect(world.url, codec) as phone,
        await WireClient.connect(world.url, JSON if codec.binary else MSGPACK) as laptop,
        await WireClient.connect(world.url, codec) as ben,
    ):
        await phone.sign_on("ann", device="phone")
        await laptop.sign_on("ann", device="laptop")
        await ben.sign_on("ben")
        first = await phone.call(MarkRead(3, chat, 10))
        assert isinstance(first, SessionState)
        assert (first.rid, first.row.read_seq, first.row.unread) == (3, 10, 10)
        late = await phone.call(MarkRead(4, chat, 4))
        assert (late.row.read_seq, late.row.unread) == (10, 10)
        delta = await laptop.expect(SessionDelta)
        assert delta.version > 0
        assert delta.projection_mailbox_seq == -1
        assert [(row.conversation_id, row.read_seq, row.unread) for row in delta.rows] == [(chat, 10, 10)]
        assert await ben.expect(ReadReceipt) == ReadReceipt(chat, "ann", 10)
        (row,) = (await ben.call(PullSessionList(9))).rows
        assert (row.peer_read_seq, row.unread) == (10, 0)
        beyond = await laptop.call(MarkRead(5, chat, 10_000))
        assert beyond.row.read_seq == 20, "at most what was said"


@BOTH
async def test_mute_pin_hide_clear(world: GatewayWorld, codec: Codec) -> None:
    lists, chat = await chat_with_20(world)
    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann")
        assert (await ann.call(SetMute(1, chat, True))).row.muted
        assert (await ann.call(SetPin(2, chat, True))).row.pinned_at > 0
        async with await WireClient.connect(world.url, codec) as again:
            auth = await again.sign_on("ann", device="tablet")
            assert (auth.total_unread, auth.muted_unread) == (20, 20)
        assert (await ann.call(HideConversation(3, chat))).row.hidden
        assert (await ann.call(PullSessionList(4))).rows == []
        lists.say(chat, "ben")
        (row,) = (await ann.call(PullSessionList(5, pinned_first=True, limit=1))).rows
        assert (row.unread, row.hidden) == (21, False)
        cleared = await ann.call(ClearConversation(6, chat, None, True))
        assert (cleared.row.unread, cleared.row.deleted_to_seq, cleared.row.last) == (0, 21, None)
        assert (await ann.call(PullSessionList(7, only="unread"))).rows == []


@BOTH
async def test_history_leaves_out_what_was_deleted(world: GatewayWorld, codec: Codec) -> None:
    """Floor and single deletes are breaks with the reason `deleted`; the page's edges stay exact."""
    _, chat = await chat_with_20(world)
    async with (
        await WireClient.connect(world.url, codec) as ann,
        await WireClient.connect(world.url, codec) as ben,
    ):
        await ann.sign_on("ann")
        await ben.sign_on("ben")
        await ann.call(ClearConversation(1, chat, 12))
        await ann.call(DeleteMessages(2, chat, [14, 15, 18]))
        page = await ann.call(PullHistory(3, chat, "newer"))
        assert isinstance(page, HistoryPage)
        assert [message.conversation_seq for message in page.messages] == [13, 16, 17, 19, 20]
        assert page.breaks == [
            HistoryBreak(1, 12, "deleted"),
            HistoryBreak(14, 15, "deleted"),
            HistoryBreak(18, 18, "deleted"),
        ]
        assert (page.next_anchor, page.has_more, page.latest_seq) == (20, False, 20)
        small = await ann.call(PullHistory(4, chat, "older", 20, 3))
        assert [message.conversation_seq for message in small.messages] == [16, 17, 19]
        rest = await ann.call(PullHistory(5, chat, "older", small.next_anchor))
        assert [message.conversation_seq for message in rest.messages] == [13]
        assert rest.next_anchor == 1
        whole = await ben.call(PullHistory(6, chat, "newer"))
        assert (len(whole.messages), whole.breaks) == (20, [])


async def test_refusals_name_the_request(world: GatewayWorld) -> None:
    lists, chat = await chat_with_20(world)
    async with await WireClient.connect(world.url) as eve:
        await eve.sign_on("eve")
        for number, (frame, name) in enumerate(
            [
                (MarkRead(1, chat, 3), "NOT_MEMBER"),
                (SetMute(1, "nowhere", True), "NO_CONVERSATION"),
                (PullSessionList(1, "nonsense"), "FIELD_INVALID"),
            ]
        ):
            answer = await eve.call(frame._replace(rid=number))
            assert isinstance(answer, Error), answer
            assert (answer.name, answer.rid, answer.temporary) == (name, number, False)
        lists.states.unavailable = True
        answer = await eve.call(PullSessionList(8))
        assert (answer.name, answer.temporary, answer.rid) == ("STORE_UNAVAILABLE", True, 8)


async def test_a_sign_on_waits_for_no_totals(world: GatewayWorld) -> None:
    """A store that is away or slow: the totals are not complete, and the device is let in."""
    lists, _ = await chat_with_20(world)
    lists.states.unavailable = True
    async with await WireClient.connect(world.url) as ann:
        auth = await ann.sign_on("ann")
        assert (auth.total_unread, auth.projection_complete) == (0, False)


async def test_a_storm_of_sign_ons_counts_for_some(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the rate a device hears that its totals are not complete; a second later they are."""
    lists, _ = await chat_with_20(world)
    monkeypatch.setattr("qim_streams.gateway.session_totals.PER_S_MAX", 2)
    seen = []
    lists.now_ms = 50_000
    for number in range(4):
        async with await WireClient.connect(world.url) as ann:
            auth = await ann.sign_on("ann", device=f"d{number}")
            seen.append((auth.total_unread, auth.projection_complete))
        if number == 2:
            lists.now_ms += 1_000
    assert seen == [(20, True), (20, True), (0, False), (20, True)]


async def test_new_members_have_the_group_before_its_first_message(world: GatewayWorld) -> None:
    lists = sessions_of(world, "ann", "ben")
    lists.past.group({"ann": ALWAYS, "ben": ALWAYS}, chat="g.new")
    async with await WireClient.connect(world.url) as ann:
        await ann.sign_on("ann")
        assert isinstance(await ann.call(GroupCreate(1, ["ben"])), GroupState)
        ben = lists.user("ben")
        assert lists.projection.rows.get((ben.tenant_id, ben.ordinal)), "before the answer"
        (row,) = (await lists.page("ben")).rows
        assert (row.view.conversation_id, row.unread.messages, row.last) == ("g.new", 0, None)


async def test_c17_a_storm_of_marks_is_folded(world: GatewayWorld) -> None:
    """C17 F19: hundreds of marks from two devices, out of order: the highest stands, few writes, one end."""
    lists, chat = await chat_with_20(world)
    async with (
        await WireClient.connect(world.url) as phone,
        await WireClient.connect(world.url) as laptop,
    ):
        await phone.sign_on("ann", device="phone")
        await laptop.sign_on("ann", device="laptop")
        marks = [(number * 7) % 20 for number in range(200)]
        for number, seq in enumerate(marks):
            await (phone, laptop)[number % 2].send(MarkRead(number, chat, seq))
        answers: list[SessionState] = []
        for client in (phone, laptop):
            while len([one for one in answers if one.rid % 2 == (client is laptop)]) < 100:
                frame = await client.receive()
                if isinstance(frame, SessionState):
                    answers.append(frame)
        assert sorted(one.rid for one in answers) == list(range(200)), "one answer each"
        assert max(one.row.read_seq for one in answers) == max(marks) == 19
        assert (await lists.row("ann", chat)).view.state.read_seq == 19
        assert len(lists.signals.told) <= 2 * 20, "each told mark moved the position"


async def test_an_error_of_the_store_reaches_every_caller(world: GatewayWorld) -> None:
    lists, chat = await chat_with_20(world)
    lists.states.unavailable = True
    actor = lists.actor("ann")
    results = await asyncio.gather(
        *(lists.actions.mark_read(actor, chat, seq) for seq in (5, 9, 7)), return_exceptions=True
    )
    assert [type(one) for one in results] == [StoreUnavailable] * 3
    lists.states.unavailable = False
    changed = await asyncio.gather(*(lists.actions.mark_read(actor, chat, seq) for seq in (5, 9, 7)))
    assert {one.row.view.state.read_seq for one in changed} == {9}


# -- receipts and typing


async def group_of(world: GatewayWorld, size: int) -> SessionWorld:
    """A group `team` of ann, ben and others, in which ann has said 9 messages."""
    names = ["ann", "ben", *(f"u{number:03}" for number in range(size - 2))]
    lists = sessions_of(world, *names)
    lists.past.group(dict.fromkeys(names, ALWAYS), chat="team")
    members = lists.past.tier.partition(0).members["acme", "team"]
    for name in names:
        members[name] = replace(members[name], ordinal=lists.user(name).ordinal)
    lists.say("team", "ann", 9)
    return lists


@BOTH
async def test_who_has_read(world: GatewayWorld, codec: Codec) -> None:
    """READ_COUNT: the others who have read up to a message, by name and as a count; a stranger is refused."""
    lists = await group_of(world, 5)
    await lists.actions.mark_read(lists.actor("ben"), "team", 9)
    await lists.actions.mark_read(lists.actor("u001"), "team", 4)
    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann")
        assert await ann.call(GetReadCount(1, "team", 9)) == ReadCount(1, "team", 9, 1, 4, True, ["ben"])
        assert await ann.call(GetReadCount(2, "team", 4)) == ReadCount(
            2, "team", 4, 2, 4, True, ["ben", "u001"]
        )
        assert (await ann.call(GetReadCount(3, "nowhere", 4))).name == "NO_CONVERSATION"
    async with await WireClient.connect(world.url, codec) as eve:
        await eve.sign_on("eve")
        assert (await eve.call(GetReadCount(1, "team", 9))).name == "NOT_MEMBER"


async def test_a_large_group_is_counted_in_part(world: GatewayWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = await group_of(world, 30)
    monkeypatch.setattr("qim_streams.sessions.receipts.PAGE", 8)
    monkeypatch.setattr("qim_streams.limits.READERS_COUNTED_MAX", 16)
    monkeypatch.setattr("qim_streams.limits.READERS_SHOWN_MAX", 3)
    for number in range(10):
        await lists.actions.mark_read(lists.actor(f"u{number:03}"), "team", 9)
    async with await WireClient.connect(world.url) as ann:
        await ann.sign_on("ann")
        answer = await ann.call(GetReadCount(1, "team", 9))
        assert (answer.read, answer.others, answer.exact) == (10, 23, False)
        assert answer.user_ids == ["u000", "u001", "u002"]


@BOTH
async def test_typing_is_told_once_in_a_while(world: GatewayWorld, codec: Codec) -> None:
    """USER_TYPING to the others, with a rate; nothing to strangers, in large groups, or into mailboxes."""
    lists = await group_of(world, 3)
    async with (
        await WireClient.connect(world.url, codec) as ann,
        await WireClient.connect(world.url, codec) as ben,
        await WireClient.connect(world.url, codec) as eve,
    ):
        for client, name in ((ann, "ann"), (ben, "ben"), (eve, "eve")):
            await client.sign_on(name)
        for number in range(5):
            await ann.send(Typing(number, "team"))
        await eve.send(Typing(1, "team"))
        assert await ben.expect(UserTyping) == UserTyping("team", "ann")
        assert [type(await client.call(Ping(9))) for client in (ann, ben, eve)] == [Pong] * 3, (
            "and nothing else"
        )
        lists.now_ms += 2_000
        await ann.send(Typing(6, "team"))
        assert await ben.expect(UserTyping) == UserTyping("team", "ann")
        assert not world.written


async def test_nobody_types_in_a_large_group(world: GatewayWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = await group_of(world, 12)
    monkeypatch.setattr("qim_streams.limits.TYPING_MEMBERS_MAX", 11)
    async with await WireClient.connect(world.url) as ann:
        await ann.sign_on("ann")
        await ann.send(Typing(1, "team"))
        await ann.call(Ping(2))
        assert lists.signals.told == []


@BOTH
async def test_all_devices_hear_what_is_unread_in_all(world: GatewayWorld, codec: Codec) -> None:
    """Reading, muting, deleting, recalls: absolute totals with a position; who asks hears the same."""
    lists, chat = await chat_with_20(world)
    lists.past.group({"ann": ALWAYS, "ben": ALWAYS}, chat="team")
    await lists.saw("ann", "team", 6)
    lists.say("team", "ben", 3)
    async with (
        await WireClient.connect(world.url, codec) as phone,
        await WireClient.connect(world.url, JSON if codec.binary else MSGPACK) as laptop,
    ):
        await phone.sign_on("ann", device="phone")
        auth = await laptop.sign_on("ann", device="laptop")
        assert (auth.total_unread, auth.muted_unread) == (23, 0)
        orders = []
        for number, (frame, wanted) in enumerate(
            [
                (MarkRead(0, chat, 15), (8, 0, 8)),
                (SetMute(0, "team", True), (8, 3, 5)),
                (DeleteMessages(0, chat, [16, 17]), (6, 3, 3)),
                (ClearConversation(0, chat), (3, 3, 0)),
                (SetMute(0, "team", False), (3, 0, 3)),
            ]
        ):
            await phone.call(frame._replace(rid=number))
            await laptop.expect(SessionDelta)
            heard = [await device.expect(SessionTotals) for device in (phone, laptop)]
            assert heard[0] == heard[1]
            totals = heard[0]
            assert (totals.total_unread, totals.muted_unread, totals.badge) == wanted
            assert (totals.rid, totals.complete) == (None, True)
            orders.append((totals.projection_mailbox_seq, totals.version))
        assert orders == sorted(set(orders)), "each is above the one before"
        lists.recall("team", 2, "ben")
        answer = await laptop.call(GetSessionTotals(77))
        assert isinstance(answer, SessionTotals)
        assert (answer.rid, answer.badge, answer.version) == (77, 2, orders[-1][1])


async def test_a_storm_of_marks_is_counted_a_few_times(world: GatewayWorld) -> None:
    """F14: twenty marks of one user; the last totals are right, and there are few of them."""
    _, chat = await chat_with_20(world)
    async with (
        await WireClient.connect(world.url) as phone,
        await WireClient.connect(world.url) as laptop,
    ):
        await phone.sign_on("ann", device="phone")
        await laptop.sign_on("ann", device="laptop")
        for seq in range(1, 21):
            await phone.call(MarkRead(seq, chat, seq))
        frames = []
        while not frames or frames[-1].badge:
            frame = await laptop.receive()
            if isinstance(frame, SessionTotals):
                frames.append(frame)
        assert frames[-1].badge == 0
        assert len(frames) < 20
