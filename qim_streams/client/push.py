"""Offline push as an application uses it::

    await client.push.register("apns", token, app="com.example.chat")
    await client.push.quiet_hours(22 * 60, 7 * 60, "Europe/Berlin")
    await client.push.unregister()  # at log-out

Register at each start; `dead_token` says when the provider has given the token up, so that the application
asks for another one.

Spec: §6 (offline).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from qim_streams.client.requests import Requests
from qim_streams.wire.frames import ClientFrame
from qim_streams.wire.frames_push import GetPush, PushState, RegisterPush, SetPushSettings, UnregisterPush

if TYPE_CHECKING:
    from qim_streams.client.session import Session


class Push:
    """A user's notifications.

    Calls raise AdmissionRefused (FIELD_INVALID: the server does not serve that provider), ClientStopped, or
    TimeoutError when there is no answer: asking again is safe. Each gives how it is afterwards.
    """

    def __init__(self, session: "Session", requests: Requests) -> None:
        self._session, self._requests = session, requests

    @property
    def dead_token(self) -> str | None:
        """Why the provider refused this device's token, as of the last sign-on; None: it did not."""
        auth = self._session.auth
        return None if auth is None else auth.push_token_dead

    async def register(self, provider: str, token: str, app: str | None = None) -> PushState:
        """Notify this device while it is not connected; `app`: APNs topic, None: the server's default."""
        return await self._ask(lambda rid: RegisterPush(rid, provider, token, app))

    async def unregister(self, device_id: str | None = None) -> PushState:
        """Notify this device, or another one of the user, no more: notifications on their way included."""
        return await self._ask(lambda rid: UnregisterPush(rid, device_id))

    async def quiet_hours(
        self, from_min: int, to_min: int, time_zone: str, *, mentions_break_quiet: bool = False
    ) -> PushState:
        """No notifications from minute to minute of the day, over midnight if `to_min` is the lower one."""
        return await self._ask(
            lambda rid: SetPushSettings(rid, from_min, to_min, time_zone, mentions_break_quiet)
        )

    async def no_quiet_hours(self) -> PushState:
        """Notifications at any time."""
        return await self._ask(SetPushSettings)

    async def state(self) -> PushState:
        """The user's registered devices and settings."""
        return await self._ask(GetPush)

    async def _ask(self, make: Callable[[int], ClientFrame]) -> PushState:
        return await self._requests.ask(make, PushState)
