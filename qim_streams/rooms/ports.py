"""What a RoomWriter needs: where rooms are kept, and the room log.

Spec: §10.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import NamedTuple, Protocol

from qim_streams.rooms.rules import RoomHead, Standing


class StoredRoom(NamedTuple):
    """A room as the store has it. `room_seq` is that of the last checkpoint: the log may be further."""

    head: RoomHead
    room_seq: int
    standings: dict[str, Standing]


class RoomStore(Protocol):
    """Rooms of all partitions. FencedError: another owner; StoreError; repeating a call is safe."""

    async def load(self, partition: int, tenant_id: str, room_id: str) -> StoredRoom | None:
        """A room, None when there is no such room."""

    async def create(self, partition: int, epoch: int, tenant_id: str, room_id: str, head: RoomHead) -> bool:
        """Keep a new room; False when one of this id is there."""

    async def put(
        self,
        partition: int,
        epoch: int,
        tenant_id: str,
        room_id: str,
        head: RoomHead,
        standings: Mapping[str, Standing],
    ) -> None:
        """Replace the head of a room and the given standings; a closed room leaves the list."""

    async def checkpoint(
        self, partition: int, epoch: int, known: int, offset: int, seqs: Mapping[tuple[str, str], int]
    ) -> int:
        """Everything below log offset `offset` is reflected in the room_seqs: `seqs` by (tenant, room).

        Where the position stood before. Lower than `known`, where the caller left it: the store lost its last
        checkpoints, and nothing is noted.
        """

    async def position(self, partition: int) -> int:
        """The offset of the last checkpoint, 0 when there is none."""


class RoomListing(Protocol):
    """Rooms of a tenant, for the admin API."""

    async def rooms(self, tenant_id: str, after_room_id: str, limit: int) -> list[str]:
        """Ids of open rooms in ascending order, above `after_room_id`, at most `limit`."""


class RoomCounts(Protocol):
    """How many connections rooms have over all gateways; lossy, with a time to live."""

    async def exchange(
        self, gateway: str, counts: Mapping[tuple[str, str], int], now_ms: int
    ) -> dict[tuple[str, str], int]:
        """Say this gateway's counts (0: none any more) by (tenant, room); the totals of the same rooms."""

    async def totals(self, rooms: Sequence[tuple[str, str]], now_ms: int) -> list[int]:
        """The totals of rooms."""


LogRow = tuple[int, bytes, bytes]  # offset, key, value


class RoomLogReader(Protocol):
    """Reading the room log from an offset on. StoreUnavailable when it does not answer."""

    async def span(self, partition: int) -> tuple[int, int]:
        """(first offset, offset behind the last one)."""

    def read(self, partition: int, start: int) -> AsyncIterator[list[LogRow]]:
        """Batches from `start` to the end as of this call."""


class RoomLog(Protocol):
    """Appending to the room log; order per partition is the order of the calls."""

    def append(self, partition: int, key: bytes, value: bytes) -> Awaitable[int]:
        """The offset, once acknowledged; StoreError with outcome UNKNOWN, RecordTooLargeError."""
