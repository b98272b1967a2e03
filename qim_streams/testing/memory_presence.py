"""The book of presence in memory, for tests: held to the same suite as the one in Redis."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from qim_streams.presence.book import Seen, Sight
from qim_streams.sessions.ports import SessionUser


@dataclass
class _Page:
    devices: dict[str, int] = field(default_factory=dict)
    last: int = 0
    hidden: int | None = None

    def view(self, now_ms: int) -> Seen:
        """As others see the user."""
        if self.hidden is not None:
            return Seen(False, self.hidden)
        if any(until > now_ms for until in self.devices.values()):
            return Seen(True)
        return Seen(False, max([self.last, *self.devices.values()]))

    def settle(self, now_ms: int) -> None:
        """Drop notes that ran out."""
        self.last = max([self.last, *(until for until in self.devices.values() if until <= now_ms)])
        self.devices = {device: until for device, until in self.devices.items() if until > now_ms}


class MemoryPresenceBook:
    """`presence.book.PresenceBook` in memory."""

    def __init__(self) -> None:
        self._pages: dict[SessionUser, _Page] = {}

    async def note(self, sights: Sequence[Sight], now_ms: int) -> list[Seen | None]:
        """See the port."""
        return [self._note(one, now_ms) for one in sights]

    def _note(self, sight: Sight, now_ms: int) -> Seen | None:
        page = self._page(sight.user)
        page.settle(now_ms)
        before = page.view(now_ms)
        if sight.until_ms > now_ms:
            page.devices[sight.device_id] = sight.until_ms
        elif page.devices.pop(sight.device_id, None) is not None:
            page.last = now_ms
        after = page.view(now_ms)
        return after if after.online != before.online else None

    async def seen(self, users: Sequence[SessionUser], now_ms: int) -> list[Seen]:
        """See the port."""
        return [self._page(user).view(now_ms) for user in users]

    async def set_visible(self, user: SessionUser, visible: bool, now_ms: int) -> Seen | None:
        """See the port."""
        page = self._page(user)
        page.settle(now_ms)
        before = page.view(now_ms)
        if visible:
            page.hidden = None
        elif page.hidden is None:
            page.hidden = now_ms if before.online else page.last
        after = page.view(now_ms)
        return after if after.online != before.online else None

    def _page(self, user: SessionUser) -> _Page:
        return self._pages.setdefault(user, _Page())
