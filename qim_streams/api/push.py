"""Routes of offline push: registered devices of users and their quiet hours. Tokens go in and never come out.

Spec: §6 (offline).
"""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field, model_validator

from qim_streams import limits
from qim_streams.api.models import ID_PATTERN, Request, Tenant, UserPath
from qim_streams.api.ports import PushAdmin
from qim_streams.notification.records import NO_HOURS, PushDevice, PushSettings

Minute = Annotated[int, Field(ge=0, lt=24 * 60)]
DevicePath = Annotated[str, Path(pattern=ID_PATTERN)]


class PushToken(Request):
    """Where a provider finds a device."""

    provider: str = Field(pattern="^(apns|fcm|webhook)$")
    token: str = Field(min_length=1, max_length=limits.PUSH_TOKEN_MAX, pattern="^[!-~]+$", repr=False)
    app: str | None = Field(default=None, pattern=ID_PATTERN, description="APNs topic (bundle id)")


class PushDeviceAnswer(BaseModel):
    """A registered device, without its token. `dead`: why the provider takes the token no more."""

    device_id: str
    provider: str
    app: str | None
    dead: str | None
    registered_at_ms: int


class PushDevicesAnswer(BaseModel):
    """A user's registered devices."""

    devices: list[PushDeviceAnswer]


class QuietHours(Request):
    """When a user is not notified; both minutes or neither. `quiet_to_min` may be after midnight."""

    quiet_from_min: Minute | None = None
    quiet_to_min: Minute | None = None
    time_zone: str = Field(default="UTC", max_length=64)
    mentions_break_quiet: bool = False

    @model_validator(mode="after")
    def _both_or_neither(self) -> "QuietHours":
        if (self.quiet_from_min is None) != (self.quiet_to_min is None):
            raise ValueError("give quiet_from_min and quiet_to_min, or neither")
        return self


def push_routes(push: PushAdmin) -> APIRouter:
    """The routes under ``/v1/tenants/{tenant}/users/{user}/push``."""
    routes = APIRouter(prefix="/v1/tenants/{tenant}/users/{user}/push", tags=["push"])

    @routes.get("/devices")
    async def push_devices(tenant: Tenant, user: UserPath) -> PushDevicesAnswer:
        """The user's registered devices."""
        return PushDevicesAnswer(devices=[_answer(one) for one in await push.devices(tenant, user)])

    @routes.put("/devices/{device}")
    async def register_device(
        tenant: Tenant, user: UserPath, device: DevicePath, body: PushToken
    ) -> PushDeviceAnswer:
        """Notify a device from now on."""
        wanted = PushDevice(tenant, user, 0, device, body.provider, body.app or "", body.token, 0)
        return _answer(await push.register(wanted))

    @routes.delete("/devices/{device}", status_code=204)
    async def remove_device(tenant: Tenant, user: UserPath, device: DevicePath) -> None:
        """Notify a device no more, notifications on their way included."""
        await push.unregister(tenant, user, device)

    @routes.get("/settings")
    async def push_settings(tenant: Tenant, user: UserPath) -> QuietHours:
        """The user's quiet hours."""
        return _hours(await push.settings(tenant, user))

    @routes.put("/settings")
    async def change_push_settings(tenant: Tenant, user: UserPath, body: QuietHours) -> QuietHours:
        """Set the user's quiet hours."""
        begin, end = (NO_HOURS if one is None else one for one in (body.quiet_from_min, body.quiet_to_min))
        settings = PushSettings(tenant, user, begin, end, body.time_zone, body.mentions_break_quiet)
        return _hours(await push.change_settings(settings))

    return routes


def _answer(device: PushDevice) -> PushDeviceAnswer:
    return PushDeviceAnswer(
        device_id=device.device_id,
        provider=device.provider,
        app=device.app or None,
        dead=device.dead or None,
        registered_at_ms=device.version,
    )


def _hours(settings: PushSettings) -> QuietHours:
    begin, end = (None if one == NO_HOURS else one for one in settings[2:4])
    return QuietHours(
        quiet_from_min=begin,
        quiet_to_min=end,
        time_zone=settings.time_zone,
        mentions_break_quiet=settings.mentions_break_quiet,
    )
