"""Routes of chat rooms: create, list, read, govern, close. Always as the operator.

Spec: §10.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field, StringConstraints

from qim_streams import limits
from qim_streams.api import models
from qim_streams.api.models import Id, Request, Tenant
from qim_streams.api.ports import RoomAdmin
from qim_streams.rooms.commands import RoomAct, RoomCreate, RoomJoin, RoomView

PAGE = 100
SECONDS_MAX = 10**9
RoomPath = Annotated[str, Path(pattern=models.ID_PATTERN, description="room")]
Action = Literal[
    "mute", "unmute", "mute_all", "unmute_all", "kick", "add_moderator", "add_member", "remove", "announce"
]


class CreateRoomBody(Request):
    """A new room. Without `owner` only the operator governs it. Making the same one again changes nothing."""

    room_id: Id
    owner: Id | None = None
    name: Annotated[str, StringConstraints(max_length=limits.ROOM_NAME_MAX, pattern=models.NAME_PATTERN)] = ""
    join_policy: Literal["open", "members"] = "open"


class ActionBody(Request):
    """What to do with a room, or with a user in it."""

    action: Action
    user_id: Id | None = None
    seconds: Annotated[
        int, Field(ge=0, le=SECONDS_MAX, description="0: for ever (mute), sent out once (kick)")
    ] = 0
    text: Annotated[str, StringConstraints(max_length=limits.ROOM_EVENT_TEXT_MAX // 4)] = ""


class RoomAnswer(BaseModel):
    """A room as it stands."""

    room_id: str
    name: str
    join_policy: str
    owner: str | None
    created_at: int
    epoch: int
    room_seq: int
    muted_all: bool
    closed: bool


class RoomDetails(RoomAnswer):
    """The same with the connections in it, a few seconds old."""

    member_count: int


class RoomPage(BaseModel):
    """Ids of open rooms, ascending; go on after `next_room_id`."""

    room_ids: list[str]
    next_room_id: str | None


def room_routes(rooms: RoomAdmin) -> APIRouter:
    """The routes under ``/v1/tenants/{tenant}/rooms``."""
    routes = APIRouter(prefix="/v1/tenants/{tenant}/rooms", tags=["rooms"])

    @routes.post("", status_code=201)
    async def create_room(tenant: Tenant, body: CreateRoomBody) -> RoomAnswer:
        """Make a room."""
        request = RoomCreate(tenant, body.room_id, body.owner or "", body.name, body.join_policy)
        return RoomAnswer(**_fields(body.room_id, await rooms.create(request)))

    @routes.get("")
    async def list_rooms(
        tenant: Tenant,
        after_room_id: Annotated[str | None, Query(pattern=models.ID_PATTERN)] = None,
        limit: Annotated[int, Query(ge=1, le=limits.GROUP_PAGE_MAX)] = PAGE,
    ) -> RoomPage:
        """The open rooms of a tenant."""
        found = await rooms.list(tenant, after_room_id or "", limit)
        return RoomPage(room_ids=found, next_room_id=found[-1] if len(found) == limit else None)

    @routes.get("/{room}")
    async def read_room(tenant: Tenant, room: RoomPath) -> RoomDetails:
        """A room and how many are in it."""
        view = await rooms.look(RoomJoin(tenant, room, None, 0))
        return RoomDetails(**_fields(room, view), member_count=await rooms.count(tenant, room))

    @routes.post("/{room}/actions")
    async def act(tenant: Tenant, room: RoomPath, body: ActionBody) -> RoomAnswer:
        """Mute, kick, announce, ..."""
        request = RoomAct(
            tenant, room, None, body.action, body.user_id or "", body.seconds, body.text.encode()
        )
        return RoomAnswer(**_fields(room, await rooms.act(request)))

    @routes.delete("/{room}")
    async def close_room(tenant: Tenant, room: RoomPath) -> RoomAnswer:
        """End a room for everybody, for good."""
        request = RoomAct(tenant, room, None, "close", "", 0, b"")
        return RoomAnswer(**_fields(room, await rooms.act(request)))

    return routes


def _fields(room_id: str, view: RoomView) -> dict[str, Any]:
    return {
        "room_id": room_id,
        "name": view.name,
        "join_policy": view.join_policy,
        "owner": view.owner_id or None,
        "created_at": view.created_at,
        "epoch": view.epoch,
        "room_seq": view.room_seq,
        "muted_all": view.muted_all,
        "closed": view.closed,
    }
