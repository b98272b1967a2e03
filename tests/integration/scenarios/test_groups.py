"""Order, own messages and membership over a real stack: A8, D11, F1, G1, G2, G4. Spec: §4, §5, §9."""

import asyncio

import pytest

from qim_streams.errors import AdmissionRefused
from qim_streams.records import FLAG_COUNTS_UNREAD
from qim_streams.wire.frames import Event
from tests.integration.scenarios.conftest import Cast
from tests.support.waiting import eventually
from tests.support.wire_client import pull_range

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MESSAGES = 200  # of D11: 4 s at 50 a second


def seqs(events: list[Event], conversation: str) -> list[int]:
    return [one.message.conversation_seq for one in events if one.message.conversation_id == conversation]


async def test_D11_three_devices_get_one_order(cast: Cast) -> None:
    """Two people talk at once, 50 messages a second: the frames of three devices have the same order."""
    ann, ben, cid, dan, eve = cast.people("ann", "ben", "cid", "dan", "eve")
    group = cast.group()
    talkers = [await one.online(per_conversation_inflight=8) for one in (ann, ben)]
    listeners = [cid, dan, eve]
    await talkers[0].groups.create([one.user_id for one in (ben, *listeners)], conversation_id=group)
    async with cid.wire() as one, dan.wire() as two, eve.wire() as three:
        sockets = (one, two, three)
        for socket in sockets:
            await socket.go_online()
        loop, sends = asyncio.get_running_loop(), []
        began_s = loop.time()
        for number in range(MESSAGES):
            await asyncio.sleep(max(0.0, began_s + number / 50 - loop.time()))
            talker = talkers[number % 2]
            sends.append(cast.background(talker.send(b"m%d" % number, conversation_id=group)))
        receipts = await asyncio.gather(*sends)
        for socket in sockets:
            await eventually(lambda at=socket: len(at.pushed()) >= MESSAGES, 30, "all pushes")
        orders = [[event.message.message_id for event in socket.pushed()] for socket in sockets]
    by_seq = [one.message_id for one in sorted(receipts, key=lambda one: one.conversation_seq)]
    assert orders == [by_seq] * 3


async def test_F1_own_messages_are_not_unread(cast: Cast) -> None:
    """Ann sends 3 and is gone, Ben sends 2: two unread, on each of her devices."""
    ann, ben = cast.people("ann", "ben")
    phone_cursor, tablet_cursor = await ann.cursor("phone"), await ann.cursor("tablet")
    async with ann.wire("phone") as phone:
        await phone.go_online(phone_cursor)
        for number in range(3):
            await phone.say(f"a{number}", b"from ann", to=ben.user_id)
    async with ben.wire() as other:
        await other.go_online()
        for number in range(2):
            await other.say(f"b{number}", b"from ben", to=ann.user_id)
    await ann.mailbox(5)
    for device, cursor in (("phone", phone_cursor), ("tablet", tablet_cursor)):
        async with ann.wire(device) as again:
            auth = await again.auth(cursor)
            pulled = await pull_range(again, auth.after_seq, auth.sync_to_seq)
        unread = [one for one in pulled.events if one.flags & FLAG_COUNTS_UNREAD]
        assert [one.message.body for one in unread] == [b"from ben"] * 2
        assert len(pulled.events) == 5
        if auth.projection_complete:
            assert auth.total_unread == 2


async def test_A8_who_is_added_while_offline_finds_group_and_messages(cast: Cast) -> None:
    """Added while away, 5 messages: 5 entries and the group in the list, without another send."""
    ann, ben = cast.people("ann", "ben")
    group = cast.group()
    cursor = await ben.cursor()
    owner = await ann.online()
    await owner.groups.create([], conversation_id=group)
    await owner.send(b"before him", conversation_id=group)
    await owner.groups.add(group, [ben.user_id])
    for number in range(5):
        await owner.send(b"%d" % number, conversation_id=group)
    assert seqs(await ben.mailbox(5), group) == [2, 3, 4, 5, 6]
    async with ben.wire() as phone:
        auth = await phone.auth(cursor)
        pulled = await pull_range(phone, auth.after_seq, auth.sync_to_seq)
        assert [event.message.body for event in pulled.events] == [b"%d" % n for n in range(5)]
        await phone.sync_complete(auth.sync_to_seq)
    guest = await ben.online("laptop")

    async def listed() -> bool:
        rows = {row.conversation_id: row for row in await guest.sessions.load()}
        return group in rows and (rows[group].unread, rows[group].latest_seq) == (5, 6)

    await eventually(listed, 20, "the row of the group with 5 unread")


async def test_G1_who_left_and_came_back_sees_the_second_stay(cast: Cast) -> None:
    """1 to 5 are his, 6 to 10 were said without him, from 11 on they are his again, his own too."""
    ann, ben = cast.people("ann", "ben")
    group = cast.group()
    owner, guest = await ann.online(), await ben.online()
    await owner.groups.create([ben.user_id], conversation_id=group, join_policy="open")
    for _ in range(5):
        await owner.send(b"with him", conversation_id=group)
    await guest.groups.leave(group)
    for _ in range(5):
        await owner.send(b"without him", conversation_id=group)
    with pytest.raises(AdmissionRefused, match="NOT_MEMBER"):
        await guest.send(b"too late", conversation_id=group)
    await guest.groups.join(group)
    own = await guest.send(b"back", conversation_id=group)
    assert own.conversation_seq == 11
    await owner.send(b"welcome", conversation_id=group)
    assert seqs(await ben.mailbox(7), group) == [1, 2, 3, 4, 5, 11, 12]
    await eventually(lambda: len(seqs(ben.shown, group)) >= 7, 20, "his live events")
    assert seqs(ben.shown, group) == [1, 2, 3, 4, 5, 11, 12]


@pytest.mark.parametrize("history_policy", ["joined", "all"])
@pytest.mark.parametrize("how", ["kick", "quit"])
async def test_G2_re_invited_members_get_what_is_said_while_they_are_in(
    cast: Cast, history_policy: str, how: str
) -> None:
    """The matrix of policies and ways out: a mailbox holds the stays of its user and nothing between."""
    ann, ben, cid = cast.people("ann", "ben", "cid")
    group = cast.group()
    owner, guest = await ann.online(), await ben.online()
    await owner.groups.create([cid.user_id], conversation_id=group, history_policy=history_policy)
    await owner.send(b"1: before him", conversation_id=group)
    state = await owner.groups.add(group, [ben.user_id])
    assert state.history_policy == history_policy
    await owner.send(b"2: with him", conversation_id=group)
    if how == "kick":
        await owner.groups.remove(group, [ben.user_id])
    else:
        await guest.groups.leave(group)
    await owner.send(b"3: without him", conversation_id=group)
    await owner.groups.add(group, [ben.user_id])
    await owner.send(b"4: with him again", conversation_id=group)
    assert seqs(await ben.mailbox(2), group) == [2, 4]
    assert seqs(await cid.mailbox(4), group) == [1, 2, 3, 4]
    rows = {row.user_id for row in await owner.groups.members(group)}
    assert rows == {ann.user_id, ben.user_id, cid.user_id}


async def test_G4_a_dismissed_group_ends_in_the_middle_of_a_stream(cast: Cast) -> None:
    """Dismissed while two people talk, 100 messages a second: every send has its receipt or DISMISSED, all
    numbers are below the end, entries are exactly the receipts, and nothing can be said any more."""
    ann, ben, cid = cast.people("ann", "ben", "cid")
    group = cast.group()
    talkers = [await one.online(per_conversation_inflight=16, inflight_max=64) for one in (ann, ben)]
    await talkers[0].groups.create([ben.user_id, cid.user_id], conversation_id=group)

    async def say(number: int) -> int | str:
        try:
            receipt = await talkers[number % 2].send(b"m%d" % number, conversation_id=group)
        except AdmissionRefused as refusal:
            return refusal.code
        return receipt.conversation_seq

    loop, sends = asyncio.get_running_loop(), []
    began_s = loop.time()
    for number in range(MESSAGES):
        await asyncio.sleep(max(0.0, began_s + number / 100 - loop.time()))
        sends.append(cast.background(say(number)))
        if number == MESSAGES // 2:
            await talkers[0].groups.dismiss(group)
    said = await asyncio.gather(*sends)
    taken = sorted(one for one in said if isinstance(one, int))
    assert {one for one in said if isinstance(one, str)} == {"DISMISSED"}
    assert taken == list(range(1, len(taken) + 1))
    assert seqs(await cid.mailbox(len(taken)), group) == taken
    assert await say(0) == "DISMISSED"
    assert seqs(await cid.mailbox(len(taken)), group) == taken
