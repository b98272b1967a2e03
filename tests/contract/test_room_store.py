"""One suite for the fake and the real store of rooms; counts and lists of the real one (Spec: §10, §14.6)."""

import pytest

from qim_streams.errors import FencedError, StoreError
from qim_streams.placement import room_partition
from qim_streams.redis_tier import RedisClient
from qim_streams.rooms.ports import RoomStore
from qim_streams.rooms.redis_store import COUNT_TTL_MS, RedisRoomCounts, RedisRoomListing, RedisRoomStore
from qim_streams.rooms.rules import RoomHead, Standing
from tests.support.room_world import MemoryRoomStore

HEAD = RoomHead("The lobby", "open", "ann", 5)


class Fixture:
    """A store whose partition 1 has an owner."""

    def __init__(self, store: RoomStore, client: RedisClient) -> None:
        self.store, self._client = store, client

    async def own(self, epoch: int, partition: int = 1) -> None:
        """Another owner."""
        if isinstance(self.store, MemoryRoomStore):
            self.store.epochs[partition] = epoch
        else:
            await self._client.set(f"{{rm:{partition}}}:epoch", epoch)


@pytest.fixture(params=["memory", "redis"])
async def fixture(request: pytest.FixtureRequest, hot_client: RedisClient) -> Fixture:
    store = MemoryRoomStore() if request.param == "memory" else RedisRoomStore(hot_client)
    made = Fixture(store, hot_client)
    await made.own(7)
    return made


async def test_a_room_and_its_standings(fixture: Fixture) -> None:
    store = fixture.store
    assert await store.load(1, "t", "r") is None
    assert await store.create(1, 7, "t", "r", HEAD)
    assert not await store.create(1, 7, "t", "r", HEAD._replace(name="other"))
    assert await store.load(1, "other", "r") is None
    await store.put(1, 7, "t", "r", HEAD._replace(muted_all=True), {"eve": Standing("", 50, 60)})
    await store.put(1, 7, "t", "r", HEAD, {"mia": Standing("moderator")})
    stored = await store.load(1, "t", "r")
    assert stored is not None
    assert (stored.head, stored.room_seq) == (HEAD, 0)
    assert stored.standings == {"eve": Standing("", 50, 60), "mia": Standing("moderator")}
    await store.put(1, 7, "t", "r", HEAD, {"eve": Standing()})
    stored = await store.load(1, "t", "r")
    assert stored is not None
    assert set(stored.standings) == {"mia"}
    with pytest.raises(StoreError):
        await store.put(1, 7, "t", "nowhere", HEAD, {})


async def test_checkpoints_only_grow_and_make_no_rooms(fixture: Fixture) -> None:
    store = fixture.store
    assert await store.position(1) == 0
    await store.create(1, 7, "t", "r", HEAD)
    assert await store.checkpoint(1, 7, 0, 100, {("t", "r"): 40, ("t", "gone"): 3}) == 0
    assert await store.checkpoint(1, 7, 100, 120, {("t", "r"): 30}) == 100
    stored = await store.load(1, "t", "r")
    assert stored is not None
    assert (stored.room_seq, await store.position(1)) == (40, 120)
    assert await store.load(1, "t", "gone") is None
    await store.checkpoint(1, 7, 120, 200, {("t", f"r{n}"): n for n in range(1_200)} | {("t", "r"): 50})
    stored = await store.load(1, "t", "r")
    assert stored is not None
    assert (stored.room_seq, await store.position(1)) == (50, 200)


async def test_a_store_that_lost_checkpoints_notes_nothing(fixture: Fixture) -> None:
    """T-R2: room_seqs went with them; a small checkpoint and one in slices are refused alike."""
    store = fixture.store
    await store.create(1, 7, "t", "r", HEAD)
    await store.checkpoint(1, 7, 0, 100, {("t", "r"): 40})
    for seqs in ({("t", "r"): 50}, {("t", f"r{n}"): n for n in range(1_200)} | {("t", "r"): 50}):
        assert await store.checkpoint(1, 7, 120, 130, seqs) == 100
        stored = await store.load(1, "t", "r")
        assert stored is not None
        assert (stored.room_seq, await store.position(1)) == (40, 100)


async def test_a_former_owner_writes_nothing(fixture: Fixture) -> None:
    store = fixture.store
    await store.create(1, 7, "t", "r", HEAD)
    await fixture.own(8)
    with pytest.raises(FencedError):
        await store.create(1, 7, "t", "r2", HEAD)
    with pytest.raises(FencedError):
        await store.put(1, 7, "t", "r", HEAD._replace(closed=True), {})
    with pytest.raises(FencedError):
        await store.checkpoint(1, 7, 0, 9, {("t", "r"): 9})
    stored = await store.load(1, "t", "r")
    assert stored is not None
    assert (stored.head, stored.room_seq, await store.position(1)) == (HEAD, 0, 0)


async def test_lists_of_open_rooms(hot_client: RedisClient) -> None:
    store, listing = RedisRoomStore(hot_client), RedisRoomListing(hot_client, 4)
    names = [f"r{number:02}" for number in range(20)]
    for partition in range(4):
        await hot_client.set(f"{{rm:{partition}}}:epoch", 1)
    for name in names:
        await store.create(room_partition("t", name, 4), 1, "t", name, HEAD)
    await store.put(room_partition("t", "r03", 4), 1, "t", "r03", HEAD._replace(closed=True), {})
    assert await hot_client.pttl(f"{{rm:{room_partition('t', 'r03', 4)}}}:r:t:r03") > 0
    open_rooms = [name for name in names if name != "r03"]
    found: list[str] = []
    while page := await listing.rooms("t", found[-1] if found else "", 7):
        found += page
    assert found == open_rooms
    assert await listing.rooms("other", "", 100) == []
    assert (await listing.view("t", "r00")) is not None


async def test_counts_of_gateways_add_up_and_run_out(hot_client: RedisClient) -> None:
    counts, one, two = RedisRoomCounts(hot_client), ("t", "r"), ("t", "s")
    assert await counts.exchange("g1", {one: 3, two: 1}, 1_000) == {one: 3, two: 1}
    assert await counts.exchange("g2", {one: 4}, 2_000) == {one: 7}
    assert await counts.totals([one, two, ("other", "r")], 2_000) == [7, 1, 0]
    assert await counts.exchange("g1", {one: 0}, 2_000) == {one: 4}  # nobody there any more
    assert await counts.totals([one], 2_000 + COUNT_TTL_MS) == [0]  # a gateway that died is forgotten
    many = {("t", f"m{number}"): 1 for number in range(1_100)}
    assert await counts.exchange("g1", many, 2_000) == many
