"""RoomSeat: the rooms of one connection: its requests about them, and what waits to be written of them.

A reader that is slow costs itself: room frames are written while little else waits for the socket; beyond
that they wait here, merged, and over the bound the oldest go, which the numbers show. Events wait too, but
are never dropped: a connection that would lose one is closed, and its device enters again and is told.

Invariants: who asks comes from the session, never from a frame; every request is answered once; nothing here
waits for another connection.

Spec: §10.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, Protocol

from aiohttp import WSCloseCode

from qim_streams import limits
from qim_streams.errors import AdmissionRefused, Outcome, StoreError
from qim_streams.gateway import room_metrics as metrics
from qim_streams.gateway.local_room import Encoded, LocalRoom, RoomName
from qim_streams.gateway.outbound import Outbound
from qim_streams.gateway.session_ports import RoomSession
from qim_streams.rooms.commands import RoomAct, RoomCreate, RoomReceipt, RoomSend, RoomView
from qim_streams.wire.answers import error
from qim_streams.wire.codec import Codec
from qim_streams.wire.frames import ServerFrame
from qim_streams.wire.frames_rooms import (
    ControlRoom,
    CreateRoom,
    Joined,
    JoinRoom,
    LeaveRoom,
    RoomAck,
    RoomLeft,
    RoomState,
    SendRoom,
)
from qim_streams.wire.room_batches import batch_of

SHARE_BYTES: Final = 128 * 1024  # unsent bytes of a socket from where on room frames wait
QUEUE_MESSAGES_MAX: Final = 400
QUEUE_BYTES_MAX: Final = 128 * 1024
EVENTS_MAX: Final = 64  # that wait for a full socket


class Hall(Protocol):
    """The rooms of the gateway, as far as a seat needs them."""

    def entering(
        self, name: RoomName, user_id: str
    ) -> AbstractAsyncContextManager[tuple[LocalRoom, RoomView]]:
        """Enter a room: inside, the user may take a seat. The room, and how the writer sees it."""

    def left(self, room: LocalRoom) -> None:
        """A seat has left a room."""

    def later(self, seat: "RoomSeat") -> None:
        """Something of this seat waits for its socket: flush it at the next tick."""

    async def send(self, request: RoomSend) -> RoomReceipt:
        """Send."""

    async def create(self, request: RoomCreate) -> RoomView:
        """Create. AdmissionRefused where users may not."""

    async def act(self, request: RoomAct) -> RoomView:
        """Govern."""


class RoomSeat:
    """Of one session that asked for rooms."""

    __slots__ = (
        "_closed",
        "_events",
        "_hall",
        "_outbound",
        "_queue",
        "_queued",
        "_queued_bytes",
        "_session",
        "codec",
        "rooms",
    )

    def __init__(self, hall: Hall, session: RoomSession, codec: Codec, outbound: Outbound) -> None:
        self._hall, self._session, self.codec, self._outbound = hall, session, codec, outbound
        self.rooms: dict[RoomName, LocalRoom] = {}
        self._queue: list[Encoded] = []  # no deque: an empty one takes 600 bytes
        self._queued, self._queued_bytes = 0, 0
        self._events: list[bytes] = []
        self._closed = False

    @property
    def user_id(self) -> str:
        """Whose connection it is."""
        return self._session.address.user_id

    def close(self) -> None:
        """The connection is gone. Safe to repeat."""
        self._closed = True
        for name in list(self.rooms):
            self.remove(name)
        self._queue.clear()
        self._events.clear()

    def remove(self, name: RoomName) -> None:
        """Out of a room."""
        room = self.rooms.pop(name, None)
        if room is not None:
            room.seats.pop(self, None)
            metrics.SEATS.dec()
            self._hall.left(room)

    # -- what is written

    def add(self, parts: list[Encoded]) -> None:
        """Parts of a tick; `flush` follows."""
        for part in parts:
            self._queue.append(part)
            self._queued += part.count
            self._queued_bytes += len(part.bytes_for(self.codec))

    def flush(self) -> int:
        """Write what the socket takes; how many messages that were. What is left waits for the next tick."""
        if self._events:
            self._put_events()  # or at a later tick, even when nothing else is said any more
        queue, outbound = self._queue, self._outbound
        if not queue:
            return 0
        if outbound.size > SHARE_BYTES:
            self._trim()
            self._hall.later(self)
            return 0
        if len(queue) == 1:
            outbound.put(queue[0].frame_for(self.codec))
        else:
            outbound.put(batch_of(self.codec, [part.bytes_for(self.codec) for part in queue]))
        count = self._queued
        queue.clear()
        self._queued = self._queued_bytes = 0
        return count

    def put_event(self, data: bytes) -> None:
        """An event, in time before the messages that wait."""
        if self._closed:
            return
        if not self._events and not self._outbound.is_full:
            self._outbound.put(data)
            return
        if len(self._events) >= EVENTS_MAX:
            metrics.CUT.inc()
            self._session.end(WSCloseCode.TRY_AGAIN_LATER)
            self.close()
            return
        self._events.append(data)
        self._hall.later(self)

    def put_if_idle(self, data: bytes) -> None:
        """What will be said again soon: not to a reader that is slow."""
        if not self._closed and self._outbound.size <= SHARE_BYTES:
            self._outbound.put(data)

    def _put_events(self) -> None:
        while self._events and not self._outbound.is_full:
            self._outbound.put(self._events.pop(0))
        if self._events:
            self._hall.later(self)

    def _trim(self) -> None:
        """Drop the oldest parts over the bound. The newest stays, however large its tick was (it is bounded):
        a reader who gets nothing after a loss would not see that he lost something."""
        dropped = 0
        while len(self._queue) > 1 and (
            self._queued > QUEUE_MESSAGES_MAX
            or self._queued_bytes > QUEUE_BYTES_MAX
            or len(self._queue) > limits.ROOM_PARTS_MAX
        ):
            part = self._queue.pop(0)
            self._queued -= part.count
            self._queued_bytes -= len(part.bytes_for(self.codec))
            dropped += part.count
        if dropped:
            metrics.DROPPED.inc(dropped)

    # -- requests

    def handle(self, frame: Any) -> None:
        """A frame of rooms."""
        if isinstance(frame, LeaveRoom):
            self._leave(frame)
            return
        self._ask(partial(_ASKED[type(frame)], self), frame)

    def _ask(self, work: Callable[[Any], Awaitable[None]], frame: Any) -> None:
        self._session.spawn(partial(work, frame), frame.rid, self._session.connection.request_answered)

    def _answer(self, frame: ServerFrame) -> None:
        self._session.connection.request_answered()
        self._session.send(frame)

    async def _join(self, frame: JoinRoom) -> None:
        address = self._session.address
        name = (address.tenant_id, frame.room_id)
        if name not in self.rooms and len(self.rooms) >= limits.ROOMS_PER_CONNECTION_MAX:
            raise AdmissionRefused("TOO_MANY_ROOMS", f"{len(self.rooms)} rooms")
        async with self._hall.entering(name, address.user_id) as (room, view):
            # Nothing waits from here on: what is shown and what comes next fit together.
            if self._closed:
                return
            if name not in self.rooms:
                if len(self.rooms) >= limits.ROOMS_PER_CONNECTION_MAX:
                    raise AdmissionRefused("TOO_MANY_ROOMS", f"{len(self.rooms)} rooms")
                self.rooms[name] = room
                room.seats[self] = None
                metrics.SEATS.inc()
            self._answer(_joined(frame, room, view))

    def _leave(self, frame: LeaveRoom) -> None:
        self.remove((self._session.address.tenant_id, frame.room_id))
        self._answer(RoomLeft(frame.rid, frame.room_id))

    async def _send(self, frame: SendRoom) -> None:
        address = self._session.address
        if (address.tenant_id, frame.room_id) not in self.rooms:
            raise AdmissionRefused("NOT_IN_ROOM", "JOIN_ROOM first")
        request = RoomSend(
            address.tenant_id, frame.room_id, address.user_id, frame.client_message_id, frame.body
        )
        try:
            receipt = await self._hall.send(request)
        except StoreError as failure:
            if failure.outcome is Outcome.NOT_APPLIED:
                raise AdmissionRefused(
                    "SHARD_MOVED", "nobody writes the room now", retry_after_ms=500
                ) from None
            detail = "repeat with the same client_message_id"
            raise AdmissionRefused("OUTCOME_UNKNOWN", detail, retry_after_ms=500) from failure
        self._answer(
            RoomAck(
                frame.rid,
                frame.room_id,
                frame.client_message_id,
                receipt.message_id,
                receipt.epoch,
                receipt.room_seq,
                receipt.at_ms,
            )
        )

    async def _create(self, frame: CreateRoom) -> None:
        address = self._session.address
        request = RoomCreate(address.tenant_id, frame.room_id, address.user_id, frame.name, frame.join_policy)
        self._answer(_state(frame.rid, frame.room_id, await self._hall.create(request)))

    async def _control(self, frame: ControlRoom) -> None:
        address = self._session.address
        request = RoomAct(
            address.tenant_id,
            frame.room_id,
            address.user_id,
            frame.action,
            frame.user_id,
            frame.seconds,
            frame.text,
        )
        self._answer(_state(frame.rid, frame.room_id, await self._hall.act(request)))


_ASKED: Final[dict[type, Callable[[RoomSeat, Any], Awaitable[None]]]] = {
    JoinRoom: RoomSeat._join,
    SendRoom: RoomSeat._send,
    CreateRoom: RoomSeat._create,
    ControlRoom: RoomSeat._control,
}


class NoSeat:
    """The seat of a connection to a gateway that serves no rooms."""

    def __init__(self, session: RoomSession) -> None:
        self._session = session

    def close(self) -> None:
        """Nothing to forget."""

    def handle(self, frame: Any) -> None:
        """No frame of rooms is served."""
        self._session.connection.request_answered()
        self._session.refuse(error("NO_ROOM", "this gateway serves no rooms", frame.rid))


class NoRooms:
    """`Rooms` of a gateway that serves none."""

    def seat(self, session: RoomSession, codec: Codec, outbound: Outbound) -> NoSeat:
        """See `Rooms`."""
        return NoSeat(session)

    async def run(self) -> None:
        """Nothing to do, for ever."""
        await asyncio.Event().wait()


class Rooms(Protocol):
    """The rooms of a gateway, as its server needs them."""

    def seat(self, session: RoomSession, codec: Codec, outbound: Outbound) -> RoomSeat | NoSeat:
        """The seat of a session that has just begun."""

    async def run(self) -> None:
        """What goes on beside the connections, for ever."""


def _joined(frame: JoinRoom, room: LocalRoom, view: RoomView) -> Joined:
    epoch, seq = room.position
    muted_all = view.muted_all if room.view is None else room.view.muted_all
    return Joined(
        frame.rid,
        frame.room_id,
        epoch,
        seq,
        max(room.total, len(room.seats)),
        view.name,
        view.join_policy,
        view.owner_id,
        view.role,
        muted_all,
        view.muted_until,
        room.shown(frame.replay_limit, (frame.replay_epoch, frame.replay_from)),
    )


def _state(rid: int, room_id: str, view: RoomView) -> RoomState:
    return RoomState(
        rid,
        room_id,
        view.epoch,
        view.room_seq,
        view.name,
        view.join_policy,
        view.owner_id,
        view.muted_all,
        view.closed,
    )
