"""What is unread in all, kept current for an application that shows it::

    client.sessions.badge.on_change = lambda badge: icon.set(badge.unread)
    badge = await client.sessions.badge.refresh()

The server tells it after every change of the user, on any of his devices. Messages and recalls come as
events: while `on_change` is set, a moment after them it is asked for again, once for all.

Spec: §9.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from qim_streams.client.badge_book import Badge, BadgeBook
from qim_streams.client.requests import Requests
from qim_streams.errors import QimError
from qim_streams.wire.frames import AuthOk, MailboxBatch, OnlineReady, PushEvents
from qim_streams.wire.frames_sessions import GetSessionTotals, SessionTotals

if TYPE_CHECKING:
    from qim_streams.client.session import Session

log = logging.getLogger("qim.client")

MOMENT_S: Final = 0.3  # events come in bursts, and the list is about a tenth of a second behind them


class BadgeWatch:
    """The badge of one client. `on_change` gets the new value and must not block."""

    def __init__(self, session: "Session", requests: Requests) -> None:
        self._session, self._requests = session, requests
        self.book = BadgeBook()
        self.on_change: Callable[[Badge], object] | None = None
        self._stale = False
        self._task: asyncio.Task[None] | None = None
        session.handlers[SessionTotals] = self._on_totals
        _also(session, AuthOk, lambda frame: self._told(self.book.begin(frame)))
        for kind in (OnlineReady, PushEvents, MailboxBatch):
            _also(session, kind, self._is_stale)

    @property
    def value(self) -> Badge | None:
        """What was heard last; None: nothing yet."""
        return self.book.value

    async def refresh(self) -> Badge:
        """Ask now. Errors as those of `Sessions`."""
        asked_at = self.book.applied
        frame = await self._requests.ask(GetSessionTotals, SessionTotals)
        self._told(self.book.take(frame, asked_at))
        return self.book.value or Badge(0, 0, 0, False)

    async def close(self) -> None:
        """Stop asking."""
        self.on_change = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _on_totals(self, frame: SessionTotals) -> None:
        if frame.rid is not None:
            self._session.answered(frame)
        else:
            self._told(self.book.take(frame))

    def _told(self, changed: bool) -> None:
        if changed and self.on_change is not None and self.book.value is not None:
            self.on_change(self.book.value)

    def _is_stale(self, frame: Any) -> None:
        """Something came that may have changed it."""
        if self.on_change is None:
            return
        self._stale = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep_current(), name="qim-badge")

    async def _keep_current(self) -> None:
        try:
            while self._stale:
                await asyncio.sleep(MOMENT_S)
                self._stale = False
                await self.refresh()
        except (QimError, TimeoutError) as error:
            log.info("the badge stays as it is until the next event: %s", error)


def _also(session: "Session", kind: type, then: Callable[[Any], object]) -> None:
    """Call `then` with every frame of a kind, after the session has taken it."""
    first = session.handlers[kind]

    def both(frame: Any) -> None:
        first(frame)
        then(frame)

    session.handlers[kind] = both
