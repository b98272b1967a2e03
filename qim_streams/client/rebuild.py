"""Closing what a device missed from history, conversation by conversation, while live events queue.

The steps of the contract, and where they are: (0) AUTH with an empty cursor and the fresh cursor of (6)
are the session's; (1) kept messages stay; (2) the set of conversations comes from a `ConversationSet`;
(3) per conversation pages of history follow the last kept message until there are no more, deduplicated
by message; (7) what arrives for a conversation meanwhile waits in the inbox and comes out after it.
Unread counts and mentions (4, 5) belong to the session list.

Invariants: a conversation shows nothing new until its history ends or is given up with a marked `Gap`;
progress is kept with each page, so a process that is killed goes on with the page after; at most
`readers` conversations are read at a time. A conversation that is met later and may have a past is read
the same way.

Spec: §8 (1) (2) (3) (7). Scenarios A10 A11 A16 C7 E10.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from qim_streams.client.backoff import backoff_ms
from qim_streams.client.conversations import ConversationSet
from qim_streams.client.deliveries import Gap, HistoryClosed, RebuildFinished, RebuildStarted
from qim_streams.client.options import ClientOptions
from qim_streams.client.requests import Requests
from qim_streams.client.session import Session
from qim_streams.client.store import Rebuild
from qim_streams.errors import AdmissionRefused
from qim_streams.wire.frames import HistoryBreak, HistoryPage, PullHistory

BREAKS_MAX = 64  # that are reported of one conversation
RETRY_BASE_MS = 200
RETRY_CAP_MS = 10_000
UNREADABLE = "unreadable"


@dataclass(slots=True)
class _Reading:
    """One conversation while its history is read."""

    name: str
    messages: int = 0
    breaks: list[HistoryBreak] = field(default_factory=list)


class Rebuilder:
    """Reads what `session` has open. `changed` is called after each step, so that it is kept and shown."""

    def __init__(
        self,
        session: Session,
        requests: Requests,
        conversations: ConversationSet,
        options: ClientOptions,
        changed: Callable[[], None],
        random: Callable[[], float],
    ) -> None:
        self._session, self._requests, self._conversations = session, requests, conversations
        self._options, self._changed, self._random = options, changed, random
        self._gaps: list[Gap] = []

    @property
    def is_due(self) -> bool:
        """Whether there is something to read."""
        return self._session.rebuild is Rebuild.REQUIRED or bool(self._session.inbox.history)

    async def run(self) -> None:
        """Read until nothing is open. ClientStopped when the client ends first."""
        attempt = 0
        while self.is_due:
            try:
                await self._run_once()
                attempt = 0
            except (TimeoutError, AdmissionRefused):  # of the set of conversations: try again later
                attempt += 1
                await asyncio.sleep(backoff_ms(attempt, RETRY_BASE_MS, RETRY_CAP_MS, self._random()) / 1_000)

    async def _run_once(self) -> None:
        session = self._session
        announced = session.rebuild is Rebuild.REQUIRED
        complete = False
        if announced:
            found = await self._conversations.conversations()
            complete = found.complete
            for name in sorted(found.ids - session.inbox.positions().keys()):
                session.inbox.open_history(name)
            session.shown.append(RebuildStarted(len(session.inbox.history)))
            self._changed()
        await self._read_all()
        if announced and session.rebuild is Rebuild.REQUIRED and not session.inbox.history:
            gaps, self._gaps = tuple(self._gaps), []
            # Unless the set was complete, a conversation that is met later may have a past.
            session.rebuild = Rebuild.NONE if complete else Rebuild.PARTIAL
            session.inbox.reads_unknown = not complete
            session.shown.append(RebuildFinished(gaps, complete))
            self._changed()

    async def _read_all(self) -> None:
        names = deque(self._session.inbox.history)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._options.history_readers, len(names))):
                    group.create_task(self._read_some(names))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _read_some(self, names: deque[str]) -> None:
        while names:
            name = names.popleft()
            reading = _Reading(name)
            reason = await self._read(reading)
            gap = self._session.close_history(name, reason)
            if gap is not None:
                self._gaps.append(gap)
            left = len(self._session.inbox.history)
            closed = HistoryClosed(name, reading.messages, tuple(reading.breaks[:BREAKS_MAX]), left)
            self._session.shown.append(closed)
            self._changed()

    async def _read(self, reading: _Reading) -> str | None:
        """Read a conversation to its end (None), or to where it cannot be read any further (why)."""
        inbox, name = self._session.inbox, reading.name
        attempt = 0
        while True:
            after = inbox.history[name]
            page = await self._page(name, after)
            if isinstance(page, str):
                return page
            if page.next_anchor < after or (page.has_more and page.next_anchor == after):
                return "NO_PROGRESS"
            self._take(reading, page)
            if page.has_more:
                attempt = 0
                if reading.messages >= self._options.history_messages_max:
                    return "LIMIT"
            elif not inbox.lacks(name):
                return None
            else:  # history is behind what arrived meanwhile
                attempt += 1
                if attempt > 8:
                    return "HISTORY_BEHIND"
                await asyncio.sleep(backoff_ms(attempt, RETRY_BASE_MS, RETRY_CAP_MS, self._random()) / 1_000)

    def _take(self, reading: _Reading, page: HistoryPage) -> None:
        reading.messages += len(page.messages)
        reading.breaks += page.breaks
        self._session.take_history(reading.name, page.messages, page.next_anchor)
        for one in page.breaks:
            if one.reason == UNREADABLE:
                gap = Gap(reading.name, one.from_seq - 1, one.to_seq + 1, UNREADABLE)
                self._session.gaps.append(gap)
                self._gaps.append(gap)
        self._changed()

    async def _page(self, name: str, after: int) -> HistoryPage | str:
        """The next page, or why there will be none."""
        session, limit, patience_s = (
            self._session,
            self._options.history_page,
            self._options.history_patience_s,
        )
        while True:
            await self._requests.ready()
            connection = session.auth
            try:
                return await self._requests.ask(
                    lambda rid: PullHistory(rid, name, "newer", after, limit), HistoryPage, patience_s
                )
            except AdmissionRefused as refused:
                return refused.code
            except TimeoutError:
                if session.auth is connection:  # it was there all the time and never answered
                    return "TIMEOUT"
