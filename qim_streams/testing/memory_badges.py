"""Badges as they were set: the fake of `BadgeReader` for those who build notifications.

Spec: §9.
"""

from collections.abc import Mapping, Sequence

from qim_streams.errors import StoreUnavailable
from qim_streams.sessions.badge_ports import Badge, BadgeQuery

NOTHING = Badge(0, True)


class MemoryBadges:
    """`known` by (tenant, user); others have nothing. `unavailable`: calls fail as with a lost store."""

    def __init__(self, known: Mapping[tuple[str, str], Badge] | None = None) -> None:
        self.known = dict(known or {})
        self.asked: list[BadgeQuery] = []
        self.unavailable = False

    async def badges(self, wanted: Sequence[BadgeQuery]) -> list[Badge]:
        """See the port."""
        if self.unavailable:
            raise StoreUnavailable("memory: badges are unavailable")
        self.asked += wanted
        return [self.known.get((one.user.tenant_id, one.user.user_id), NOTHING) for one in wanted]
