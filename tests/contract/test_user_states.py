"""`UserStateStore`, `DirtyStates` and `ConversationHeads`: one suite on the fakes and on a real Redis."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.rocksdb_archive import RocksArchive
from qim_streams.archive.rocksdb_reader import RocksArchiveReader
from qim_streams.placement import lane, lane_of_ordinal, ordinal_of
from qim_streams.records import decode_message
from qim_streams.redis_tier import RedisClient
from qim_streams.sessions.keeping import StateKeeper
from qim_streams.sessions.memory_projection import MemoryProjection
from qim_streams.sessions.ports import (
    ChangeOrders,
    ConversationHeads,
    DirtyStates,
    HeadQuery,
    SessionUser,
    StateChange,
    UserStateStore,
)
from qim_streams.sessions.projection_ports import ProjectionStore
from qim_streams.sessions.projection_records import SessionRow, slot_of
from qim_streams.sessions.redis_heads import RedisConversationHeads
from qim_streams.sessions.redis_projection import RedisProjection
from qim_streams.sessions.redis_user_state import RedisUserStates
from qim_streams.sessions.restoring import RestoredStates
from qim_streams.sessions.rules import ListPlace
from qim_streams.sessions.state import decode_state
from qim_streams.testing.memory_sessions import MemoryConversationHeads, MemoryUserStates
from tests.contract.history.history_tiers import Tiers, memory_past, redis_past
from tests.support.hot_tier import TENANT, partition_of

ANN = SessionUser(TENANT, "ann", ordinal_of(3, lane(TENANT, "ann")))
BEN = SessionUser(TENANT, "ben", ordinal_of(4, lane(TENANT, "ben")))
LANE = (TENANT, lane_of_ordinal(ANN.ordinal))


@dataclass
class Clock:
    """A clock that stands."""

    now_ms: int = 1_000

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Stores:
    """States and rows of users on one data set."""

    states: UserStateStore
    orders: ChangeOrders
    dirty: DirtyStates
    projection: ProjectionStore
    clock: Clock = field(default_factory=Clock)

    async def saw(self, *rows: tuple[str, int], user: SessionUser = ANN, wide: bool = False) -> None:
        """Rows of the projection."""
        made = [SessionRow(user.ordinal, name, activity, 1, wide) for name, activity in rows]
        await self.projection.write({slot_of(TENANT, user.ordinal): made})


@pytest.fixture(params=["memory", "redis"])
def stores(request: pytest.FixtureRequest, hot_client: RedisClient) -> Stores:
    clock = Clock()
    if request.param == "memory":
        projection = MemoryProjection()
        fake = MemoryUserStates(projection, clock)
        return Stores(fake, fake, fake, projection, clock)
    real = RedisUserStates(hot_client, clock)
    return Stores(real, real, real, RedisProjection(hot_client), clock)


def change(
    name: str, state: bytes, expected: bytes | None = None, version: int = 1, pinned_at: int = 0
) -> StateChange:
    return StateChange(name, expected, state, version, pinned_at)


async def test_states_are_replaced_by_compare_and_set(stores: Stores) -> None:
    """A writer that read something else is refused, alone; nothing of another user is touched."""
    states = stores.states
    assert await states.replace(ANN, [change("a", b"\x00one"), change("b", b"two")]) == ([True, True], 1_000)
    assert await states.replace(ANN, [change("a", b"x"), change("b", b"three", b"two", 2)]) == (
        [False, True],
        1_001,
    ), "each call that changes something has an order of its own, also while the clock stands"
    refused = await states.replace(ANN, [change("a", b"y", b"other"), change("c", b"z", b"none")])
    assert refused == ([False, False], 0)
    assert await states.load(ANN, ["a", "b", "c"]) == (False, [b"\x00one", b"three", None])
    assert await states.load(BEN, ["a"]) == (False, [None])
    assert await states.read_seqs([(ANN, "b"), (BEN, "b"), (ANN, "a")]) == [b"three", None, b"\x00one"]
    assert await states.read_seqs([]) == []


async def test_what_is_restored_never_replaces(stores: Stores) -> None:
    states = stores.states
    await states.replace(ANN, [change("a", b"new", version=9)])
    await states.restore(ANN, [change("a", b"old", pinned_at=4), change("b", b"kept", pinned_at=5)])
    assert await states.load(ANN, ["a", "b"]) == (True, [b"new", b"kept"])
    page = await states.page(ANN, None, 10)
    assert page.restored
    assert [one.conversation_id for one in page.pinned] == ["b"]
    await states.restore(BEN, [])
    assert await states.load(BEN, []) == (True, [])
    many = [change(f"m{number:04}", b"s") for number in range(1_203)]
    await states.restore(BEN, many)
    assert (await states.load(BEN, ["m0000", "m1202"]))[1] == [b"s", b"s"]


async def test_pages_by_activity_then_id(stores: Stores) -> None:
    await stores.saw(("a", 5), ("b", 7), ("c", 5), ("d", 5), ("e", 2**47))
    await stores.saw(("w", 6), wide=True)
    await stores.states.replace(ANN, [change("c", b"state of c"), change("w", b"state of w")])
    page = await stores.states.page(ANN, None, 3)
    assert [(one.conversation_id, one.activity) for one in page.rows] == [("e", 2**47), ("b", 7), ("d", 5)]
    assert (page.size, page.restored) == (6, False)
    assert page.wide == [("w", 6, b"state of w")]
    rest = await stores.states.page(ANN, ListPlace(5, "d"), 3)
    assert rest.rows == [("c", 5, b"state of c"), ("a", 5, None)]
    assert (await stores.states.page(ANN, ListPlace(5, "a"), 3)).rows == []
    assert (await stores.states.page(BEN, None, 3)).size == 0


async def test_a_thousand_of_one_moment(stores: Stores) -> None:
    """Ties are read through, page after page, each conversation once."""
    await stores.saw(*((f"c{number:04}", 5) for number in range(1_000)))
    seen: list[str] = []
    place: ListPlace | None = None
    while True:
        rows = (await stores.states.page(ANN, place, 300)).rows
        seen += [one.conversation_id for one in rows]
        if len(rows) < 300:
            break
        place = ListPlace(rows[-1].activity, rows[-1].conversation_id)
    assert seen == [f"c{number:04}" for number in reversed(range(1_000))]


async def test_pins(stores: Stores) -> None:
    states = stores.states
    await stores.saw(("a", 5), ("b", 7))
    await states.replace(ANN, [change("a", b"1", pinned_at=10), change("b", b"1", pinned_at=20)])
    assert [one[:2] for one in (await states.page(ANN, None, 1)).pinned] == [("b", 7), ("a", 5)]
    await states.replace(ANN, [change("b", b"2", b"1")])
    assert [one.conversation_id for one in (await states.page(ANN, None, 1)).pinned] == ["a"]


async def test_orders_of_what_others_changed(stores: Stores) -> None:
    """One row of orders for all that concerns a user: above what he changed, below his next change."""
    states, orders = stores.states, stores.orders
    assert await orders.last_order(ANN) == 0
    assert await orders.next_order(ANN) == 1_000
    assert (await states.replace(ANN, [change("a", b"1")])).order == 1_001
    assert await orders.next_order(ANN) == 1_002
    assert (await orders.last_order(ANN), await orders.last_order(BEN)) == (1_002, 0)
    stores.clock.now_ms = 5_000
    assert await orders.next_order(ANN) == 5_000
    assert (await states.page(ANN, None, 1)).order == 5_000


async def test_where_single_conversations_stand(stores: Stores) -> None:
    await stores.saw(("a", 5), ("b", 7))
    await stores.saw(("w", 9), wide=True)
    assert await stores.states.activities(ANN, ["b", "nowhere", "w", "a"]) == [7, 0, 9, 5]
    assert await stores.states.activities(ANN, []) == []


async def test_what_the_archive_lacks(stores: Stores) -> None:
    """Oldest first; what was changed again while it was stored stays; an empty lane is forgotten late."""
    states, dirty = stores.states, stores.dirty
    await states.replace(ANN, [change("a", b"1", version=30), change("b", b"1", version=20)])
    assert await dirty.lanes() == [LANE]
    (first,) = await dirty.take(LANE, 1)
    assert first == (ANN.ordinal, "b", 20, b"1")
    taken = await dirty.take(LANE, 10)
    assert [(one.conversation_id, one.version) for one in taken] == [("b", 20), ("a", 30)]
    await states.replace(ANN, [change("a", b"2", b"1", version=31)])
    await dirty.settle(LANE, taken)
    assert await dirty.take(LANE, 10) == [(ANN.ordinal, "a", 31, b"2")]
    await dirty.settle(LANE, await dirty.take(LANE, 10))
    await dirty.settle(LANE, [])
    await dirty.forget_lane(LANE, 1_000)
    assert await dirty.lanes() == [LANE]
    await dirty.forget_lane(LANE, 1_001)
    assert await dirty.lanes() == []


# -- heads


@pytest.fixture(params=["memory", "redis"])
async def past(request: pytest.FixtureRequest, hot_client: RedisClient) -> tuple[Tiers, ConversationHeads]:
    archive = MemoryArchive()
    if request.param == "memory":
        hot, store = memory_past()
        assert hot.memory is not None
        return Tiers(hot, store, archive, archive), MemoryConversationHeads(hot.memory)
    hot, store = redis_past(hot_client)
    return Tiers(hot, store, archive, archive), RedisConversationHeads(hot_client, partition_of)


async def test_heads_in_bulk(past: tuple[Tiers, ConversationHeads]) -> None:
    """Head, member row and newest records of many conversations, in the order asked for."""
    tiers, heads = past
    for number in range(40):
        await tiers.hot.group(f"g{number}", {"ann": "owner", "ben": "member"}, name=f"group {number}")
        await tiers.say(f"g{number}", "ben", number % 12)
    names = [f"g{number}" for number in range(40)] + ["nowhere"]
    found = await heads.heads(TENANT, "ann", [HeadQuery(name, 2) for name in names])
    assert found[-1] is None
    for number, head in enumerate(found[:-1]):
        assert head is not None
        said = number % 12
        assert (head.kind, head.name, head.committed_seq) == ("group", f"group {number}", said)
        assert (head.peer_id, head.dismissed, head.history_policy) == (None, False, "joined")
        assert head.member is not None
        assert head.member.role == "owner"
        seqs = [decode_message(row).conversation_seq for row in head.records if row is not None]
        assert seqs == list(range(said, max(said - 8, min(2, said - 1), 0), -1))
        assert (head.activity > 0) == (said > 0)
    (stranger,) = await heads.heads(TENANT, "eve", [HeadQuery("g3", 0)])
    assert stranger is not None
    assert stranger.member is None
    assert await heads.heads(TENANT, "ann", []) == []


async def test_heads_tell_what_is_pending(past: tuple[Tiers, ConversationHeads]) -> None:
    tiers, heads = past
    await tiers.hot.group("g", {"ann": "owner"})
    await tiers.hot.group("h", {"ann": "owner"})
    await tiers.say("g", "ann", 3)
    await tiers.say("g", "ann", 2, confirm=False)
    await tiers.say("h", "ann", 1, confirm=False)
    g, h = await heads.heads(TENANT, "ann", [HeadQuery("g", 0), HeadQuery("h", 0)])
    assert g is not None
    assert h is not None
    assert (g.committed_seq, g.allocated_seq, len(g.records)) == (3, 5, 5)
    assert (h.committed_seq, h.allocated_seq, len(h.records)) == (0, 1, 1)


async def test_heads_of_large_bodies_bring_one_record_each(hot_client: RedisClient) -> None:
    """What one call reads is bounded: beyond 256 KiB of records a conversation brings its newest one only."""
    hot, store = redis_past(hot_client)
    tiers = Tiers(hot, store, MemoryArchive(), MemoryArchive())
    names = [name for name in (f"g{number}" for number in range(400)) if partition_of(TENANT, name) == 0][:8]
    for name in names:
        await hot.group(name, {"ann": "owner"})
        await tiers.say(name, "ann", 4, b"x" * 30_000)
    heads = RedisConversationHeads(hot_client, partition_of)
    found = await heads.heads(TENANT, "ann", [HeadQuery(name, 0) for name in names])
    assert [len(head.records) for head in found if head is not None] == [4, 4, 4, 1, 1, 1, 1, 1]


async def test_heads_of_direct_chats_name_the_peer(past: tuple[Tiers, ConversationHeads]) -> None:
    tiers, heads = past
    ordinals = await tiers.hot.directory.assign(TENANT, ["ann", "ben"])
    await tiers.hot.group("d.x", {"ann": "member", "ben": "member"}, kind="direct")
    (head,) = await heads.heads(TENANT, "ann", [HeadQuery("d.x", 0)])
    assert head is not None
    assert (head.peer_id, head.peer_ordinal) == ("ben", ordinals[1])


# -- the whole way


async def test_what_redis_lost_comes_back_from_the_archive(hot_client: RedisClient, tmp_path: Path) -> None:
    """States are carried into RocksDB; after FLUSHALL another process's reader gives them back, pins too."""
    tiers_hot, history = redis_past(hot_client)
    await tiers_hot.group("team", {"ann": "owner"})
    (ordinal,) = await tiers_hot.directory.assign(TENANT, ["ann"])
    user, clock, projection = SessionUser(TENANT, "ann", ordinal), Clock(), RedisProjection(hot_client)
    states = RedisUserStates(hot_client, clock)
    row = SessionRow(ordinal, "team", 5, 1)
    await projection.write({slot_of(TENANT, ordinal): [row, row._replace(conversation_id="never")]})
    archive = await RocksArchive.open(tmp_path / "archive")
    reader = RocksArchiveReader(tmp_path / "archive")
    try:
        keeper = StateKeeper(states, states, projection, archive, tiers_hot.directory, history, clock)
        assert await keeper.work() >= 2
        (before,) = (await states.load(user, ["team"]))[1]
        state = decode_state(before or b"")
        assert (state.first_seen_seq, state.version) == (1, 1_000)
        after = state._replace(read_seq=7, pinned_at=9, version=1_001)
        made = StateChange("team", before, after.encode(), after.version, after.pinned_at)
        assert (await states.replace(user, [made])).done == [True]
        assert await keeper.work() == 1
        assert await projection.pending([slot_of(TENANT, ordinal)], 10) == []
        await hot_client.flushall()
        restored = RestoredStates(states, reader)
        assert [
            decode_state(one or b"").read_seq for one in await restored.load(user, ["team", "never"])
        ] == [7, 0]
        assert [one.conversation_id for one in (await restored.page(user, None, 1)).pinned] == ["team"]
    finally:
        await reader.close()
        await archive.close()
