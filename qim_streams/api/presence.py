"""The route of presence: whether a user is online, when he was last seen, with which devices.

Spec: §6.
"""

from fastapi import APIRouter
from pydantic import BaseModel

from qim_streams.api.failures import ApiRefusal
from qim_streams.api.models import Tenant, UserPath
from qim_streams.api.ports import PresenceAdmin


class PresenceDevice(BaseModel):
    """A device that has signed on. `ended_by`: the device whose login ended its session."""

    device_id: str
    platform: str | None
    session_epoch: int
    last_seen_ms: int
    ended_by: str | None


class PresenceAnswer(BaseModel):
    """A user as others see him: one who made himself invisible is offline to everybody.

    `last_seen_ms` null: online, or never seen.
    """

    user_id: str
    online: bool
    last_seen_ms: int | None
    devices: list[PresenceDevice]


def presence_routes(presence: PresenceAdmin) -> APIRouter:
    """The route ``/v1/tenants/{tenant}/users/{user}/presence``."""
    routes = APIRouter(prefix="/v1/tenants/{tenant}/users/{user}/presence", tags=["presence"])

    @routes.get("")
    async def user_presence(tenant: Tenant, user: UserPath) -> PresenceAnswer:
        """Whether the user is online, and the devices that he signed on with."""
        found = await presence.look(tenant, user)
        if found is None:
            raise ApiRefusal(
                "NO_USER",
                "nobody of this tenant has that id: users exist from their first message or group on",
            )
        seen, devices = found
        return PresenceAnswer(
            user_id=user,
            online=seen.online,
            last_seen_ms=seen.last_seen_ms or None,
            devices=[
                PresenceDevice(
                    device_id=one.device_id,
                    platform=one.platform,
                    session_epoch=one.session_epoch,
                    last_seen_ms=one.last_seen_ms,
                    ended_by=one.ended_by,
                )
                for one in devices
            ],
        )

    return routes
