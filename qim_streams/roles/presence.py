"""Presence as users see it put together on the real stores, for the gateway and the admin API.

Spec: §6.
"""

from typing import Final

from qim_streams.console.directory import DeviceRow
from qim_streams.console.redis_index import RedisUserIndex
from qim_streams.gateway.presence_watch import PresenceWatches
from qim_streams.gateway.signals import SignalBus
from qim_streams.presence.book import REFRESHES_MISSED, Seen
from qim_streams.presence.redis_book import RedisPresenceBook
from qim_streams.redis_tier import RedisClient
from qim_streams.runtime import now_ms
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.receipts import MemberPages
from qim_streams.settings import Settings

COLLECT_S: Final = 0.5


def compose_watches(
    settings: Settings, redis: RedisClient, bus: SignalBus, members: MemberPages
) -> PresenceWatches:
    """Who is watched by whom in a gateway. `run` is to be run, `heard` to be told what is said of devices."""
    refresh_s = settings.presence_refresh_s
    return PresenceWatches(
        RedisPresenceBook(redis),
        bus,
        members,
        now_ms,
        hold_ms=round(refresh_s * REFRESHES_MISSED * 1_000),
        collect_s=COLLECT_S,
        look_again_s=refresh_s,
    )


class OperatorsPresence:
    """`api.ports.PresenceAdmin` on Redis."""

    def __init__(self, redis: RedisClient) -> None:
        self._users, self._book = RedisUserIndex(redis), RedisPresenceBook(redis)

    async def look(self, tenant_id: str, user_id: str) -> tuple[Seen, list[DeviceRow]] | None:
        """See the port."""
        ordinal = await self._users.ordinal(tenant_id, user_id)
        if ordinal is None:
            return None
        (seen,) = await self._book.seen([SessionUser(tenant_id, user_id, ordinal)], now_ms())
        return seen, await self._users.devices(tenant_id, user_id)
