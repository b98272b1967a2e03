"""The routes of rooms (Spec: §10)."""

from typing import Any

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.rooms.commands import RoomAct, RoomCreate, RoomJoin, RoomView
from tests.support.room_world import RoomWorld
from tests.unit.api import fakes

ROOMS = f"{fakes.BASE}/rooms"


class FakeRooms:
    """`RoomAdmin` on a writer in memory."""

    def __init__(self, world: RoomWorld) -> None:
        self.world = world
        self.failure: Exception | None = None

    async def create(self, request: RoomCreate) -> RoomView:
        """See the port."""
        if self.failure is not None:
            raise self.failure
        return await self.world.create(request)

    async def look(self, request: RoomJoin) -> RoomView:
        """See the port."""
        return await self.world.join(request)

    async def act(self, request: RoomAct) -> RoomView:
        """See the port."""
        return await self.world.act(request)

    async def list(self, tenant_id: str, after_room_id: str, limit: int) -> list[str]:
        """See the port."""
        mine = (room for tenant, room in self.world.store.rooms if tenant == tenant_id)
        return sorted(room for room in mine if room > after_room_id)[:limit]

    async def count(self, tenant_id: str, room_id: str) -> int:
        """See the port."""
        return 17


@pytest.fixture
async def api() -> Any:
    world = RoomWorld()
    await world.take_over()
    rooms = FakeRooms(world)
    async with fakes.client(fakes.deps(fakes.FakeWriter(), rooms=rooms)) as client:
        client.rooms = rooms  # type: ignore[attr-defined]
        yield client
    world.kill()


async def test_rooms_are_made_listed_governed_and_closed(api: Any) -> None:
    made = await api.post(ROOMS, json={"room_id": "lobby", "name": "L", "join_policy": "members"})
    assert made.status_code == 201
    assert made.json()["owner"] is None
    assert (await api.post(ROOMS, json={"room_id": "other", "owner": "ann"})).json()["owner"] == "ann"
    page = (await api.get(ROOMS, params={"limit": 1})).json()
    assert page == {"room_ids": ["lobby"], "next_room_id": "lobby"}
    page = (await api.get(ROOMS, params={"after_room_id": "lobby"})).json()
    assert page == {"room_ids": ["other"], "next_room_id": None}
    acted = await api.post(f"{ROOMS}/lobby/actions", json={"action": "mute_all"})
    assert acted.json()["muted_all"]
    read = (await api.get(f"{ROOMS}/lobby")).json()
    assert (read["member_count"], read["join_policy"], read["closed"]) == (17, "members", False)
    assert (await api.delete(f"{ROOMS}/lobby")).json()["closed"]


async def test_refusals_have_the_one_form(api: Any) -> None:
    assert (await api.get(f"{ROOMS}/nowhere")).json()["name"] == "NO_ROOM"
    assert (await api.get(f"{ROOMS}/nowhere")).status_code == 404
    await api.post(ROOMS, json={"room_id": "lobby"})
    taken = await api.post(ROOMS, json={"room_id": "lobby", "name": "other"})
    assert (taken.status_code, taken.json()["name"]) == (409, "ROOM_EXISTS")
    for body in (
        {"action": "explode"},
        {"action": "mute", "user_id": ":"},
        {"action": "mute", "seconds": -1},
    ):
        assert (await api.post(f"{ROOMS}/lobby/actions", json=body)).status_code == 422
    api.rooms.failure = StoreUnavailable("down")
    assert (await api.post(ROOMS, json={"room_id": "x"})).status_code == 503
    assert (await api.get(ROOMS, headers={"Authorization": "Bearer wrong"})).status_code == 401
