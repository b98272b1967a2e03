"""Frames of offline push between sessions and `notification.registry`.

Invariants: whose device it is comes from the session, never from the frame; a user's other devices may be
named, nobody else's.

Spec: §6 (offline).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from qim_streams.errors import StoreError
from qim_streams.gateway.session_ports import ListSession
from qim_streams.notification.records import NO_HOURS, PushDevice, PushSettings
from qim_streams.notification.registry import PushDevices
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire.frames import ServerFrame
from qim_streams.wire.frames_push import (
    GetPush,
    PushRegistration,
    PushState,
    RegisterPush,
    SetPushSettings,
    UnregisterPush,
)

log = logging.getLogger(__name__)

DEAD_TOKEN_S: Final = 0.25  # a sign-on waits no longer for whether its token is dead


class PushDeviceFrames:
    """What all sessions of a gateway share of offline push."""

    def __init__(self, devices: PushDevices) -> None:
        self._devices = devices
        self._handlers: dict[type, Callable[[MailboxAddress, Any], Awaitable[None]]] = {
            RegisterPush: self._register,
            UnregisterPush: self._unregister,
            SetPushSettings: self._set,
            GetPush: _nothing,
        }

    def handle(self, session: ListSession, frame: Any) -> bool:
        """Answer a frame of offline push from a task; False for any other frame."""
        handler = self._handlers.get(type(frame))
        if handler is None:
            return False
        answered = session.connection.request_answered
        session.spawn(partial(self._answer, session, frame, handler), frame.rid, answered)
        return True

    async def dead_token(self, address: MailboxAddress) -> str | None:
        """Why the provider takes the device's token no more; None: it does, or nobody knows in time."""
        if not self._devices.providers:
            return None
        try:
            async with asyncio.timeout(DEAD_TOKEN_S):
                return await self._devices.dead_reason(*address[:3])
        except (StoreError, TimeoutError) as error:
            log.info("whether a push token is dead is left out: %s", error or "no answer in time")
            return None

    async def _answer(
        self, session: ListSession, frame: Any, handler: Callable[[MailboxAddress, Any], Awaitable[None]]
    ) -> None:
        await handler(session.address, frame)
        answer = await self._state(session.address, frame.rid)
        session.connection.request_answered()
        session.send(answer)

    async def _state(self, address: MailboxAddress, rid: int) -> ServerFrame:
        user = (address.tenant_id, address.user_id)
        devices, settings = await asyncio.gather(self._devices.devices(*user), self._devices.settings(*user))
        rows = [
            PushRegistration(one.device_id, one.provider, one.app or None, one.dead or None)
            for one in devices
        ]
        quiet = [None if one == NO_HOURS else one for one in settings[2:4]]
        return PushState(rid, rows, quiet[0], quiet[1], settings.time_zone, settings.mentions_break_quiet)

    async def _register(self, address: MailboxAddress, frame: RegisterPush) -> None:
        await self._devices.register(
            PushDevice(
                address.tenant_id,
                address.user_id,
                address.ordinal,
                address.device_id,
                frame.provider,
                frame.app or "",
                frame.token,
                0,
            )
        )

    async def _unregister(self, address: MailboxAddress, frame: UnregisterPush) -> None:
        await self._devices.unregister(
            address.tenant_id, address.user_id, frame.device_id or address.device_id
        )

    async def _set(self, address: MailboxAddress, frame: SetPushSettings) -> None:
        quiet = (frame.quiet_from_min, frame.quiet_to_min)
        begin, end = (NO_HOURS, NO_HOURS) if quiet[0] is None or quiet[1] is None else (quiet[0], quiet[1])
        await self._devices.change_settings(
            PushSettings(
                address.tenant_id, address.user_id, begin, end, frame.time_zone, frame.mentions_break_quiet
            )
        )


async def _nothing(address: MailboxAddress, frame: GetPush) -> None:
    """GET_PUSH changes nothing."""
