"""Rooms of a client: enter, talk, listen; entered again by itself on every new connection.

Invariants: what a room's iterator gives is in order, and what is missing is said (`Lost`, `NewEpoch`); what
waits for the application is bounded, the oldest messages go first; a send is repeated under one
client_message_id until it is answered.

Spec: §10.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from qim_streams.client.backoff import retry_ms
from qim_streams.client.requests import RETRY_BASE_MS, RETRY_CAP_MS, Requests
from qim_streams.client.room_tracker import (
    Ended,
    Happened,
    Lost,
    RoomDelivery,
    RoomTracker,
    Said,
)
from qim_streams.client.session import Session
from qim_streams.errors import AdmissionRefused, QimError
from qim_streams.wire.frames import AuthOk, Error, ServerFrame
from qim_streams.wire.frames_rooms import (
    ControlRoom,
    CreateRoom,
    Joined,
    JoinRoom,
    LeaveRoom,
    RoomAck,
    RoomBatch,
    RoomEvent,
    RoomLeft,
    RoomState,
    SendRoom,
)

DELIVERIES_MAX: Final = 10_000
REPLAY: Final = 50


class ClientRoom:
    """One room that this device is in. Made by `Rooms.join`."""

    def __init__(self, rooms: "Rooms", room_id: str, replay: int) -> None:
        self.room_id, self.replay = room_id, replay
        self.tracker = RoomTracker()
        self.joined: Joined | None = None  # None: not in it on this connection
        self.ended: Ended | None = None
        self.attempts = 0
        self._rooms = rooms
        self._waiting: deque[RoomDelivery] = deque()
        self._overrun: Lost | None = None
        self._changed = asyncio.Event()

    # -- for the application

    async def send(
        self, body: bytes, *, client_message_id: str | None = None, timeout_s: float = 30.0
    ) -> RoomAck:
        """Say something; its receipt. AdmissionRefused, ClientStopped; TimeoutError: the outcome is unknown,
        and sending again with the same client_message_id is safe for as long as the room remembers it."""
        name = client_message_id or secrets.token_hex(16)
        async with asyncio.timeout(timeout_s):
            while True:
                await self.wait_joined()
                try:
                    return await self._rooms.requests.ask(
                        lambda rid: SendRoom(rid, self.room_id, name, body), RoomAck, timeout_s
                    )
                except AdmissionRefused as refusal:
                    # A new connection: the room is being entered again.
                    if refusal.code != "NOT_IN_ROOM" or self.ended is not None:
                        raise
                    await asyncio.sleep(RETRY_BASE_MS / 1_000)

    async def events(self) -> AsyncIterator[RoomDelivery]:
        """What happens, as it comes; ends with `Ended`, or raises ClientStopped. One reader at a time."""
        while True:
            while (one := self._take()) is not None:
                yield one
                if isinstance(one, Ended):
                    return
            if self._rooms.stopped is not None:
                raise self._rooms.stopped
            self._changed.clear()
            await self._changed.wait()

    async def leave(self) -> None:
        """Leave the room; its iterator ends."""
        await self._rooms.leave(self)

    async def wait_joined(self) -> None:
        """Until the room is entered on this connection. AdmissionRefused when that will never be."""
        while self.joined is None:
            if self.ended is not None:
                raise AdmissionRefused(self.ended.code or "NOT_IN_ROOM", self.ended.detail or "left")
            if self._rooms.stopped is not None:
                raise self._rooms.stopped
            self._changed.clear()
            await self._changed.wait()

    # -- for `Rooms`

    def give(self, deliveries: list[RoomDelivery]) -> None:
        """Hand on; over the bound the oldest messages go."""
        if self.ended is not None:
            return
        self._waiting.extend(deliveries)
        for one in deliveries:
            if isinstance(one, Ended):
                self.ended = one
        while len(self._waiting) > DELIVERIES_MAX and self._drop_oldest():
            pass
        self._changed.set()

    def wake(self) -> None:
        """Something has changed for those who wait."""
        self._changed.set()

    def _take(self) -> RoomDelivery | None:
        if self._overrun is not None:
            lost, self._overrun = self._overrun, None
            return lost
        return self._waiting.popleft() if self._waiting else None

    def _drop_oldest(self) -> bool:
        for index, one in enumerate(self._waiting):
            if isinstance(one, Said):
                del self._waiting[index]
                seq = one.message.room_seq
                first = self._overrun.first_seq if self._overrun else seq
                self._overrun = Lost(one.epoch, first, seq, "application")
                return True
        return False


class Rooms:
    """The rooms of one client."""

    def __init__(self, session: Session, requests: Requests, random: Callable[[], float]) -> None:
        self._session, self.requests, self._random = session, requests, random
        self.stopped: QimError | None = None
        self._rooms: dict[str, ClientRoom] = {}
        self._authenticated = session.handlers[AuthOk]
        session.handlers |= {AuthOk: self._on_auth_ok, RoomBatch: self._on_batch, RoomEvent: self._on_event}

    async def create(self, room_id: str, *, name: str = "", join_policy: str = "open") -> RoomState:
        """Make a room; this user owns it. Making the same one again changes nothing."""
        return await self.requests.ask(lambda rid: CreateRoom(rid, room_id, name, join_policy), RoomState)

    async def control(
        self, room_id: str, action: str, *, user_id: str = "", seconds: int = 0, text: bytes = b""
    ) -> RoomState:
        """Govern a room: mute, unmute, mute_all, kick, add_moderator, announce, close, ..."""
        return await self.requests.ask(
            lambda rid: ControlRoom(rid, room_id, action, user_id, seconds, text), RoomState
        )

    async def join(self, room_id: str, *, replay: int = REPLAY, timeout_s: float = 30.0) -> ClientRoom:
        """Enter a room and stay in it over connections. AdmissionRefused, ClientStopped, TimeoutError.

        ValueError: this client is in it already. After an error it is not in the room.
        """
        if room_id in self._rooms:
            raise ValueError(f"this client is in {room_id} already: use the room of the first join")
        room = self._rooms[room_id] = ClientRoom(self, room_id, replay)
        try:
            async with asyncio.timeout(timeout_s):
                await self.requests.ready()
                self._enter(room)
                self.requests.wake()
                await room.wait_joined()
        except BaseException:
            self._rooms.pop(room_id, None)
            raise
        return room

    async def leave(self, room: ClientRoom) -> None:
        """See `ClientRoom.leave`."""
        if self._rooms.get(room.room_id) is room:
            del self._rooms[room.room_id]
        room.give([Ended("")])
        await self.requests.ask(lambda rid: LeaveRoom(rid, room.room_id), RoomLeft)

    def stop(self, why: QimError) -> None:
        """The client has ended."""
        self.stopped = self.stopped or why
        for room in self._rooms.values():
            room.wake()

    # -- frames

    def _on_auth_ok(self, frame: AuthOk) -> None:
        self._authenticated(frame)
        if self._session.auth is None:
            return
        for room in self._rooms.values():
            room.joined = None
            self._enter(room)

    def _enter(self, room: ClientRoom) -> None:
        epoch, seq = room.tracker.position
        auth = self._session.auth

        def answered(answer: ServerFrame | None) -> None:
            if answer is not None and self._session.auth is auth:
                self._entered(room, answer)

        self._session.call(lambda rid: JoinRoom(rid, room.room_id, room.replay, epoch, seq), answered)

    def _entered(self, room: ClientRoom, answer: Any) -> None:
        if self._rooms.get(room.room_id) is not room:
            return
        if isinstance(answer, Joined):
            room.attempts, room.joined = 0, answer
            room.give(room.tracker.joined(answer))
            return
        if not isinstance(answer, Error) or not answer.temporary:
            name, detail = getattr(answer, "name", "UNKNOWN_FRAME"), getattr(answer, "detail", "")
            self._end(room, Ended(name, detail))
            return
        room.attempts += 1
        delay_ms = retry_ms(room.attempts, RETRY_BASE_MS, RETRY_CAP_MS, answer.retry_after_ms, self._random())
        asyncio.get_running_loop().call_later(delay_ms / 1_000, self._enter_again, room, self._session.auth)

    def _enter_again(self, room: ClientRoom, auth: AuthOk | None) -> None:
        # On a new connection it has been asked already.
        if self._session.auth is auth and auth is not None and self._rooms.get(room.room_id) is room:
            self._enter(room)
            self.requests.wake()

    def _on_batch(self, frame: RoomBatch) -> None:
        for part in frame.rooms:
            room = self._rooms.get(part.room_id)
            if room is not None and room.joined is not None:
                room.give(room.tracker.batch(part))

    def _on_event(self, frame: RoomEvent) -> None:
        room = self._rooms.get(frame.room_id)
        if room is None or room.joined is None:
            return
        room.give(room.tracker.event(frame))
        if frame.event == "close":
            self._end(room, Ended("ROOM_CLOSED", "the room was closed"))
        elif frame.event == "kick" and frame.user_id == self._session.user_id:
            self._end(room, Ended("BANNED", "you were sent out of this room"))
        elif (
            frame.event == "remove"
            and frame.user_id == self._session.user_id
            and room.joined.join_policy == "members"
        ):
            self._end(room, Ended("NOT_ALLOWED", "you are no member of this room any more"))

    def _end(self, room: ClientRoom, ended: Ended) -> None:
        self._rooms.pop(room.room_id, None)
        room.joined = None
        room.give([ended])


__all__ = ["ClientRoom", "Ended", "Happened", "Lost", "RoomDelivery", "Rooms", "Said"]
