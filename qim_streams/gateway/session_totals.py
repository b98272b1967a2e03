"""What is unread in all, told to devices: in AUTH_OK, when they ask, and a moment after a change of the user.

After a change all devices of the user are told, on whichever gateway, by a frame with absolute values. What
is changed while a count is under way, or within `MOMENT_S`, is counted once more, together: a storm of marks
costs a few counts a second. New messages and recalls come to devices as events; who shows a badge asks again.

Invariants: totals never hold up a sign-on for more than `AT_SIGN_ON_S`, and say that they are not complete
instead; a count that is told begins after the change that it is told for.

Spec: §7 (AUTH_OK), §9.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from qim_streams.errors import AdmissionRefused, QimError, StoreError
from qim_streams.gateway.session_rows import totals_frame
from qim_streams.gateway.signals import SignalBus
from qim_streams.gateway.soon import Soon
from qim_streams.sessions.badges import Badges, UserTotals
from qim_streams.sessions.ports import SessionUser, user_of
from qim_streams.sessions.rules import Totals
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire import MSGPACK
from qim_streams.wire.frames_sessions import SessionTotals

log = logging.getLogger(__name__)

AT_SIGN_ON_S: Final = 0.25
AT_ONCE_MAX: Final = 16  # counts of sign-ons
PER_S_MAX: Final = 100  # in a storm of sign-ons the others hear that nothing is complete
MOMENT_S: Final = 0.1
CHANGED_MAX: Final = 10_000  # users that wait to be counted; more are told with their next change
COUNTED_MAX: Final = 16  # of them together
UNKNOWN: Final = UserTotals(-1, 0, Totals(0, 0, 0, False))


class SessionTotalsTeller:
    """Totals of the users of a gateway."""

    def __init__(self, badges: Badges, bus: SignalBus, now_ms: Callable[[], int]) -> None:
        self._badges, self._bus, self._now_ms = badges, bus, now_ms
        self._counting = 0
        self._second, self._left = 0, PER_S_MAX
        self._changed: Soon[SessionUser, int] = Soon(
            "session-totals", self._tell, moment_s=MOMENT_S, together=COUNTED_MAX, most=CHANGED_MAX
        )

    async def at_sign_on(self, address: MailboxAddress) -> UserTotals:
        """The totals of AUTH_OK, or that they are not known: a sign-on waits for no store that is slow."""
        second = self._now_ms() // 1_000
        if second != self._second:
            self._second, self._left = second, PER_S_MAX
        if self._counting >= AT_ONCE_MAX or not self._left:
            return UNKNOWN
        self._counting += 1
        self._left -= 1
        try:
            async with asyncio.timeout(AT_SIGN_ON_S):
                return await self._badges.totals(user_of(address), address.shard)
        except (StoreError, TimeoutError, AdmissionRefused) as error:
            log.info("totals of a sign-on are left out: %s", str(error) or "no answer in time")
            return UNKNOWN
        finally:
            self._counting -= 1

    async def frame(self, address: MailboxAddress, rid: int) -> SessionTotals:
        """The answer to a GET_SESSION_TOTALS. StoreError: ask again later."""
        return totals_frame(await self._badges.totals(user_of(address), address.shard), rid)

    def changed(self, user: SessionUser, shard: int) -> None:
        """The user has changed something: count soon, and tell his devices. Never waits."""
        self._changed.put(user, shard)

    async def _tell(self, user: SessionUser, shard: int) -> None:
        try:
            found = await self._badges.totals(user, shard)
        except QimError as error:
            log.info("totals after a change are left out: %s", error)
            return
        self._bus.tell(user, "", MSGPACK.encode(totals_frame(found)))

    async def close(self) -> None:
        """Give up what is under way."""
        await self._changed.close()
