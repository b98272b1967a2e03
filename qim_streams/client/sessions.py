"""The session list as an application uses it::

    rows = await client.sessions.load()
    await client.sessions.mark_read("team", 42)
    client.sessions.on_change = redraw
    client.sessions.badge.on_change = lambda badge: show(badge.unread)

`book` is kept up to date by pages, by answers to own changes and by what other devices did. New messages
come as events; what is unread then is asked anew with `load`, or counted from `read_seq` by the application.

Invariants: every change may be repeated, and is, until it is answered; a delta is applied by the rule of
`session_book`.

Spec: §9.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from qim_streams import limits
from qim_streams.client.backoff import backoff_ms
from qim_streams.client.badge_watch import BadgeWatch
from qim_streams.client.conversations import Conversations, KnownConversations
from qim_streams.client.requests import Requests
from qim_streams.client.session_book import SessionBook
from qim_streams.errors import AdmissionRefused
from qim_streams.wire.frames import ClientFrame
from qim_streams.wire.frames_sessions import (
    ClearConversation,
    DeleteMessages,
    GetReadCount,
    HideConversation,
    MarkRead,
    PullSessionList,
    ReadCount,
    ReadReceipt,
    SessionDelta,
    SessionList,
    SessionRow,
    SessionState,
    SetMute,
    SetPin,
    Typing,
    UserTyping,
)

if TYPE_CHECKING:
    from qim_streams.client.session import Session

Only = Literal["all", "every", "unread", "muted", "mentioned"]
PAGES_MAX: Final = 1_000
LISTED_ATTEMPTS_MAX: Final = 20  # about fifteen seconds
LISTED_RETRY_MS: Final = 100
LISTED_RETRY_CAP_MS: Final = 1_000


class Sessions:
    """A user's conversations.

    Calls raise AdmissionRefused (NO_CONVERSATION, NOT_MEMBER, FIELD_INVALID), ClientStopped, or TimeoutError
    when there is no answer: asking again is safe.
    """

    def __init__(self, session: "Session", requests: Requests) -> None:
        self._session, self._requests = session, requests
        self.book = SessionBook()
        self.badge = BadgeWatch(session, requests)
        self.on_change: Callable[[], object] | None = None
        self.on_typing: Callable[[str, str], object] | None = None  # conversation_id, user_id
        session.handlers[SessionDelta] = lambda frame: self._changed(self.book.take_delta(frame))
        session.handlers[UserTyping] = self._heard
        session.handlers[ReadReceipt] = lambda frame: self._changed(self.book.take_receipt(frame))

    async def page(
        self, cursor: str | None = None, *, limit: int = 100, only: Only = "all", pinned_first: bool = False
    ) -> SessionList:
        """One page; `next_cursor` of it is the cursor of the next. The book is not touched."""
        return await self._requests.ask(
            lambda rid: PullSessionList(rid, cursor, limit, only, pinned_first), SessionList
        )

    async def load(self) -> list[SessionRow]:
        """The whole list into the book: its rows, the newest first. At most `PAGES_MAX` pages."""
        page = await self.page(limit=limits.SESSION_PAGE_MAX)
        self.book.begin(page)
        for _ in range(PAGES_MAX):
            if page.next_cursor is None:
                break
            page = await self.page(page.next_cursor, limit=limits.SESSION_PAGE_MAX)
            self.book.take(page.rows)
        return sorted(self.book.rows.values(), key=lambda row: row.activity, reverse=True)

    async def mark_read(self, conversation_id: str, read_seq: int) -> SessionRow:
        """Read up to `read_seq`, inclusive; it never goes back. The conversation as it is now."""
        return await self._change(lambda rid: MarkRead(rid, conversation_id, read_seq))

    async def set_mute(self, conversation_id: str, muted: bool = True) -> SessionRow:
        """Mute or unmute."""
        return await self._change(lambda rid: SetMute(rid, conversation_id, muted))

    async def set_pin(self, conversation_id: str, pinned: bool = True) -> SessionRow:
        """Pin or unpin."""
        return await self._change(lambda rid: SetPin(rid, conversation_id, pinned))

    async def hide(self, conversation_id: str, hidden: bool = True) -> SessionRow:
        """Off the list until the next message, or back."""
        return await self._change(lambda rid: HideConversation(rid, conversation_id, hidden))

    async def delete_messages(self, conversation_id: str, seqs: Sequence[int]) -> SessionRow:
        """Delete messages for this user, at most `limits.DELETE_SEQS_MAX` of them."""
        wanted = list(seqs)
        return await self._change(lambda rid: DeleteMessages(rid, conversation_id, wanted))

    async def clear(
        self, conversation_id: str, up_to_seq: int | None = None, *, hidden: bool = False
    ) -> SessionRow:
        """Delete everything up to a seq (None: all) for this user; with `hidden` off the list, too."""
        return await self._change(lambda rid: ClearConversation(rid, conversation_id, up_to_seq, hidden))

    async def read_count(self, conversation_id: str, conversation_seq: int) -> ReadCount:
        """How many of the other members have read up to a message, and some of them by name."""
        return await self._requests.ask(
            lambda rid: GetReadCount(rid, conversation_id, conversation_seq), ReadCount
        )

    def typing(self, conversation_id: str) -> None:
        """The user is writing: others may hear, once in two seconds. Nothing while this device is offline."""
        if self._session.auth is not None:
            self._session.frames.append(Typing(self._session.next_rid(), conversation_id))
            self._requests.wake()

    async def close(self) -> None:
        """Stop what works in the background."""
        await self.badge.close()

    def _heard(self, frame: UserTyping) -> None:
        if self.on_typing is not None:
            self.on_typing(frame.conversation_id, frame.user_id)

    async def _change(self, make: Callable[[int], ClientFrame]) -> SessionRow:
        answer = await self._requests.ask(make, SessionState)
        self.book.take([answer.row])
        self._changed(True)
        return self.book.rows[answer.row.conversation_id]

    def _changed(self, changed: bool) -> None:
        if changed and self.on_change is not None:
            self.on_change()


class ListedConversations:
    """The `ConversationSet` of a rebuild: the session list, hidden conversations included (Spec: §8 (2)).

    What this device keeps is added. A server without a session list leaves `KnownConversations`.

    The list may be a moment behind the mailbox. What lies above its position comes as an event only if it is
    above this device's sync_to_seq as well, so it is asked for again until it has come as far (A16).
    """

    def __init__(self, session: "Session", requests: Requests) -> None:
        self._session, self._requests = session, requests
        self._known = KnownConversations(session, requests)

    async def conversations(self) -> Conversations:
        """See `ConversationSet.conversations`."""
        try:
            ids, complete = await self._listed()
        except AdmissionRefused:
            return await self._known.conversations()
        return Conversations(frozenset(ids | set(self._session.inbox.positions())), complete)

    async def _listed(self) -> tuple[set[str], bool]:
        for attempt in range(1, LISTED_ATTEMPTS_MAX + 1):
            found, complete, position = await self._pages()
            synced = self._session.auth
            if synced is None or position >= synced.sync_to_seq:
                return found, complete
            delay_ms = backoff_ms(attempt, LISTED_RETRY_MS, LISTED_RETRY_CAP_MS, 0.999)
            await asyncio.sleep(delay_ms / 1_000)
        return found, False

    async def _pages(self) -> tuple[set[str], bool, int]:
        """All ids, whether they are all, and the position of the first page."""
        found, complete, cursor, position = set[str](), True, None, -1
        for number in range(PAGES_MAX):
            page = await self._requests.ask(
                lambda rid, at=cursor: PullSessionList(rid, at, limits.SESSION_PAGE_MAX, "every"),  # type: ignore[misc]
                SessionList,
            )
            found |= {row.conversation_id for row in page.rows}
            complete, cursor = complete and page.projection_complete, page.next_cursor
            position = position if number else page.projection_mailbox_seq
            if cursor is None:
                return found, complete, position
        return found, False, position
