"""What the session projection stores: rows of users, pending registrations, checkpoints of partitions.

The projection (UserSessionProjection) is a view that can be rebuilt: nothing here is the only copy of
anything, except a `Registration` until somebody has written it into UserConversationState.

* A *slot* is (tenant, lane): all keys of its users share one hash tag, so that a user's row and the
  registration of a conversation that is new to him are one atomic write.
* *Activity* is a time in milliseconds, read off a message id (HLC): it orders the list, only grows, and is
  below 2^48. In a conversation it never decreases with conversation_seq.
* A *wide* conversation is one whose activity is kept once, in its head, because a message has too many
  recipients in one shard to write a row for each: rows only say that the user has the conversation. Whoever
  orders a list takes the greater of the row's and the head's activity.
* A *projection epoch* is one life of the projection of a MailboxShard. In epoch 0 everything that the log
  ever held was projected; in a later one only what came after its beginning, and users are rebuilt one by
  one, when they are asked for.

Spec: §9, §14.5.
"""

import struct
from typing import NamedTuple

from qim_streams.errors import RecordError
from qim_streams.placement import lane_of_ordinal

FIRST_EPOCH = 0
NOTHING = -1
ACTIVITY_BYTES = 6  # of a message id (`hlc`)

_REGISTRATION = struct.Struct(">BQQB")
_VERSION = 1

Slot = tuple[str, int]
"""(tenant, lane)."""


class SessionRow(NamedTuple):
    """That a user has a conversation, and its activity (ms) as far as is known to the caller.

    `first_seq` is the lowest conversation_seq that the caller knows the user to have got: it goes into the
    registration if the conversation is new to him.
    """

    ordinal: int
    conversation_id: str
    activity: int
    first_seq: int
    wide: bool = False


class Registration(NamedTuple):
    """A conversation that entered a user's set for the first time, as far as the projection knows.

    At least once: it may come again after the projection was lost, so a state that exists is left alone.
    `first_seq` is the conversation_seq of the message that brought it, `activity` that message's time (ms).
    """

    tenant_id: str
    ordinal: int
    conversation_id: str
    first_seq: int
    activity: int
    wide: bool

    @property
    def field(self) -> str:
        """Its name in the slot's queue."""
        return f"{self.ordinal}:{self.conversation_id}"

    def encode(self) -> bytes:
        """The queued value: version u8, first_seq u64, activity u64, wide u8; the field has the rest.

        `project.lua` writes the same bytes.
        """
        return _REGISTRATION.pack(_VERSION, self.first_seq, self.activity, self.wide)


def decode_registration(tenant_id: str, field: bytes, value: bytes) -> Registration:
    """A Registration of a slot's queue; RecordError when the bytes are not one."""
    ordinal, colon, conversation = field.partition(b":")
    if len(value) != _REGISTRATION.size or value[0] != _VERSION or not colon or not ordinal.isdigit():
        raise RecordError(f"Registration: {len(value)} bytes that this reader does not know")
    _, first_seq, activity, wide = _REGISTRATION.unpack(value)
    return Registration(tenant_id, int(ordinal), conversation.decode(), first_seq, activity, bool(wide))


class Checkpoint(NamedTuple):
    """How far a MailboxShard is projected: every recipient of every record at or below `offset` is written.

    `target` is the last offset that the log held when the epoch began: below it the projection is catching
    up, and lists are not whole.
    """

    epoch: int
    offset: int
    target: int

    @property
    def caught_up(self) -> bool:
        """Whether everything is projected that was in the log when this epoch began."""
        return self.offset >= self.target


class Cover(NamedTuple):
    """Whose rows of a wide conversation exist: everybody's of this member bitmap. Holds in one epoch."""

    epoch: int
    bitmap_version: int


def slot_of(tenant_id: str, ordinal: int) -> Slot:
    """The slot of a user."""
    return tenant_id, lane_of_ordinal(ordinal)


def activity_of(last_activity_id: bytes) -> int:
    """The activity (ms) that a message id stands for."""
    return int.from_bytes(last_activity_id[:ACTIVITY_BYTES], "big")
