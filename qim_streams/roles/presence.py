"""Presence as users see it put together on the real stores, for the gateway.

Spec: §6.
"""

from typing import Final

from qim_streams.gateway.presence_watch import PresenceWatches
from qim_streams.gateway.signals import SignalBus
from qim_streams.presence.book import REFRESHES_MISSED
from qim_streams.presence.redis_book import RedisPresenceBook
from qim_streams.redis_tier import RedisClient
from qim_streams.runtime import now_ms
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
