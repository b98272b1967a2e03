"""Rooms in memory: store, log and writers as the real ones behave, and gateways' halls on top of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from qim_streams.errors import FencedError, StoreError, StoreUnavailable
from qim_streams.gateway.rooms import RoomHall
from qim_streams.ownership.ports import Grant
from qim_streams.placement import room_partition
from qim_streams.rooms.commands import (
    Request,
    RoomAct,
    RoomCreate,
    RoomJoin,
    RoomReceipt,
    RoomSend,
    RoomView,
    read_answer,
)
from qim_streams.rooms.partition import PartitionServices
from qim_streams.rooms.ports import LogRow, StoredRoom
from qim_streams.rooms.rules import NOBODY, RoomHead, Standing
from qim_streams.rooms.writer import RoomWriter
from tests.support.waiting import eventually

PARTITIONS = 2
TENANT = "acme"
Name = tuple[str, str]


class MemoryRoomStore:
    """`RoomStore` in memory; `down` makes it unavailable."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.rooms: dict[Name, StoredRoom] = {}
        self.positions: dict[int, int] = {}
        self.down = False

    def _fenced(self, partition: int, epoch: int) -> None:
        if self.down:
            raise StoreUnavailable("down")
        current = self.epochs.get(partition, 0)
        if epoch != current:
            raise FencedError(f"rm:{partition}", epoch, current)

    async def load(self, partition: int, tenant_id: str, room_id: str) -> StoredRoom | None:
        """See the port."""
        if self.down:
            raise StoreUnavailable("down")
        return self.rooms.get((tenant_id, room_id))

    async def create(self, partition: int, epoch: int, tenant_id: str, room_id: str, head: RoomHead) -> bool:
        """See the port."""
        self._fenced(partition, epoch)
        if (tenant_id, room_id) in self.rooms:
            return False
        self.rooms[tenant_id, room_id] = StoredRoom(head, 0, {})
        return True

    async def put(
        self,
        partition: int,
        epoch: int,
        tenant_id: str,
        room_id: str,
        head: RoomHead,
        standings: Mapping[str, Standing],
    ) -> None:
        """See the port."""
        self._fenced(partition, epoch)
        before = self.rooms.get((tenant_id, room_id))
        if before is None:
            raise StoreError("gone")
        merged = {k: v for k, v in (before.standings | dict(standings)).items() if v != NOBODY}
        self.rooms[tenant_id, room_id] = StoredRoom(head, before.room_seq, merged)

    async def checkpoint(
        self, partition: int, epoch: int, known: int, offset: int, seqs: Mapping[Name, int]
    ) -> int:
        """See the port."""
        self._fenced(partition, epoch)
        stands = self.positions.get(partition, 0)
        if stands < known:
            return stands
        for name, seq in seqs.items():
            before = self.rooms.get(name)
            if before is not None and before.room_seq < seq:
                self.rooms[name] = before._replace(room_seq=seq)
        self.positions[partition] = offset
        return stands

    async def position(self, partition: int) -> int:
        """See the port."""
        if self.down:
            raise StoreUnavailable("down")
        return self.positions.get(partition, 0)


class MemoryRoomLog:
    """`RoomLog` and `RoomLogReader`; `hold` keeps acknowledgements back, `broken` fails appends."""

    def __init__(self) -> None:
        self.rows: dict[int, list[LogRow]] = {}
        self.first: dict[int, int] = {}
        self.broken = False
        self.grown = asyncio.Event()
        self.acks = asyncio.Event()
        self.acks.set()

    async def append(self, partition: int, key: bytes, value: bytes) -> int:
        """See the port."""
        if self.broken:
            raise StoreError("the log is broken")
        rows = self.rows.setdefault(partition, [])
        offset = len(rows)
        rows.append((offset, key, value))
        self.grown.set()
        await self.acks.wait()
        return offset

    async def span(self, partition: int) -> tuple[int, int]:
        """See the port."""
        return self.first.get(partition, 0), len(self.rows.get(partition, []))

    async def read(self, partition: int, start: int) -> AsyncIterator[list[LogRow]]:
        """See the port."""
        rows = self.rows.get(partition, [])[start:]
        for at in range(0, len(rows), 100):
            yield rows[at : at + 100]


class RoomWorld:
    """One store and one log, a writer that owns all partitions, halls that read the log."""

    def __init__(self, **limits: Any) -> None:
        self.store, self.log = MemoryRoomStore(), MemoryRoomLog()
        self.now_ms = time.time_ns() // 1_000_000
        self.now_s = 100.0
        self.ids = 0
        self.body_bytes_max: int = limits.get("body_bytes_max", 8_192)
        self.msg_per_s: float = limits.get("msg_per_s", 1_000_000.0)
        self.writer: RoomWriter | None = None
        self.deadline_s = 60.0

    async def _new_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16, "big")

    def new_writer(self) -> RoomWriter:
        """A writer that owns nothing yet."""
        services = PartitionServices(
            self.store,
            self.log,
            self.log,
            self._new_id,
            lambda: self.now_ms,
            lambda: self.now_s,
            self.msg_per_s,
            30 * 60_000,
        )
        return RoomWriter(services, partition_of, self.body_bytes_max)

    async def take_over(self) -> RoomWriter:
        """Another process owns everything: the one before does not know it yet."""
        writer = self.new_writer()
        for number in range(PARTITIONS):
            self.store.epochs[number] = self.store.epochs.get(number, 0) + 1
            writer.grant(Grant(f"rm:{number}", self.store.epochs[number]))
        await eventually(lambda: len(writer.ready) == PARTITIONS, 60, what="all partitions are served")
        self.writer = writer
        return writer

    def kill(self) -> None:
        """The writer is gone, without a last checkpoint."""
        writer, self.writer = self.writer, None
        if writer is not None:
            for number in range(PARTITIONS):
                writer.revoke(number)

    # -- the links

    async def _ask(self, request: Request) -> tuple[object, ...]:
        end_s = time.monotonic() + self.deadline_s
        while time.monotonic() < end_s:
            answer = (2,) if self.writer is None else await self.writer.execute(request)
            if answer[0] != 2:
                return answer
            await asyncio.sleep(0.01)
        raise StoreUnavailable("no owner")

    async def send(self, request: RoomSend) -> RoomReceipt:
        """As `RoomLinks`."""
        return read_answer(RoomReceipt, await self._ask(request))

    async def join(self, request: RoomJoin) -> RoomView:
        """As `RoomLinks`."""
        return read_answer(RoomView, await self._ask(request))

    async def create(self, request: RoomCreate) -> RoomView:
        """As `RoomLinks`."""
        return read_answer(RoomView, await self._ask(request))

    async def act(self, request: RoomAct) -> RoomView:
        """As `RoomLinks`."""
        return read_answer(RoomView, await self._ask(request))

    async def say(self, room: str, text: str, user: str = "ann", name: str | None = None) -> RoomReceipt:
        """A message of a user."""
        self.ids += 1
        return await self.send(RoomSend(TENANT, room, user, name or f"m{self.ids}", text.encode()))

    async def make(self, room: str = "lobby", owner: str = "ann", policy: str = "open") -> RoomView:
        """A room."""
        return await self.create(RoomCreate(TENANT, room, owner, "", policy))

    async def do(
        self, action: str, user: str = "", actor: str | None = "ann", room: str = "lobby", seconds: int = 0
    ) -> RoomView:
        """An action."""
        return await self.act(RoomAct(TENANT, room, actor, action, user, seconds, b""))

    async def look(self, room: str = "lobby", limit: int = 200, user: str | None = None) -> RoomView:
        """The room as its writer sees it."""
        return await self.join(RoomJoin(TENANT, room, user, limit))

    # -- halls

    @asynccontextmanager
    async def hall(self, frame_rate: float = 50.0) -> AsyncIterator[RoomHall]:
        """The rooms of one gateway, reading the log."""
        follower = LogFollower(self.log)
        hall = RoomHall(
            self,
            follower,
            PARTITIONS,
            frame_rate=frame_rate,
            by_users=True,
            retention_ms=30 * 60_000,
            now_ms=lambda: self.now_ms,
        )
        tasks = [asyncio.create_task(hall.run()), asyncio.create_task(follower.run(hall))]
        try:
            yield hall
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class LogFollower:
    """A `Watcher` on the log in memory."""

    def __init__(self, log: MemoryRoomLog) -> None:
        self._log = log
        self.watched: dict[int, int] = {}  # partition -> next offset

    async def watch(self, partition: int) -> int:
        """See `gateway.rooms.Watcher`."""
        end = len(self._log.rows.get(partition, []))
        self.watched.setdefault(partition, max(0, end - 500))
        return end

    def unwatch(self, partition: int) -> None:
        """See `gateway.rooms.Watcher`."""
        self.watched.pop(partition, None)

    async def run(self, hall: RoomHall) -> None:
        """Deliver what comes."""
        while True:
            for partition, start in list(self.watched.items()):
                rows: Sequence[LogRow] = self._log.rows.get(partition, [])[start:]
                if rows and partition in self.watched:
                    self.watched[partition] = rows[-1][0] + 1
                    await hall.deliver(partition, [row for row in rows if hall.wants(row[1])])
            await asyncio.sleep(0.002)


def partition_of(tenant_id: str, room_id: str) -> int:
    """The partition of a room here."""
    return room_partition(tenant_id, room_id, PARTITIONS)
