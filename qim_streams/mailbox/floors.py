"""The table ``lane_watermarks``: what W of a shard must never be found below.

One value per shard, absolute: packed W, the epoch that wrote it, and when. It is written after the store
moved, so it never promises more than was true; a store that is found below it, in any lane, has lost
writes, and the shard replays from the store's own W before it is caught up (Spec: §11 rule 2).

It also says since which epoch the shard has been numbered by this log (`kept`). Whoever makes the log anew
deletes the row.

Spec: §5, §14.7.
"""

from typing import NamedTuple

from qim_streams.codec import pack_fields, unpack_fields
from qim_streams.errors import RecordError
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.ports import ChangelogTable
from qim_streams.mailbox.watermark import Marks

_PREFIX = b"w"
UNKNOWN_EPOCH = 0  # epochs count from 1


class Floor(NamedTuple):
    """W of a shard as the table holds it."""

    lanes: tuple[int, ...]
    epoch: int
    at_ms: int
    since_epoch: int = UNKNOWN_EPOCH

    def encode(self) -> bytes:
        """The value's bytes."""
        return pack_fields((rule.pack(self.lanes), self.epoch, self.at_ms, self.since_epoch))


def decode_floor(data: bytes) -> Floor:
    """A Floor from its bytes; RecordError if they are not one."""
    packed, epoch, at_ms, *more = unpack_fields(data, 3, "Floor")
    since = more[0] if more else UNKNOWN_EPOCH
    if not (isinstance(packed, bytes) and type(epoch) is type(at_ms) is type(since) is int):
        raise RecordError("Floor: not a packed watermark and numbers")
    return Floor(rule.unpack(packed), epoch, at_ms, since)


def floor_key(shard: int) -> bytes:
    """The key of a shard's value."""
    return _PREFIX + shard.to_bytes(4, "big")


class WatermarkFloors:
    """Reads and writes the table; partition = shard."""

    def __init__(self, table: ChangelogTable) -> None:
        self._table = table

    def read(self, shard: int) -> Marks:
        """W that the table holds, -1 for none."""
        data = self._table.read(shard, floor_key(shard))
        return rule.NOTHING if data is None else rule.marks(decode_floor(data).lanes)

    def since_epoch(self, shard: int) -> int:
        """Since which epoch the shard has been numbered by this log; `UNKNOWN_EPOCH`: nobody wrote it."""
        data = self._table.read(shard, floor_key(shard))
        return UNKNOWN_EPOCH if data is None else decode_floor(data).since_epoch

    def epoch(self, shard: int) -> int:
        """The epoch of who wrote last; `UNKNOWN_EPOCH`: nobody did."""
        data = self._table.read(shard, floor_key(shard))
        return UNKNOWN_EPOCH if data is None else decode_floor(data).epoch

    def write(self, shard: int, stands: Marks, epoch: int, at_ms: int) -> None:
        """Set the lanes to `stands`; durable after `barrier`. The first writer of a log says since when."""
        lanes = rule.lanes_of(stands)
        since = self.since_epoch(shard) or epoch
        self._table.write_batch(shard, {floor_key(shard): Floor(lanes, epoch, at_ms, since).encode()})

    async def barrier(self, shard: int) -> None:
        """Wait until what was written is in the changelog."""
        await self._table.barrier(shard)
