"""RoomHall: all rooms with a connection on this gateway, and the tick that speaks to them.

Records come from the log, of partitions that have a room here only. Messages wait for the tick, at most
`room_outbound_frame_rate` a second, and leave as one ROOM_BATCH per connection whose bytes are shared; events
leave at once. A tick that takes long makes the next one later, so rooms never take more than half of the
event loop; what was said meanwhile goes with the next one.

Invariants: one encoding per room, tick and encoding; no connection waits for another; nothing is remembered
of a room that nobody here is in.

Spec: §10.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from qim_streams.errors import AdmissionRefused, RecordError
from qim_streams.gateway import room_metrics as metrics
from qim_streams.gateway.local_room import LocalRoom, RoomName, messages_in
from qim_streams.gateway.outbound import Outbound
from qim_streams.gateway.room_seat import RoomSeat
from qim_streams.gateway.session_ports import RoomSession
from qim_streams.placement import room_partition
from qim_streams.rooms.commands import (
    REPLAY_MAX,
    RoomAct,
    RoomCreate,
    RoomJoin,
    RoomReceipt,
    RoomSend,
    RoomView,
)
from qim_streams.rooms.ports import LogRow
from qim_streams.rooms.records import LogFence, RoomKind, RoomRecord, decode_room, room_key
from qim_streams.rooms.rules import ACTIONS, MEMBERS
from qim_streams.shared_work import shared
from qim_streams.wire.codec import Codec
from qim_streams.wire.frames_rooms import RoomEvent

log = logging.getLogger(__name__)

TURN: Final = (
    32  # connections in one turn of the event loop: each costs a write, and whoever asks waits for it
)
_NAMES: Final = {kind: name for name, kind in ACTIONS.items()}


class Links(Protocol):
    """The writers of rooms (`rooms.links.RoomLinks`)."""

    async def send(self, request: RoomSend) -> RoomReceipt:
        """Send."""

    async def join(self, request: RoomJoin) -> RoomView:
        """Enter, or look."""

    async def create(self, request: RoomCreate) -> RoomView:
        """Create."""

    async def act(self, request: RoomAct) -> RoomView:
        """Govern."""


class Watcher(Protocol):
    """Reads partitions of the room log."""

    async def watch(self, partition: int) -> int:
        """Read a partition: records below the offset returned may come again, all above it come.

        StoreUnavailable. A partition that is read already goes on.
        """

    def unwatch(self, partition: int) -> None:
        """Nobody here needs a partition any more."""


class RoomHall:
    """Give `deliver` what the log has; `run` is the tick's task."""

    def __init__(
        self,
        links: Links,
        watcher: Watcher,
        partitions: int,
        *,
        frame_rate: float,
        by_users: bool,
        retention_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._links, self._watcher, self._partitions = links, watcher, partitions
        self._every_s, self._by_users = 1.0 / frame_rate, by_users
        self._retention_ms, self._now_ms = retention_ms, now_ms
        self._rooms: dict[bytes, LocalRoom] = {}
        self._of_partition: dict[int, set[bytes]] = {}
        self._fences: dict[int, LogFence] = {}
        self._live_from: dict[int, int] = {}
        self._due: dict[LocalRoom, None] = {}
        self._later: dict[RoomSeat, None] = {}
        self._wake = asyncio.Event()

    # -- seats

    def seat(self, session: RoomSession, codec: Codec, outbound: Outbound) -> RoomSeat:
        """The seat of a session that has just begun."""
        return RoomSeat(self, session, codec, outbound)

    @asynccontextmanager
    async def entering(self, name: RoomName, user_id: str) -> AsyncIterator[tuple[LocalRoom, RoomView]]:
        """See `room_seat.Hall`."""
        room = self._open(name)
        room.entering += 1
        try:
            await self._loaded(room)
            yield room, await self._links.join(RoomJoin(*name, user_id, 0))
        finally:
            room.entering -= 1
            self.left(room)

    def _open(self, name: RoomName) -> LocalRoom:
        key = room_key(*name)
        room = self._rooms.get(key)
        if room is None:
            room = self._rooms[key] = LocalRoom(name, room_partition(*name, self._partitions))
            self._of_partition.setdefault(room.partition, set()).add(key)
            metrics.ROOMS.set(len(self._rooms))
        return room

    async def _loaded(self, room: LocalRoom) -> None:
        """The first who enters loads the room for all who come meanwhile."""
        if room.view is not None:
            return
        if room.loading is None:
            room.loading = shared(self._load(room))
        loading = room.loading
        try:
            await asyncio.shield(loading)
        finally:
            if loading.done() and room.loading is loading:
                room.loading = None

    async def _load(self, room: LocalRoom) -> None:
        live_from = await self._watcher.watch(room.partition)
        self._live_from.setdefault(room.partition, live_from)
        self._fences.setdefault(room.partition, LogFence())
        # Only now: what is appended after the writer has looked comes from the log.
        room.load(await self._links.join(RoomJoin(*room.name, None, REPLAY_MAX)))

    def left(self, room: LocalRoom) -> None:
        """See `room_seat.Hall`."""
        key = room_key(*room.name)
        if not room.is_empty or self._rooms.get(key) is not room:
            return
        del self._rooms[key]
        self._due.pop(room, None)
        others = self._of_partition[room.partition]
        others.discard(key)
        if not others:
            del self._of_partition[room.partition]
            self._live_from.pop(room.partition, None)
            self._fences.pop(room.partition, None)
            self._watcher.unwatch(room.partition)
        metrics.ROOMS.set(len(self._rooms))

    def later(self, seat: RoomSeat) -> None:
        """See `room_seat.Hall`."""
        self._later[seat] = None
        self._wake.set()

    # -- requests

    async def send(self, request: RoomSend) -> RoomReceipt:
        """See `room_seat.Hall`."""
        return await self._links.send(request)

    async def create(self, request: RoomCreate) -> RoomView:
        """See `room_seat.Hall`."""
        if not self._by_users:
            raise AdmissionRefused("NOT_ALLOWED", "only the operator creates rooms here")
        return await self._links.create(request)

    async def act(self, request: RoomAct) -> RoomView:
        """See `room_seat.Hall`."""
        return await self._links.act(request)

    # -- records

    def wants(self, key: bytes) -> bool:
        """Whether a record of this key concerns anybody here; an owner's mark (no key) does."""
        return not key or key in self._rooms

    async def deliver(self, partition: int, rows: Sequence[LogRow]) -> None:
        """Records of a partition in log order, those that `wants` refused left out."""
        fence = self._fences.get(partition)
        if fence is None:
            return  # left while they were read
        live_from = self._live_from.get(partition, 0)
        for offset, key, value in rows:
            try:
                record = decode_room(value)
            except RecordError as error:
                log.warning("room record %d of partition %d is none: %s", offset, partition, error)
                continue
            before = fence.epoch
            if not fence.passes(record):
                continue
            metrics.RECORDS.inc()
            if record.kind == RoomKind.MESSAGE:
                room = self._rooms.get(key)
                if room is not None and room.hear(record):
                    self._due[room] = None
                    self._wake.set()
            elif offset >= live_from:
                await self._happened(partition, record, key, new_owner=record.epoch > before)

    async def _happened(self, partition: int, record: RoomRecord, key: bytes, *, new_owner: bool) -> None:
        if record.kind == RoomKind.OWNER:
            keys = list(self._of_partition.get(partition, ())) if new_owner else []
            for one in keys:
                if (room := self._rooms.get(one)) is not None:
                    self._finish(room)
                    await self._tell(room, RoomEvent(room.name[1], "owner", record.epoch, 0))
            return
        room = self._rooms.get(key)
        name = _NAMES.get(RoomKind(record.kind)) if record.kind in set(RoomKind) else None
        if room is None or name is None:
            return  # of a newer version: nobody here would understand it
        room.changed(record)
        event = RoomEvent(
            record.room_id,
            name,
            record.epoch,
            record.room_seq,
            record.sender_id,
            record.user_id,
            record.until_ms,
            record.body,
        )
        await self._tell(room, event)
        self._send_out(room, record)

    async def _tell(self, room: LocalRoom, event: RoomEvent) -> None:
        encoded: dict[bool, bytes] = {}
        for number, seat in enumerate(list(room.seats), 1):
            data = encoded.get(seat.codec.binary)
            if data is None:
                data = encoded[seat.codec.binary] = seat.codec.encode(event)
            seat.put_event(data)
            if number % TURN == 0:
                await asyncio.sleep(0)

    def _finish(self, room: LocalRoom) -> None:
        """Say what was said before something that ends it."""
        for seat in self._speak([room]):
            seat.flush()

    def _send_out(self, room: LocalRoom, record: RoomRecord) -> None:
        if record.kind == RoomKind.CLOSE:
            self._finish(room)
            gone: Iterable[RoomSeat] = list(room.seats)
        else:
            members_only = room.view is not None and room.view.join_policy == MEMBERS
            if record.kind != RoomKind.KICK and not (record.kind == RoomKind.PLAIN and members_only):
                return
            gone = [seat for seat in room.seats if seat.user_id == record.user_id]
        for seat in gone:
            seat.remove(room.name)

    # -- the tick

    async def run(self) -> None:
        """Tick for ever, as long as there is something to say."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            began_s = loop.time()
            try:
                await self.tick()
            except Exception:
                # What one tick had is lost, which the numbers show; the next one goes on.
                log.exception("a tick of the rooms failed")
            spent_s = loop.time() - began_s
            metrics.TICK_SECONDS.observe(spent_s)
            await asyncio.sleep(max(self._every_s - spent_s, spent_s))

    async def tick(self) -> None:
        """Say what waits."""
        due, self._due = list(self._due), {}
        seats = self._speak(due)
        frames = messages = 0
        for number, seat in enumerate(seats, 1):
            count = seat.flush()
            frames += count > 0
            messages += count
            if number % TURN == 0:
                await asyncio.sleep(0)
        metrics.FRAMES.inc(frames)
        metrics.DELIVERIES.inc(messages)

    def _speak(self, rooms: Iterable[LocalRoom]) -> list[RoomSeat]:
        """Queue what rooms have to say; the connections to flush, those of earlier ticks included."""
        later, self._later = self._later, {}
        for room in rooms:
            parts = room.tick()
            if room.dropped:
                metrics.DROPPED.inc(room.dropped * len(room.seats))
                room.dropped = 0
            if not messages_in(parts):
                continue
            for seat in room.seats:
                seat.add(parts)
            later |= room.seats
        return list(later)

    # -- member counts

    def counts(self) -> dict[RoomName, int]:
        """Connections per room."""
        return {room.name: len(room.seats) for room in self._rooms.values()}

    async def counted(self, totals: dict[RoomName, int]) -> None:
        """Totals over all gateways; rooms whose total has changed are told."""
        since_ms = self._now_ms() - self._retention_ms
        for name, total in totals.items():
            room = self._rooms.get(room_key(*name))
            if room is None:
                continue
            room.trim(since_ms)
            room.total = max(total, len(room.seats))
            if room.total != room.total_said and room.seats:
                room.total_said = room.total
                await self._tell_total(room)

    async def _tell_total(self, room: LocalRoom) -> None:
        epoch, seq = room.position
        event = RoomEvent(room.name[1], "members", epoch, seq, member_count=room.total)
        encoded: dict[bool, bytes] = {}
        for number, seat in enumerate(list(room.seats), 1):
            if seat.codec.binary not in encoded:
                encoded[seat.codec.binary] = seat.codec.encode(event)
            seat.put_if_idle(encoded[seat.codec.binary])
            if number % TURN == 0:
                await asyncio.sleep(0)
