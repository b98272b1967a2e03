"""RoomPartition: one partition of the room log and all its rooms, for as long as this process owns it.

Taking over: (1) append the owner's mark, which fences the log (`records.LogFence`); (2) read the log from the
last checkpoint, at least the newest `WINDOW_RECORDS`, up to the mark: room_seqs go on where they stood and
windows are there; (3) serve. A checkpoint every second notes the offset that the stored room_seqs reflect; a
store that lost checkpoints gets what the log has since the one that it still has.

Invariants: a room_seq is given once per epoch, and in order of the log; an answer follows the log's
acknowledgement; nothing is done per recipient; rooms that nobody uses are forgotten, but none whose number
the store does not have.

Spec: §10, §11.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from qim_streams import failpoints
from qim_streams.errors import FencedError, QimError, RecordError, StoreError
from qim_streams.rooms import metrics
from qim_streams.rooms.ports import RoomLog, RoomLogReader, RoomStore, StoredRoom
from qim_streams.rooms.records import LogFence, RoomRecord, decode_room, owner_mark
from qim_streams.rooms.room import Room
from qim_streams.rooms.window import BUDGET_BYTES
from qim_streams.shared_work import shared

log = logging.getLogger(__name__)

WINDOW_RECORDS: Final = 20_000  # of a partition that are read at a takeover: a third of a second
ROOMS_KEPT_MAX: Final = 10_000  # in memory, of a partition
CHECKPOINT_S: Final = 1.0
RETRY_S: Final = 1.0

RoomName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PartitionServices:
    """What all partitions of a process share. `new_id` gives message ids; times are of the two clocks."""

    store: RoomStore
    log: RoomLog
    reader: RoomLogReader
    new_id: Callable[[], Awaitable[bytes]]
    now_ms: Callable[[], int]
    monotonic: Callable[[], float]
    msg_per_s: float
    retention_ms: int


class RoomPartition:
    """`run` takes it over and keeps checkpoints until it is cancelled; `stop` ends it in good order."""

    def __init__(
        self,
        number: int,
        epoch: int,
        services: PartitionServices,
        on_fenced: Callable[[int, int], object] = lambda *_: None,
    ) -> None:
        self.number, self.epoch, self._all, self._on_fenced = number, epoch, services, on_fenced
        self.ready = asyncio.Event()
        self.closed = False
        self._rooms: OrderedDict[RoomName, Room] = OrderedDict()
        self._loading: dict[RoomName, asyncio.Future[Room | None]] = {}
        self._offset = 0  # of the log: everything below is in the room_seqs
        self._noted = 0  # where the stored position stands
        self._dirty: set[RoomName] = set()
        self._window_bytes = 0

    # -- life

    async def run(self) -> None:
        """Until cancelled or closed, or until somebody else owns the partition.

        A cancellation may be lost on the way: `asyncio.wait_for` of Python 3.11, which drivers use, drops one
        that comes when its work is just done. So a closed partition ends by itself, too.
        """
        try:
            await self._take_over()
            while not self.closed:
                await asyncio.sleep(CHECKPOINT_S)
                if not self.closed:
                    await self.checkpoint()
        except FencedError as error:
            log.warning("room partition %d: %s", self.number, error)
            self.close()
            self._on_fenced(self.number, self.epoch)

    def close(self) -> None:
        """Serve nothing any more."""
        self.closed = True
        self.ready.clear()

    async def stop(self) -> None:
        """Give the partition up: what was acknowledged is noted, so that the next owner reads less."""
        ready = self.ready.is_set()
        self.close()
        if ready:
            try:
                await self.checkpoint()
            except QimError as error:
                log.warning("room partition %d: last checkpoint: %s", self.number, error)

    async def checkpoint(self) -> None:
        """Note how far the room_seqs have come. FencedError; any other failure is tried again later."""
        if not self._dirty:
            return
        offset, names = self._offset, self._dirty
        self._dirty = set()
        seqs = {name: self._rooms[name].seq for name in names if name in self._rooms}
        try:
            stands = await self._all.store.checkpoint(self.number, self.epoch, self._noted, offset, seqs)
            if stands < self._noted:
                await self._note_again(stands, offset, seqs)
            self._noted = offset
            failpoints.hit("rooms.checkpoint_noted")
        except FencedError:
            raise
        except StoreError as error:
            self._dirty |= names
            log.warning("room partition %d: checkpoint: %s", self.number, error)

    async def _note_again(self, stands: int, offset: int, seqs: dict[RoomName, int]) -> None:
        """Note what the store forgot: all since the checkpoint it has. `seqs`: what was to be noted now."""
        log.error(
            "room partition %d: the store lost its last writes: its checkpoint was %d and is %d",
            self.number, self._noted, stands,
        )  # fmt: skip
        first, _ = await self._all.reader.span(self.number)
        fence = LogFence()
        async for batch in self._all.reader.read(self.number, max(first, stands, offset - WINDOW_RECORDS)):
            for at, _, value in batch:
                record = self._counted(fence, value) if at < offset else None
                if record is not None:
                    name = (record.tenant_id, record.room_id)
                    seqs[name] = max(record.room_seq, seqs.get(name, 0))
        if await self._all.store.checkpoint(self.number, self.epoch, stands, offset, seqs) < stands:
            raise StoreError("the store loses its writes all the time")

    # -- takeover

    async def _take_over(self) -> None:
        while not (self.ready.is_set() or self.closed):
            try:
                await self._recover()
            except FencedError:
                raise
            except QimError as error:
                log.warning("room partition %d: not taken over yet: %s", self.number, error)
                await asyncio.sleep(RETRY_S)
        if not self.closed:
            log.info("room partition %d: served under epoch %d", self.number, self.epoch)

    async def _recover(self) -> None:
        self._rooms.clear()
        self._window_bytes = 0
        mark = owner_mark(self.epoch, self._all.now_ms())
        end = await self._all.log.append(self.number, mark.key, mark.encode())
        failpoints.hit("rooms.mark_appended")
        first, _ = await self._all.reader.span(self.number)
        self._noted = noted = await self._all.store.position(self.number)
        start = max(first, min(noted, end - WINDOW_RECORDS))
        fence, count = LogFence(), 0
        if start < end:
            async for batch in self._all.reader.read(self.number, start):
                for offset, _, value in batch:
                    if offset < end:
                        count += self._replay(fence, value)
        self._offset = end + 1
        log.info("room partition %d: %d records from %d on, noted %d", self.number, count, start, noted)
        if not self.closed:
            self.ready.set()

    def _counted(self, fence: LogFence, value: bytes) -> RoomRecord | None:
        """A record of the log if it counts and is of a room. FencedError when a later owner wrote it."""
        try:
            record = decode_room(value)
        except RecordError as error:
            log.warning("room partition %d: a record that is none: %s", self.number, error)
            return None
        if record.epoch > self.epoch:
            raise FencedError(f"rm:{self.number}", self.epoch, record.epoch)
        return record if fence.passes(record) and record.room_id else None

    def _replay(self, fence: LogFence, value: bytes) -> int:
        record = self._counted(fence, value)
        if record is None:
            return 0
        name = (record.tenant_id, record.room_id)
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = Room(name, self._all.msg_per_s)
        room.seq = room.logged = max(room.seq, record.room_seq)
        self._window_bytes += room.window.add(record, value)
        self._dirty.add(name)
        self._keep_bounds()
        return 1

    # -- rooms

    async def room(self, name: RoomName) -> Room | None:
        """A room with its head, None when there is no such room. StoreError."""
        room = self._rooms.get(name)
        if room is not None and room.head is not None:
            self._rooms.move_to_end(name)
            return room
        loading = self._loading.get(name)
        if loading is None:
            loading = self._loading[name] = shared(self._load(name))
            loading.add_done_callback(lambda _: self._loading.pop(name, None))
        # One caller that goes away must not end the reading of the others.
        return await asyncio.shield(loading)

    async def _load(self, name: RoomName) -> Room | None:
        stored = await self._all.store.load(self.number, *name)
        return None if stored is None else self.put(name, stored)

    def put(self, name: RoomName, stored: StoredRoom) -> Room:
        """Keep a room as the store has it; what the log told of it stays."""
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = Room(name, self._all.msg_per_s)
        room.head, room.standings = stored.head, dict(stored.standings)
        if stored.room_seq > room.seq:
            room.seq = room.logged = stored.room_seq
        self._rooms.move_to_end(name)
        self._keep_bounds()
        return room

    def _keep_bounds(self) -> None:
        if len(self._rooms) > ROOMS_KEPT_MAX:
            for name in self._oldest_idle(len(self._rooms) - ROOMS_KEPT_MAX):
                self._window_bytes -= self._rooms.pop(name).window.clear()
        if self._window_bytes > BUDGET_BYTES:
            for room in self._rooms.values():
                self._window_bytes -= room.window.clear()
                if self._window_bytes <= BUDGET_BYTES:
                    break

    def _oldest_idle(self, count: int) -> Iterable[RoomName]:
        idle = (n for n, room in self._rooms.items() if not room.busy and n not in self._dirty)
        return [name for name, _ in zip(idle, range(count), strict=False)]

    # -- the log

    async def append(self, room: Room, record: RoomRecord) -> None:
        """Append a record of a room and wait for the log. StoreError: the outcome is not known."""
        data = record.encode()
        room.busy += 1
        try:
            offset = await self._all.log.append(self.number, record.key, data)
            failpoints.hit("rooms.record_written")
        except QimError:
            metrics.APPENDS_FAILED.inc()
            raise
        finally:
            room.busy -= 1
            self._dirty.add(room.name)  # its number is used, whatever became of the record
        room.logged = max(room.logged, record.room_seq)
        self._window_bytes += room.window.add(record, data)
        self._offset = max(self._offset, offset + 1)
        self._keep_bounds()

    @property
    def rooms_kept(self) -> int:
        """Rooms in memory."""
        return len(self._rooms)
