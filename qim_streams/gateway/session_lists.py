"""The session list between frames and `sessions`: requests of clients, signals to devices.

Invariants: who asks comes from the session, never from the frame.

Spec: §9.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from qim_streams.errors import QimError
from qim_streams.gateway.list_changes import ListChanges
from qim_streams.gateway.session_ports import ListSession
from qim_streams.gateway.session_rows import delta_frame, list_bytes, row_frame
from qim_streams.gateway.session_totals import SessionTotalsTeller
from qim_streams.gateway.signals import SignalBus
from qim_streams.membership.ports import OrdinalDirectory
from qim_streams.membership.rules import DIRECT
from qim_streams.sessions.actions import Actor, Changed, UserActions
from qim_streams.sessions.entering import Entering
from qim_streams.sessions.ports import SessionUser, user_of
from qim_streams.sessions.reading import ListQuery, SessionLists
from qim_streams.sessions.receipts import Receipts
from qim_streams.wire import MSGPACK
from qim_streams.wire.frames import ServerFrame
from qim_streams.wire.frames_sessions import (
    ClearConversation,
    DeleteMessages,
    GetReadCount,
    GetSessionTotals,
    HideConversation,
    MarkRead,
    PullSessionList,
    ReadCount,
    ReadReceipt,
    SessionState,
    SetMute,
    SetPin,
    Typing,
    UserTyping,
)

log = logging.getLogger(__name__)

BACKGROUND_MAX: Final = 64  # things that nobody waits for, at once; more are left out
Change = Callable[[Actor, Any], Awaitable[Changed]]


class SessionListFrames:
    """What all sessions of a gateway share of the session list."""

    def __init__(
        self,
        lists: SessionLists,
        actions: UserActions,
        receipts: Receipts,
        bus: SignalBus,
        totals: SessionTotalsTeller,
        changes: ListChanges,
        ordinals: OrdinalDirectory,
        entering: Entering,
    ) -> None:
        self.lists, self.actions, self.bus, self.totals = lists, actions, bus, totals
        self.changes, self.entering = changes, entering
        self._receipts, self._ordinals = receipts, ordinals
        self._changes = _changes_of(actions)
        self._working: set[asyncio.Task[None]] = set()

    def handle(self, session: ListSession, frame: Any) -> bool:
        """Answer a frame of the session list, now or from a task; False for any other frame."""
        if type(frame) is Typing:
            self._type(session, frame)
            return True
        if type(frame) is GetReadCount:
            _answer(session, frame.rid, partial(self._count, session, frame))
            return True
        if type(frame) is PullSessionList:
            session.spawn(partial(self._page, session, frame), frame.rid, session.connection.request_answered)
            return True
        if type(frame) is GetSessionTotals:
            _answer(session, frame.rid, partial(self.totals.frame, session.address, frame.rid))
            return True
        change = self._changes.get(type(frame))
        if change is None:
            return False
        address = session.address
        actor = Actor(user_of(address), address.shard, address.device_id)
        _answer(session, frame.rid, partial(_changed, change, actor, frame))
        return True

    async def _page(self, session: ListSession, frame: PullSessionList) -> None:
        address = session.address
        query = ListQuery(frame.cursor, frame.limit, frame.only, frame.pinned_first)
        page = await self.lists.page(user_of(address), address.shard, query)
        session.connection.request_answered()
        session.send_encoded(lambda codec: list_bytes(codec, frame.rid, page))

    async def _count(self, session: ListSession, frame: GetReadCount) -> ServerFrame:
        found = await self._receipts.readers(
            user_of(session.address), frame.conversation_id, frame.conversation_seq
        )
        return ReadCount(frame.rid, frame.conversation_id, frame.conversation_seq, *found)

    def _type(self, session: ListSession, frame: Typing) -> None:
        user = user_of(session.address)
        if len(self._working) < BACKGROUND_MAX and self._receipts.may_type(user, frame.conversation_id):
            self._background(self._tell_typing(user, frame.conversation_id))

    async def _tell_typing(self, user: SessionUser, conversation_id: str) -> None:
        data = MSGPACK.encode(UserTyping(conversation_id, user.user_id))
        for other in await self._receipts.audience(user, conversation_id):
            self.bus.tell(other, "", data)

    # -- signals

    def tell(self, actor: Actor, changed: Changed) -> None:
        """A state has changed: tell the user's other devices, and after reading the direct chat's peer.

        A moment later all of the user's devices are told what is unread now.
        """
        self.totals.changed(actor.user, actor.shard)
        frame = delta_frame(changed.mailbox_seq, changed.order, [changed.row])
        self.bus.tell(actor.user, actor.device_id, MSGPACK.encode(frame))
        view = changed.row.view
        if changed.has_read and view.kind == DIRECT and view.peer_id is not None:
            receipt = ReadReceipt(view.conversation_id, actor.user.user_id, view.state.read_seq)
            self._background(self._tell_peer(actor.user.tenant_id, view.peer_id, MSGPACK.encode(receipt)))

    async def _tell_peer(self, tenant_id: str, peer_id: str, data: bytes) -> None:
        (ordinal,) = await self._ordinals.find(tenant_id, [peer_id])
        if ordinal is not None:
            self.bus.tell(SessionUser(tenant_id, peer_id, ordinal), "", data)

    def _background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._guarded(work))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except QimError as error:
            log.info("a signal is left out: %s", error)

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await self.changes.close()
        await self.totals.close()
        await self.actions.close()


def _changes_of(do: UserActions) -> dict[type, Change]:
    """What to do for each frame that changes something."""
    return {
        MarkRead: lambda actor, f: do.mark_read(actor, f.conversation_id, f.read_seq),
        SetMute: lambda actor, f: do.set_mute(actor, f.conversation_id, f.muted),
        SetPin: lambda actor, f: do.set_pin(actor, f.conversation_id, f.pinned),
        HideConversation: lambda actor, f: do.hide(actor, f.conversation_id, f.hidden),
        DeleteMessages: lambda actor, f: do.delete_messages(actor, f.conversation_id, f.seqs),
        ClearConversation: lambda actor, f: do.clear(actor, f.conversation_id, f.up_to_seq, f.hidden),
    }


async def _changed(change: Change, actor: Actor, frame: Any) -> ServerFrame:
    changed = await change(actor, frame)
    return SessionState(frame.rid, row_frame(changed.row), changed.mailbox_seq)


def _answer(session: ListSession, rid: int, work: Callable[[], Awaitable[ServerFrame]]) -> None:
    async def answered() -> None:
        frame = await work()
        session.connection.request_answered()
        session.send(frame)

    session.spawn(answered, rid, session.connection.request_answered)
