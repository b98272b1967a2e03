"""The session list of users over stores in memory: unread by definition, order, filters, pages, totals."""

import asyncio
from typing import Any

import pytest

from qim_streams.archive.ports import ArchivedMessage
from qim_streams.errors import AdmissionRefused
from qim_streams.mentions import Mentions
from qim_streams.placement import mailbox_shard
from qim_streams.records import decode_message
from qim_streams.sessions import badges
from qim_streams.sessions.badge_ports import BadgeQuery
from qim_streams.sessions.badges import Badges
from qim_streams.sessions.positions import Positions
from qim_streams.sessions.projection_records import Checkpoint
from qim_streams.sessions.restoring import RestoredStates
from qim_streams.sessions.rows import Rows
from qim_streams.sessions.rules import Totals
from qim_streams.sessions.session_rebuild import SessionRebuild
from qim_streams.sessions.tails import Tails
from qim_streams.testing.memory_sessions import MemoryConversationHeads
from tests.support.history_world import TENANT
from tests.support.session_world import SHARDS, NoActivity, SessionWorld

ALWAYS = ((0, None),)


@pytest.fixture
def world() -> SessionWorld:
    return SessionWorld()


async def chat_of(world: SessionWorld, *members: str, name: str = "team", activity: int = 5) -> str:
    """A group in which all have been from the beginning, in everybody's list."""
    world.past.group(dict.fromkeys(members, ALWAYS), chat=name)
    for member in members:
        await world.saw(member, name, activity)
    return name


async def test_f1_own_messages_never_count(world: SessionWorld) -> None:
    """F1: A sends 3, B sends 2, A logs in: 2, on every device."""
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ann", 3)
    world.say(chat, "ben", 2)
    assert await world.unread("ann", chat) == (2, True)
    assert await world.unread("ben", chat) == (0, True), "who answers has read"


async def test_f2_what_was_read_stays_read(world: SessionWorld) -> None:
    """F2: read all, then the peer sends: only the new ones count."""
    chat = await chat_of(world, "ann", "ben")
    await world.actions.mark_read(world.actor("ann"), chat, world.say(chat, "ben", 9))
    world.say(chat, "ben", 2)
    assert await world.unread("ann", chat) == (2, True)


async def test_f4_a_deleted_conversation_is_nowhere(world: SessionWorld) -> None:
    """F4: deleted, with the unread filter and in the totals: nothing; the next message brings it back."""
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", 4)
    await world.actions.clear(world.actor("ann"), chat, None, True)
    assert (await world.page("ann", only="unread")).rows == []
    assert (await world.page("ann")).rows == []
    assert len((await world.page("ann", only="every")).rows) == 1, "for rebuilds"
    actor = world.actor("ann")
    assert (await world.badges.totals(actor.user, actor.shard)).totals == Totals(0, 0, 0, True)
    world.say(chat, "ben")
    assert await world.unread("ann", chat) == (1, True)


async def test_f7_who_reads_changes_his_own_list_only(world: SessionWorld) -> None:
    """F7: the peer reading my message does not lower my count."""
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", 3)
    seq = world.say(chat, "cleo")
    await world.actions.mark_read(world.actor("ben"), chat, seq)
    assert await world.unread("ann", chat) == (4, True)
    assert {actor.user.user_id for actor, _ in world.told} == {"ben"}


@pytest.mark.parametrize(
    ("said", "shown"), [(37, (37, True)), (200, (200, True)), (201, (200, False)), (250, (200, False))]
)
async def test_f8_counts_are_exact_to_200(world: SessionWorld, said: int, shown: tuple[int, bool]) -> None:
    """F8: the count is not the length of a page; above 200 it says that it is not exact."""
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", said)
    assert await world.unread("ann", chat) == shown


async def test_f10_a_new_conversation_counts_from_the_join(world: SessionWorld) -> None:
    """F10: joined at 30 while offline, 12 messages since: 12, whatever was said before."""
    world.past.group({"ben": ALWAYS, "ann": ((30, None),)}, policy="all", chat="team")
    await world.saw("ann", "team", 5)
    world.say("team", "ben", 42)
    assert await world.unread("ann", "team") == (12, True)


async def test_f11_recalls_lower_the_count(world: SessionWorld) -> None:
    """F11: 5 sent, 2 recalled before they were read: 3; the recalls have numbers and do not count."""
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", 5)
    world.recall(chat, 2, "ben")
    world.recall(chat, 5, "ben")
    assert await world.unread("ann", chat) == (3, True)
    row = await world.row("ann", chat)
    assert row.last is not None
    assert (row.last.seq, row.last.state, row.last.body) == (5, 2, b""), "shown as recalled"


async def test_f13_a_partial_read_moves_the_base(world: SessionWorld) -> None:
    """F13: read to 10 of 20: 10 are left; a lower mark later is ignored."""
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", 20)
    await world.actions.mark_read(world.actor("ann"), chat, 10)
    assert await world.unread("ann", chat) == (10, True)
    again = await world.actions.mark_read(world.actor("ann"), chat, 4)
    assert not again.effective
    assert again.row.view.state.read_seq == 10


async def test_deleted_messages_do_not_count_and_are_not_shown(world: SessionWorld) -> None:
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", 4)
    await world.actions.delete_messages(world.actor("ann"), chat, [4, 2])
    row = await world.row("ann", chat)
    assert row.unread.messages == 2
    assert row.last is not None
    assert row.last.seq == 3
    assert await world.unread("ben", chat) == (0, True)


async def test_a_former_member_has_nothing_unread(world: SessionWorld) -> None:
    """Whoever has left has no badge for it; what he may still see is shown."""
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", 4)
    world.past.end("ann", 4, chat)
    world.say(chat, "ben", 4)
    row = await world.row("ann", chat)
    assert (row.unread.messages, row.unread.exact, row.view.is_active) == (0, True, False)
    assert row.last is not None
    assert row.last.seq == 4


async def test_f16_a_badge_is_nothing_after_reading_trimming_and_leaving(world: SessionWorld) -> None:
    """F16: read, all gone from the hot tier, left: 0 each time, and the same when it is counted afresh."""
    chat = await chat_of(world, "ann", "ben")
    actor = world.actor("ann")

    async def counted() -> tuple[int, int, bool]:
        """Unread by who kept something and by who knows nothing; whether all of it is counted."""
        afresh = Badges(world.states, world.past.archive, *fresh_reading(world))
        kept = (await world.badges.totals(actor.user, actor.shard)).totals
        (badge,) = await afresh.badges([BadgeQuery(actor.user, actor.shard)])
        return kept.unread, badge.unread, kept.complete and badge.exact

    last = world.say(chat, "ben", 6)
    assert await counted() == (6, 6, True)
    await world.actions.mark_read(actor, chat, last)
    assert await counted() == (0, 0, True)
    await world.past.archive_up_to(last, chat)
    world.past.trim(*range(1, last + 1), chat=chat)
    assert await counted() == (0, 0, True)
    world.say(chat, "ben", 3)
    assert await counted() == (3, 3, True)
    world.past.end("ann", last + 3, chat)
    assert await counted() == (0, 0, True)


def fresh_reading(world: SessionWorld) -> tuple[Rows, Positions]:
    """What another process reads with, over the same stores."""
    heads = MemoryConversationHeads(world.past.tier)
    rows = Rows(heads, Tails(world.past.store, world.past.archive), world.states)
    rebuild = SessionRebuild(
        store=world.projection,
        rebuilds=world.projection,
        mailboxes=world.mailboxes,
        known=NoActivity(),
        shard_of=lambda tenant, user, _: mailbox_shard(tenant, user, SHARDS),
    )
    restored = RestoredStates(world.states, world.past.archive)
    return rows, Positions(world.mailboxes, world.projection, rebuild, restored)


async def test_what_is_not_settled_counts_and_is_not_shown(world: SessionWorld) -> None:
    """Its entry may be there before it is known to be committed: the count, and a mark, must not lag."""
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", 2)
    seq = world.say(chat, "ben", pending=True)
    row = await world.row("ann", chat)
    assert (row.unread.messages, row.view.end) == (3, 2)
    assert row.last is not None
    assert row.last.seq == 2
    changed = await world.actions.mark_read(world.actor("ann"), chat, seq)
    assert (changed.row.view.state.read_seq, changed.row.unread.messages) == (3, 0)


async def test_both_tiers_and_unused_numbers(world: SessionWorld) -> None:
    """The archive has what the hot tier lacks; a number that no message has counts for nothing."""
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", 30)
    world.past.skip(2, chat)
    world.say(chat, "ben", 5)
    rows = world.past.tier.partition(0).records[TENANT, chat]
    batch = [ArchivedMessage(TENANT, chat, seq, row) for seq, row in rows.items()]
    await world.past.archive.store(0, batch, 1)
    world.past.trim(*range(1, 31), 33, chat=chat)
    assert await world.unread("ann", chat) == (35, True)


async def test_a_preview_is_bounded(world: SessionWorld) -> None:
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", body=b"x" * 300)
    last = (await world.row("ann", chat)).last
    assert last is not None
    assert (len(last.body), last.truncated) == (256, True)


async def test_mentions_are_counted_and_listed(world: SessionWorld) -> None:
    """By name or with everybody, among the unread only; a filter finds the conversations."""
    chat = await chat_of(world, "ann", "ben", "cleo")
    await chat_of(world, "ann", name="quiet")
    world.say(chat, "ben", 6)
    rows = world.past.tier.partition(0).records[TENANT, chat]
    for seq, named in {1: Mentions(("ann",)), 3: Mentions(("ann", "cleo")), 5: Mentions((), True)}.items():
        rows[seq] = decode_message(rows[seq])._replace(extra=(0, named.encode())).encode()
    await world.actions.mark_read(world.actor("ann"), chat, 2)
    row = await world.row("ann", chat)
    assert (row.unread.messages, row.unread.mentions, row.mention_seqs) == (4, 2, (5, 3))
    assert (await world.row("cleo", chat)).mention_seqs == (5, 3)
    assert [one.view.conversation_id for one in (await world.page("ann", only="mentioned")).rows] == [chat]
    actor = world.actor("ann")
    assert (await world.badges.totals(actor.user, actor.shard)).totals.mentions == 2
    world.recall(chat, 5, "ben")
    assert (await world.row("ann", chat)).mention_seqs == (3,)


# -- order, pages, filters


async def test_pages_are_stable_while_others_move(world: SessionWorld) -> None:
    """A cut by (activity, id): ties and rows that move up between two pages lose nothing."""
    names = [f"g{number:03}" for number in range(50)]
    for number, name in enumerate(names):
        await chat_of(world, "ann", "ben", name=name, activity=100 + number // 5)
    first = await world.page("ann", limit=20)
    await world.saw("ann", "g000", 999)
    seen = [row.view.conversation_id for row in first.rows]
    cursor = first.next_cursor
    while cursor is not None:
        page = await world.page("ann", cursor, limit=7)
        seen += [row.view.conversation_id for row in page.rows]
        cursor = page.next_cursor
    assert seen == [name for name in sorted(names, reverse=True) if name != "g000"], "newest first, once each"
    assert [row.view.conversation_id for row in (await world.page("ann", limit=1)).rows] == ["g000"]


async def test_a_page_ends_exactly(world: SessionWorld) -> None:
    for number in range(10):
        await chat_of(world, "ann", name=f"g{number}", activity=number + 1)
    page = await world.page("ann", limit=10)
    rest = [] if page.next_cursor is None else (await world.page("ann", page.next_cursor)).rows
    assert (len(page.rows), rest) == (10, [])
    with pytest.raises(AdmissionRefused, match="cursor"):
        await world.page("ann", "nonsense")


async def test_filters_and_pins(world: SessionWorld) -> None:
    for number in range(6):
        chat = await chat_of(world, "ann", "ben", name=f"g{number}", activity=number + 1)
        world.say(chat, "ben", number % 2)
    await world.actions.set_mute(world.actor("ann"), "g1", True)
    await world.actions.set_mute(world.actor("ann"), "g2", True)
    await world.actions.set_pin(world.actor("ann"), "g0", True)

    async def names(**query: object) -> list[str]:
        return [row.view.conversation_id for row in (await world.page("ann", **query)).rows]  # type: ignore[arg-type]

    assert await names(only="unread") == ["g5", "g3", "g1"]
    assert await names(only="muted") == ["g2", "g1"]
    assert await names(pinned_first=True, limit=2) == ["g0", "g5", "g4"]
    assert await names(limit=2) == ["g5", "g4"]
    actor = world.actor("ann")
    assert (await world.badges.totals(actor.user, actor.shard)).totals == Totals(3, 0, 1, True)


async def test_wide_conversations_stand_where_their_heads_are(world: SessionWorld) -> None:
    """Their rows may be behind: the newest message decides. An edit of it or a recall moves nothing."""
    for number in range(4):
        await chat_of(world, "ann", "ben", name=f"g{number}", activity=10 * (number + 1))
    world.past.group({"ann": ALWAYS, "ben": ALWAYS}, chat="wide")
    await world.saw("ann", "wide", 1, wide=True)
    state = world.past.tier.partition(0)
    for seq, (at, kind) in enumerate([(25, 0), (35, 1), (45, 2)], 1):
        world.say("wide", "ben", kind=kind)
        identity = at.to_bytes(6, "big") + bytes(10)
        rows = state.records[TENANT, "wide"]
        rows[seq] = decode_message(rows[seq])._replace(message_id=identity).encode()
        state.heads[TENANT, "wide"].last_id = identity
    seen, cursor = [], ""
    while True:
        page = await world.page("ann", cursor or None, limit=1)
        seen += [row.view.conversation_id for row in page.rows]
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    assert seen == ["g3", "g2", "wide", "g1", "g0"]


async def test_a_direct_chat_shows_its_peer(world: SessionWorld) -> None:
    chat = world.direct("ann", "ben")
    for name in ("ann", "ben"):
        await world.saw(name, chat, 5)
    seq = world.say(chat, "ann", 3)
    assert (await world.row("ann", chat)).peer_read_seq == 0
    await world.actions.mark_read(world.actor("ben"), chat, seq)
    row = await world.row("ann", chat)
    assert (row.view.peer_id, row.peer_read_seq) == ("ben", 3)


async def test_a16_the_position_is_never_ahead_of_the_rows(world: SessionWorld) -> None:
    """A16: what the projection has not reached is not promised; a user nobody vouches for is incomplete."""
    await chat_of(world, "ann")
    world.projection.stands = {shard: Checkpoint(0, -1, 7) for shard in range(SHARDS)}
    page = await world.page("ann")
    assert (page.position.seq, page.position.complete) == (-1, False)


async def test_a_changed_row_is_as_new_as_its_position(
    world: SessionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F13: a message comes while a mark is carried out: W that has it never goes with a row that lacks it."""
    chat = await chat_of(world, "ann", "ben")
    world.say(chat, "ben", 3)
    covered, found = [3], world.lists.found

    async def watermark(*_: object) -> int:
        for _ in range(50):  # the slower of the two readings
            await asyncio.sleep(0)
        return covered[0]

    async def interrupted(*args: Any) -> Any:
        rows = await found(*args)
        covered[0] = world.say(chat, "ben")  # here its entry is made, and W is moved
        return rows

    monkeypatch.setattr(world.lists, "watermark", watermark)
    monkeypatch.setattr(world.lists, "found", interrupted)
    changed = await world.actions.set_mute(world.actor("ann"), chat, True)
    assert changed.mailbox_seq <= changed.row.view.allocated_seq


async def test_totals_say_when_they_are_not_whole(
    world: SessionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(badges, "LOOKED_MAX", 10)
    actor = world.actor("ann")
    for number in range(11):
        totals = (await world.badges.totals(actor.user, actor.shard)).totals
        assert (totals.unread, totals.complete) == (number, True)
        name = await chat_of(world, "ann", "ben", name=f"g{number:03}", activity=number + 1)
        world.say(name, "ben")
    totals = (await world.badges.totals(actor.user, actor.shard)).totals
    assert (totals.unread, totals.complete) == (10, False)


async def test_what_the_archive_has_comes_back(world: SessionWorld) -> None:
    """The hot tier lost the states: what was stored in the archive is put back before anybody sees a list."""
    chat = await chat_of(world, "ann", "ben")
    seq = world.say(chat, "ben", 5)
    await world.actions.mark_read(world.actor("ann"), chat, seq)
    await world.actions.set_pin(world.actor("ann"), chat, True)
    await world.keeper().work()
    world.states.lose()
    row = (await world.page("ann", pinned_first=True, limit=1)).rows[0]
    assert (row.view.state.read_seq, row.view.state.pinned_at) == (5, 1_000)
