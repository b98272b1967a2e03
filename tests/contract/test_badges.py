"""`BadgeReader` on the fakes and on a real Redis: the same numbers, in a few round trips for many users."""

import random
from dataclasses import dataclass

import pytest

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.placement import lane, mailbox_shard, ordinal_of
from qim_streams.redis_tier import RedisClient
from qim_streams.sessions import rules
from qim_streams.sessions.badge_ports import Badge, BadgeQuery, BadgeReader
from qim_streams.sessions.badges import Badges
from qim_streams.sessions.memory_projection import MemoryProjection
from qim_streams.sessions.ports import ConversationHeads, HeadQuery, SessionUser, StateChange, UserStateStore
from qim_streams.sessions.positions import Positions
from qim_streams.sessions.projection_ports import ProjectionStore
from qim_streams.sessions.projection_records import Checkpoint, SessionRow, slot_of
from qim_streams.sessions.redis_heads import RedisConversationHeads
from qim_streams.sessions.redis_projection import RedisProjection
from qim_streams.sessions.redis_user_state import RedisUserStates
from qim_streams.sessions.restoring import RestoredStates
from qim_streams.sessions.rows import Rows
from qim_streams.sessions.session_rebuild import SessionRebuild
from qim_streams.sessions.state import UserConversationState
from qim_streams.sessions.tails import Tails
from qim_streams.testing.memory_badges import MemoryBadges
from qim_streams.testing.memory_sessions import MemoryConversationHeads, MemoryUserStates
from tests.contract.history.history_tiers import Tiers, memory_past, redis_past
from tests.support.hot_tier import TENANT, partition_of
from tests.support.session_world import NoActivity

SHARDS = 4
NAMES = ("ann", "ben", "cleo", "dora", "eve")


def user(name: str) -> SessionUser:
    return SessionUser(TENANT, name, ordinal_of(NAMES.index(name), lane(TENANT, name)))


def asked(name: str, *conversations: str) -> BadgeQuery:
    return BadgeQuery(user(name), mailbox_shard(TENANT, name, SHARDS), conversations)


@dataclass
class World:
    """A reader over a past, and the moves that change it."""

    tiers: Tiers
    reader: BadgeReader
    states: UserStateStore
    projection: ProjectionStore
    heads: ConversationHeads

    async def group(self, name: str, *members: str, listed: bool = True) -> None:
        await self.tiers.hot.group(name, dict.fromkeys(members, "member"))
        for member in members if listed else ():
            row = SessionRow(user(member).ordinal, name, 1 + len(name), 1)
            await self.projection.write({slot_of(TENANT, row.ordinal): [row]})

    async def set(self, name: str, conversation: str, **fields: object) -> None:
        """Replace what a user has of a conversation by a state with `fields`."""
        _, (before,) = await self.states.load(user(name), [conversation])
        state = UserConversationState(name, conversation, 5)._replace(**fields)  # type: ignore[arg-type]
        change = StateChange(conversation, before, state.encode(), state.version, state.pinned_at)
        assert (await self.states.replace(user(name), [change])).done == [True]


@pytest.fixture(params=["memory", "redis"])
async def world(request: pytest.FixtureRequest, hot_client: RedisClient) -> World:
    archive, mailboxes = MemoryArchive(), MemoryMailboxStore()
    projection: MemoryProjection | RedisProjection
    states: MemoryUserStates | RedisUserStates
    heads: ConversationHeads
    if request.param == "memory":
        hot, store = memory_past()
        projection = MemoryProjection()
        states = MemoryUserStates(projection, lambda: 1_000)
        assert hot.memory is not None
        heads = MemoryConversationHeads(hot.memory)
    else:
        hot, store = redis_past(hot_client)
        projection, states = RedisProjection(hot_client), RedisUserStates(hot_client, lambda: 1_000)
        heads = RedisConversationHeads(hot_client, partition_of)
    rebuild = SessionRebuild(
        store=projection,
        rebuilds=projection,
        mailboxes=mailboxes,
        known=NoActivity(),
        shard_of=lambda tenant, name, _: mailbox_shard(tenant, name, SHARDS),
    )
    for shard in range(SHARDS):
        await projection.begin(shard, None, Checkpoint(0, -1, -1))
    positions = Positions(mailboxes, projection, rebuild, RestoredStates(states, archive))
    reader = Badges(states, archive, Rows(heads, Tails(store, archive), states), positions)
    return World(Tiers(hot, store, archive, archive), reader, states, projection, heads)


async def test_random_users_against_counting(world: World) -> None:
    """Reads, mutes, hides and clears of five users in twelve groups; every user's badge is the plain sum."""
    generator = random.Random(16)
    chats = [f"g{number}" for number in range(12)]
    for chat in chats:
        await world.group(chat, *NAMES)
    said: dict[str, list[str]] = {chat: [] for chat in chats}
    marks: dict[tuple[str, str], dict[str, object]] = {}
    for _ in range(6):
        for chat in generator.sample(chats, 8):
            sender, count = generator.choice(NAMES), generator.choice((1, 2, 15))
            await world.tiers.say(chat, sender, count)
            said[chat] += [sender] * count
        for _ in range(12):
            name, chat = generator.choice(NAMES), generator.choice(chats)
            fields: dict[str, object] = {
                "read_seq": generator.randrange(len(said[chat]) + 1),
                "muted": generator.random() < 0.2,
                "deleted_to_seq": generator.choice((0, 0, len(said[chat]))),
                "hidden_at_seq": len(said[chat]) if generator.random() < 0.2 else -1,
            }
            marks[name, chat] = fields
            await world.set(name, chat, **fields)
        badges = await world.reader.badges([asked(name) for name in NAMES])
        wanted = [sum(expected(name, chat, said, marks) for chat in chats) for name in NAMES]
        assert badges == [Badge(count, True) for count in wanted]


def expected(name: str, chat: str, said: dict[str, list[str]], marks: dict[tuple[str, str], object]) -> int:
    state = UserConversationState(name, chat)._replace(**marks.get((name, chat), {}))  # type: ignore[arg-type]
    if state.muted or rules.is_hidden(state, len(said[chat])):
        return 0
    mine = max((seq for seq, sender in enumerate(said[chat], 1) if sender == name), default=0)
    base = max(mine, state.read_seq, state.deleted_to_seq)
    return len(said[chat]) - base


async def test_a_message_that_the_list_does_not_have_yet(world: World) -> None:
    """The conversation of the notification is named by the caller, and counted once."""
    await world.group("old", "ann", "ben")
    await world.group("new", "ann", "ben", listed=False)
    await world.tiers.say("old", "ben", 2)
    await world.tiers.say("new", "ben")
    assert await world.reader.badges([asked("ann"), asked("ann", "new", "old")]) == [
        Badge(2, True),
        Badge(3, True),
    ]
    assert await world.reader.badges([asked("ann", "nowhere"), asked("eve", "new")]) == [
        Badge(2, True),
        Badge(0, True),
    ]


async def test_beyond_two_hundred(world: World) -> None:
    """F8: 200 and not exact, for that user alone; nobody asks for nothing."""
    await world.group("busy", "ann", "ben", "cleo")
    await world.tiers.say("busy", "ben", 201)
    await world.set("cleo", "busy", read_seq=1)
    assert await world.reader.badges([asked("ann"), asked("cleo"), asked("ben")]) == [
        Badge(200, False),
        Badge(200, True),
        Badge(0, True),
    ]
    assert await world.reader.badges([]) == []


async def test_heads_leave_out_what_is_known_or_not_wanted(world: World) -> None:
    """No records for one who has them, nothing at all of a conversation without news; many users at once."""
    await world.group("g", "ann", "ben")
    await world.tiers.say("g", "ben", 5)
    (first,) = await world.heads.heads(TENANT, "ann", [HeadQuery("g", 0)])
    assert first is not None
    assert (first.unchanged, len(first.records)) == (False, 5)
    known = HeadQuery("g", 0, first.allocated_seq, first.last_id)
    found = await world.heads.of_users(
        TENANT, [("ann", known), ("ben", known._replace(skip_to=4)), ("ben", known._replace(skip_to=5))]
    )
    assert [None if one is None else (one.unchanged, one.records) for one in found] == [
        (True, []),
        (True, []),
        None,
    ]
    assert found[1] is not None
    assert found[1].member is not None
    assert found[1].member.user_id == "ben"
    await world.tiers.say("g", "ann")
    (moved,) = await world.heads.heads(TENANT, "ann", [known])
    assert moved is not None
    assert (moved.unchanged, len(moved.records), moved.allocated_seq) == (False, 6, 6)
    assert moved.last_id != first.last_id


async def test_the_fake_says_what_it_was_told() -> None:
    fake = MemoryBadges({(TENANT, "ann"): Badge(7, True)})
    assert await fake.badges([asked("ben"), asked("ann")]) == [Badge(0, True), Badge(7, True)]
    assert fake.asked == [asked("ben"), asked("ann")]
