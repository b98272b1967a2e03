"""PresenceWatches: members of conversations see who is online. Not the way of pushes (`gateway.presence`).

A session that watches somebody listens to that user's channel; what changes is collected for a moment and
goes out in one frame with absolute values, whatever came and went meanwhile. Nobody says that notes of a
gateway that died have run out, and a signal may be lost: all that is watched here is looked up again now
and then.

Invariants: only members of a conversation see members of it; a connection watches at most
`limits.PRESENCE_WATCHED_MAX` users; what waits to be noted is one note per device, the last one.

Spec: §6.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from qim_streams import failpoints, limits
from qim_streams.errors import AdmissionRefused, StoreError
from qim_streams.gateway.ports import DeviceKey
from qim_streams.gateway.presence import Notice, Said
from qim_streams.gateway.session_ports import FrameService, ListSession
from qim_streams.gateway.signals import SignalBus
from qim_streams.presence.book import PresenceBook, Seen, Sight
from qim_streams.sessions.ports import SessionUser, user_of
from qim_streams.sessions.receipts import MemberPages
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire import MSGPACK
from qim_streams.wire.frames_presence import (
    PresenceStates,
    SetVisibility,
    UserPresence,
    Visibility,
    WatchPresence,
)

log = logging.getLogger(__name__)

CHANNEL: Final = "seen"
PAGE: Final = 500
NOTES_MAX: Final = 1_000  # devices in one call of the book
AGAIN_S: Final = 1.0  # after a book that was away


class _Watch(NamedTuple):
    """One user that one session watches."""

    user: SessionUser
    conversations: set[str]
    receive: Callable[[str, bytes], object]


class _Watcher:
    """What one session watches, and what it is to be told next."""

    def __init__(self, session: ListSession) -> None:
        self.session = session
        self.watched: dict[str, _Watch] = {}  # by user id
        self.news: dict[str, UserPresence] = {}
        self.told: dict[str, UserPresence] = {}
        self.timer: asyncio.TimerHandle | None = None


class Watches(FrameService, Protocol):
    """What sessions need of `PresenceWatches`, and the gateway to run it."""

    def left(self, session: ListSession) -> None:
        """The session is over: it watches nobody. Safe to repeat."""

    async def run(self) -> None:
        """Work until cancelled."""


class NoWatches:
    """Nobody watches anybody, where presence is not wanted."""

    def handle(self, session: ListSession, frame: Any) -> bool:
        """No frame is one of presence."""
        return False

    def left(self, session: ListSession) -> None:
        """Nothing ends."""

    async def run(self) -> None:
        """There is nothing to do, for ever."""
        await asyncio.Event().wait()


class PresenceWatches:
    """What all sessions of a gateway share of presence. `run` is its task."""

    def __init__(
        self,
        book: PresenceBook,
        bus: SignalBus,
        members: MemberPages,
        now_ms: Callable[[], int],
        *,
        hold_ms: int,
        collect_s: float,
        look_again_s: float,
    ) -> None:
        """`hold_ms`: how long a note of a device holds. `collect_s`: how long changes are collected."""
        self._book, self._bus, self._members, self._now_ms = book, bus, members, now_ms
        self._hold_ms, self._collect_s, self._look_again_s = hold_ms, collect_s, look_again_s
        self._watchers: dict[ListSession, _Watcher] = {}
        self._notes: dict[DeviceKey, tuple[int, bool]] = {}  # ordinal, whether it is there
        self._wake = asyncio.Event()
        self._handlers: dict[type, Callable[[ListSession, Any], Any]] = {
            WatchPresence: self._watch,
            SetVisibility: self._set_visibility,
        }

    # -- from sessions and from what is said of devices

    def handle(self, session: ListSession, frame: Any) -> bool:
        """Answer a frame of presence from a task; False for any other frame."""
        handler = self._handlers.get(type(frame))
        if handler is None:
            return False
        session.spawn(partial(handler, session, frame), frame.rid, session.connection.request_answered)
        return True

    def left(self, session: ListSession) -> None:
        """The session is over: it watches nobody. Safe to repeat."""
        watcher = self._watchers.pop(session, None)
        if watcher is None:
            return
        if watcher.timer is not None:
            watcher.timer.cancel()
        for watch in watcher.watched.values():
            self._bus.unlisten(watch.user, watch.receive, CHANNEL)

    def heard(self, notices: Sequence[tuple[DeviceKey, Notice]]) -> None:
        """What was said about devices of this gateway."""
        for device, notice in notices:
            self._notes[device] = (notice.ordinal, notice.said is not Said.GONE)
        if notices:
            self._wake.set()

    # -- notes

    async def run(self) -> None:
        """Note devices as they come and go, and look again at who is watched; for ever."""
        await asyncio.gather(self._keep_noting(), self._keep_looking())

    async def _keep_noting(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._note_some()
            except StoreError as error:
                log.warning("presence is not noted for a moment: %s", error)
                await asyncio.sleep(AGAIN_S)
                self._wake.set()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._look_again_s)
            try:
                await self._look_again()
            except StoreError as error:
                log.warning("presence is not looked up for a moment: %s", error)

    async def _note_some(self) -> None:
        while self._notes:
            some = list(self._notes)[:NOTES_MAX]
            notes = [(device, *self._notes[device]) for device in some]
            now = self._now_ms()
            sights = [
                Sight(
                    SessionUser(device.tenant_id, device.user_id, ordinal),
                    device.device_id,
                    now + self._hold_ms if there else 0,
                )
                for device, ordinal, there in notes
            ]
            changes = await self._book.note(sights, now)
            failpoints.hit("gateway.presence_noted")
            for device, ordinal, there in notes:
                if self._notes.get(device) == (ordinal, there):  # else something was said meanwhile
                    del self._notes[device]
            for sight, seen in zip(sights, changes, strict=True):
                if seen is not None:
                    self._tell(sight.user, seen)

    def _tell(self, user: SessionUser, seen: Seen) -> None:
        data = MSGPACK.encode(PresenceStates([_shown(user.user_id, seen)]))
        self._bus.tell(user, "", data, CHANNEL)

    async def _look_again(self) -> None:
        """Correct what no signal told: notes that ran out, signals that were lost."""
        wanted = {watch.user for watcher in self._watchers.values() for watch in watcher.watched.values()}
        users = list(wanted)
        for begin in range(0, len(users), NOTES_MAX):
            part = users[begin : begin + NOTES_MAX]
            seen = dict(zip(part, await self._book.seen(part, self._now_ms()), strict=True))
            for watcher in list(self._watchers.values()):
                for watch in watcher.watched.values():
                    if watch.user in seen:
                        self._news(watcher, _shown(watch.user.user_id, seen[watch.user]))

    # -- watching

    async def _watch(self, session: ListSession, frame: WatchPresence) -> None:
        users = await self._members_of(session.address, frame.conversation_id, frame.user_ids)
        watcher = self._watchers.setdefault(session, _Watcher(session))
        self._replace(watcher, frame.conversation_id, users)
        seen = await self._book.seen(users, self._now_ms())
        states = [_shown(user.user_id, one) for user, one in zip(users, seen, strict=True)]
        for state in states:
            watcher.told[state.user_id] = state
        session.connection.request_answered()
        session.send(PresenceStates(states, frame.rid))

    async def _members_of(
        self, address: MailboxAddress, conversation_id: str, user_ids: Sequence[str]
    ) -> list[SessionUser]:
        """Those of `user_ids` that are members; AdmissionRefused when the asker is none."""
        wanted, found = {address.user_id, *user_ids}, dict[str, SessionUser]()
        after = ""
        for _ in range(limits.PRESENCE_MEMBERS_MAX // PAGE):
            page = await self._members.page(address.tenant_id, conversation_id, after, PAGE)
            for one in page:
                if one.active and one.user_id in wanted:
                    found[one.user_id] = SessionUser(address.tenant_id, one.user_id, one.ordinal)
            if len(page) < PAGE or len(found) == len(wanted):
                break
            after = page[-1].user_id
        if address.user_id not in found:
            raise AdmissionRefused("NOT_MEMBER", "only members see who is online")
        return [found[user_id] for user_id in dict.fromkeys(user_ids) if user_id in found]

    def _replace(self, watcher: _Watcher, conversation_id: str, users: Sequence[SessionUser]) -> None:
        wanted = {user.user_id for user in users}
        others = [
            user_id
            for user_id, watch in watcher.watched.items()
            if user_id in wanted or watch.conversations - {conversation_id}
        ]
        if len(wanted.union(others)) > limits.PRESENCE_WATCHED_MAX:
            most = limits.PRESENCE_WATCHED_MAX
            raise AdmissionRefused("FIELD_INVALID", f"user_ids: a connection watches {most} users at most")
        for user_id, watch in list(watcher.watched.items()):
            if user_id not in wanted:
                watch.conversations.discard(conversation_id)
                if not watch.conversations:
                    self._unwatch(watcher, user_id)
        for user in users:
            there = watcher.watched.get(user.user_id)
            if there is not None:
                there.conversations.add(conversation_id)
                continue
            receive = partial(self._signalled, watcher)
            watcher.watched[user.user_id] = _Watch(user, {conversation_id}, receive)
            self._bus.listen(user, receive, CHANNEL)

    def _unwatch(self, watcher: _Watcher, user_id: str) -> None:
        watch = watcher.watched.pop(user_id)
        watcher.news.pop(user_id, None)
        watcher.told.pop(user_id, None)
        self._bus.unlisten(watch.user, watch.receive, CHANNEL)

    def _signalled(self, watcher: _Watcher, but_device: str, data: bytes) -> None:
        frame = MSGPACK.decode_server(data)
        if isinstance(frame, PresenceStates):
            for state in frame.users:
                if state.user_id in watcher.watched:
                    self._news(watcher, state)

    def _news(self, watcher: _Watcher, state: UserPresence) -> None:
        """Tell it soon, unless it is what was told last."""
        if watcher.news.get(state.user_id, watcher.told.get(state.user_id)) == state:
            return
        watcher.news[state.user_id] = state
        if watcher.timer is None:
            watcher.timer = asyncio.get_running_loop().call_later(self._collect_s, self._tell_news, watcher)

    def _tell_news(self, watcher: _Watcher) -> None:
        watcher.timer = None
        news, watcher.news = watcher.news, {}
        changed = [state for user_id, state in news.items() if watcher.told.get(user_id) != state]
        watcher.told |= news
        if changed:
            watcher.session.send(PresenceStates(changed))

    async def _set_visibility(self, session: ListSession, frame: SetVisibility) -> None:
        user = user_of(session.address)
        seen = await self._book.set_visible(user, frame.visible, self._now_ms())
        if seen is not None:
            self._tell(user, seen)
        session.connection.request_answered()
        session.send(Visibility(frame.rid, frame.visible))


def _shown(user_id: str, seen: Seen) -> UserPresence:
    return UserPresence(user_id, seen.online, seen.last_seen_ms or None)
