"""What is done about sessions as time passes: deadlines, silence, stalled sockets, presence.

One pass over all sockets, at most once per second, instead of timers for each.

* not authenticated within `auth_deadline_s`: AUTH_TIMEOUT; nothing heard for `idle_timeout_ms`:
  IDLE_TIMEOUT; nothing could be written for that long: the connection is aborted;
* presence is written again after half to all of `presence_refresh_s`, at random for each session: devices
  that came together are not refreshed together. It is written anew when no PresenceReady came in time. At
  the same time the device's newest session_epoch is read: a session that was replaced on another gateway
  ends with SESSION_REPLACED, one that another device's login ended with LOGGED_IN_ELSEWHERE.

Spec: §6, §7.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from qim_streams.errors import StoreError
from qim_streams.gateway.server import GatewayServer, Socket
from qim_streams.gateway.services import Services
from qim_streams.gateway.session import ClientSession

log = logging.getLogger(__name__)

SWEEP_S_MAX: Final = 1.0
READY_WAIT_S: Final = 5.0  # until a presence that nobody answered is written anew; doubles
READY_WAIT_DOUBLINGS_MAX: Final = 4
REFRESHED_MAX: Final = 500  # sessions in one look at their epochs


class Sweeper:
    """`run` is its task."""

    def __init__(self, services: Services, server: GatewayServer) -> None:
        self._all, self._server = services, server
        self._loop = asyncio.get_running_loop()
        settings = services.settings
        shortest_s = min(
            settings.auth_deadline_s, settings.idle_timeout_ms / 1_000, settings.presence_refresh_s
        )
        self._every_s = min(SWEEP_S_MAX, shortest_s / 5)

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.sweep(self._loop.time())
            except Exception:
                # The next pass tries again; a deadline that is missed by one pass harms nobody.
                log.exception("a sweep failed")

    def look_again(self) -> None:
        """Signals were lost: look soon at all sessions that another device may have ended."""
        sessions: list[ClientSession] = self._all.registry.sessions()
        for session in sessions:
            if session.endable:
                session.refresh_at = 0.0

    async def sweep(self, now: float) -> None:
        """One pass at loop time `now`."""
        self._server.close_strangers(now)
        for socket in list(self._server.sockets):
            self._check(socket, now)
        sessions: list[ClientSession] = self._all.registry.sessions()
        self._all.counters.sessions = len(sessions)
        if self._all.registry.has_shard:
            self._announce_again(sessions, now)
        due = [session for session in sessions if now >= session.refresh_at]
        for start in range(0, len(due), REFRESHED_MAX):
            await self._refresh(due[start : start + REFRESHED_MAX], now)

    def _check(self, socket: Socket, now: float) -> None:
        session, settings = socket.session, self._all.settings
        idle_s = settings.idle_timeout_ms / 1_000
        stalled_at = session.outbound.stalled_at
        if stalled_at is not None and now - stalled_at > idle_s:
            self._all.counters.idle_closed += 1
            socket.abort()
        elif session.is_open and not session.connection.authenticated:
            if now - session.opened_at > settings.auth_deadline_s:
                session.fail("AUTH_TIMEOUT", f"no AUTH_OK within {settings.auth_deadline_s} s")
        elif session.is_open and now - session.heard_at > idle_s and not session.outbound.is_full:
            self._all.counters.idle_closed += 1
            session.fail("IDLE_TIMEOUT", "nothing came for too long")

    def _announce_again(self, sessions: Sequence[ClientSession], now: float) -> None:
        for session in sessions:
            if session.feed is None or session.feed.stream.is_ready:
                session.ready_tries = 0
                continue
            wait_s = READY_WAIT_S * 2 ** min(session.ready_tries, READY_WAIT_DOUBLINGS_MAX)
            if now - session.announced_at > wait_s:
                session.ready_tries += 1
                self._all.counters.presence_repeated += 1
                session.announce(anew=True)

    async def _refresh(self, sessions: Sequence[ClientSession], now: float) -> None:
        for session in sessions:
            session.refresh_at = self._all.next_refresh(now)
        try:
            newest = await self._all.devices.touch([one.device for one in sessions], self._all.now_ms())
        except StoreError as error:
            log.warning("%d sessions were not looked at: %s", len(sessions), error)
            return
        for session, (epoch, by) in zip(sessions, newest, strict=True):
            if by and epoch == session.session_epoch:
                session.end_login(by)
            elif epoch > session.session_epoch:
                self._all.counters.sessions_replaced += 1
                session.fail("SESSION_REPLACED", "this device has connected again")
            elif session.is_open:
                session.announce()
