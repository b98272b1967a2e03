"""RoomRecord: one value of ``qim.room.v1``; the Kafka key is ``tenant NUL room``, empty for an owner's mark.

* a message has a room_seq of its own, from 1 and without holes as long as nothing is lost;
* an event (mute, close, ...) carries the room_seq of the last message before it and takes none;
* an owner's mark is the first thing that a new owner of the partition appends. It fences the log: what
  comes behind it with a lower epoch was appended by an owner that did not know of its end, and is dropped.

Invariants: any bytes give a record or `RecordError`.

Spec: §10.
"""

from enum import IntEnum
from typing import Any, NamedTuple

from qim_streams.codec import Layout, pack_fields
from qim_streams.errors import RecordError
from qim_streams.ids import ID_BYTES
from qim_streams.records import record_key


class RoomKind(IntEnum):
    """What a record says. The numbers never change."""

    MESSAGE = 0
    OWNER = 1  # another process owns the partition from here on
    MUTE = 2
    UNMUTE = 3
    MUTE_ALL = 4
    UNMUTE_ALL = 5
    KICK = 6
    MODERATOR = 7
    MEMBER = 8
    PLAIN = 9  # moderator or member no more
    ANNOUNCE = 10
    CLOSE = 11


class RoomRecord(NamedTuple):
    """See the module text. `user_id` is whom an event is about, `until_ms` when it ends (0: never)."""

    tenant_id: str
    room_id: str
    epoch: int
    room_seq: int
    kind: int
    message_id: bytes
    sender_id: str  # who said or did it; empty: the operator
    client_message_id: str
    at_ms: int
    body: bytes
    user_id: str = ""
    until_ms: int = 0
    extra: tuple[Any, ...] = ()

    @property
    def key(self) -> bytes:
        """The Kafka key."""
        return room_key(self.tenant_id, self.room_id) if self.room_id else b""

    def encode(self) -> bytes:
        """The record's bytes; RecordError when over the record limit."""
        return pack_fields(self[:12] + self.extra)


_ROOM = Layout("RoomRecord", str, str, int, int, int, bytes, str, str, int, bytes, str, int)


def decode_room(data: bytes) -> RoomRecord:
    """A RoomRecord from its bytes; RecordError if they are not one."""
    fields = _ROOM.read(data)
    if len(fields[5]) != ID_BYTES:
        raise RecordError(f"RoomRecord: an id of {len(fields[5])} bytes, expected {ID_BYTES}")
    if fields[2] < 0 or fields[3] < 0:
        raise RecordError("RoomRecord: a negative epoch or number")
    return RoomRecord._make((*fields[:12], fields[12:]))


def room_key(tenant_id: str, room_id: str) -> bytes:
    """The Kafka key of a room's records."""
    return record_key(tenant_id, room_id)


def owner_mark(epoch: int, at_ms: int) -> RoomRecord:
    """What a new owner of a partition appends first."""
    return RoomRecord("", "", epoch, 0, RoomKind.OWNER, bytes(ID_BYTES), "", "", at_ms, b"")


class LogFence:
    """Drops what former owners of a partition appended behind the mark of a later one. Pure."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch

    def passes(self, record: RoomRecord) -> bool:
        """Whether a record, read in log order, counts."""
        if record.epoch < self.epoch:
            return False
        self.epoch = record.epoch
        return True
