"""The records: what lies in the logs and the stores, field by field.

A record is a frozen value with `encode()` and a `decode_*` function; the fields stand in the order
of their bytes. Optional trailing fields of newer versions are kept in `extra`.

* `MessageRecord`: the canonical message (hot tier, Outbox, archive).
* `OutboxRecord`: a MessageRecord on its way, with the owner's epoch and an optional member snapshot.
* `GroupDispatch`: a message for one MailboxShard, without body (dispatch log).
* `UserMailboxEntry`: one row of a mailbox, shared by all recipients but the sender.
* `Presence`: a device that can be pushed to, and where.
* `PushBatch`, `PushItem`, `Recipient`: bodies encoded once and who gets them.

Spec: §3, §4, §5, §6.
"""

import struct
from typing import Any, NamedTuple

from qim_streams.codec import Layout, pack_fields
from qim_streams.errors import RecordError
from qim_streams.ids import ID_BYTES

STATE_NORMAL, STATE_EDITED, STATE_RECALLED = 0, 1, 2
KIND_MESSAGE, KIND_EDIT, KIND_RECALL = 0, 1, 2  # the latter two: `operations.rules`

FLAG_COUNTS_UNREAD = 1
FLAG_AFFECTS_ORDER = 2
RECIPIENT_FLAGS = FLAG_COUNTS_UNREAD | FLAG_AFFECTS_ORDER
SENDER_FLAGS = FLAG_AFFECTS_ORDER
OPERATION_FLAGS = 0  # an edit or recall is neither unread nor news

OUTBOX_RELAYED = 1  # appended again by the relay: the first copy may exist
OUTBOX_BARRIER = 2  # no message: from here on older epochs do not count (`ownership.log_fence`)

_HEAD = struct.Struct(">BQQ")  # version, conversation_seq, membership_version: written by the commit script
_U32 = struct.Struct("<I")


# A record from a tuple that is known to fit: a NamedTuple's own __new__ costs twice as much.
_new = tuple.__new__


def _id16(what: str, *values: bytes) -> None:
    for value in values:
        if len(value) != ID_BYTES:
            raise RecordError(f"{what}: an id of {len(value)} bytes, expected {ID_BYTES}")


def message_head(conversation_seq: int, membership_version: int) -> bytes:
    """The first bytes of a MessageRecord: what the commit script puts in front of `MessageRecord.tail()`."""
    return _HEAD.pack(1, conversation_seq, membership_version)


class MessageRecord(NamedTuple):
    """The canonical message. `body` is opaque to every stage; `body_digest` is made from it on demand."""

    conversation_seq: int
    membership_version: int
    tenant_id: str
    conversation_id: str
    message_id: bytes
    last_activity_id: bytes
    sender_id: str
    sender_ordinal: int
    sender_device_id: str
    client_message_id: str
    fencing_epoch: int
    committed_at: int  # milliseconds since the epoch
    kind: int
    state: int
    body: bytes
    extra: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """Head (version, seq, membership version) followed by `tail()`."""
        return message_head(self.conversation_seq, self.membership_version) + self.tail()

    def tail(self) -> bytes:
        """The bytes that do not depend on what the commit script allocates."""
        return pack_fields(self[2:15] + self.extra)


_MESSAGE = Layout("MessageRecord", str, str, bytes, bytes, str, int, str, str, int, int, int, int, bytes)


def decode_message(data: bytes) -> MessageRecord:
    """A MessageRecord from its bytes; RecordError if they are not one."""
    if len(data) <= _HEAD.size:
        raise RecordError(f"MessageRecord: {len(data)} bytes are too few")
    version, seq, membership_version = _HEAD.unpack_from(data)
    if version != 1:
        raise RecordError(f"MessageRecord: version {version}, this reader knows version 1")
    fields = _MESSAGE.read(data, _HEAD.size)
    if not (len(fields[2]) == ID_BYTES == len(fields[3])):
        _id16("MessageRecord", fields[2], fields[3])
    extra = fields[13:]
    return _new(MessageRecord, (seq, membership_version, *fields[:13], extra))


class OutboxRecord(NamedTuple):
    """One value of ``qim.outbox.v1``; the Kafka key is ``tenant NUL conversation``.

    `members` is a snapshot for small conversations: {shard: (bitmap version, packed u32 ordinals)};
    None means that the fan-out stage loads the version from the membership store.
    """

    message: bytes  # MessageRecord bytes
    fencing_epoch: int
    flags: int
    members: dict[int, tuple[int, bytes]] | None
    extra: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """The record's bytes."""
        return pack_fields(self[:4] + self.extra)


_OUTBOX = Layout("OutboxRecord", bytes, int, int, dict[int, tuple[int, bytes]] | None)


def decode_outbox(data: bytes) -> OutboxRecord:
    """An OutboxRecord from its bytes; RecordError if they are not one."""
    fields = _OUTBOX.read(data)
    return _new(OutboxRecord, (*fields[:4], fields[4:]))


class GroupDispatch(NamedTuple):
    """One message for one MailboxShard. No body. Spec: §4."""

    tenant_id: str
    dispatch_id: bytes
    message_id: bytes
    conversation_id: str
    conversation_seq: int
    last_activity_id: bytes
    sender_id: str
    fencing_epoch: int
    membership_version: int
    target_mailbox_shard: int
    # event_template:
    kind: int
    sender_ordinal: int
    sender_device_id: str
    client_message_id: str
    body_digest: bytes  # 8 bytes: tells a repeated record from a forged one
    outbox_partition: int
    outbox_offset: int
    committed_at: int
    bitmap_version: int
    members: bytes | None  # packed u32 ordinals when few; None = load the bitmap
    extra: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """The record's bytes."""
        return pack_fields(self[:20] + self.extra)


_DISPATCH_HEAD = (str, bytes, bytes, str, int, bytes, str, int, int, int)
_DISPATCH_TEMPLATE = (int, int, str, str, bytes, int, int, int, int, bytes | None)
_DISPATCH = Layout("GroupDispatch", *_DISPATCH_HEAD, *_DISPATCH_TEMPLATE)


def decode_dispatch(data: bytes) -> GroupDispatch:
    """A GroupDispatch from its bytes; RecordError if they are not one."""
    fields = _DISPATCH.read(data)
    if not (len(fields[1]) == len(fields[2]) == ID_BYTES == len(fields[5])):
        _id16("GroupDispatch", fields[1], fields[2], fields[5])
    if fields[19] is not None and len(fields[19]) % 4:
        raise RecordError("GroupDispatch: members is not a sequence of u32")
    return _new(GroupDispatch, (*fields[:20], fields[20:]))


class UserMailboxEntry(NamedTuple):
    """What a mailbox stores of an event; user, mailbox_seq and event_ordinal are its address. Spec: §5."""

    kind: int
    message_id: bytes
    conversation_id: str
    conversation_seq: int
    sender_id: str
    flags: int
    created_at: int
    client_message_id: str | None  # on the sender's entry only
    visibility_floor: int = 0
    extra: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """The value's bytes."""
        return pack_fields(self[:9] + self.extra)


_ENTRY = Layout("UserMailboxEntry", int, bytes, str, int, str, int, int, str | None, int)


def decode_entry(data: bytes) -> UserMailboxEntry:
    """A UserMailboxEntry from its bytes; RecordError if they are not one."""
    fields = _ENTRY.read(data)
    _id16("UserMailboxEntry", fields[1])
    return _new(UserMailboxEntry, (*fields[:9], fields[9:]))


class Presence(NamedTuple):
    """A device with a live connection; the Kafka key is ``tenant NUL user NUL device``. Spec: §6."""

    tenant_id: str
    user_id: str
    ordinal: int
    device_id: str
    connection_shard: int
    connection_id: int  # u64: epoch of the ConnectionShard lease in the high half
    session_epoch: int
    at_ms: int

    def encode(self) -> bytes:
        """The record's bytes."""
        return pack_fields(tuple(self))


_PRESENCE = Layout("Presence", str, str, int, str, int, int, int, int)


def decode_presence(data: bytes) -> Presence:
    """A Presence from its bytes; RecordError if they are not one."""
    fields = _PRESENCE.read(data)
    return Presence(*fields[:8])


class Recipient(NamedTuple):
    """One device of a PushItem. `client_message_id` is set for the sender's own devices. Spec: §6."""

    connection_id: int
    session_epoch: int
    event_id: bytes
    flags: int
    mention_type: int
    client_message_id: str | None


class PushItem(NamedTuple):
    """One event for the devices of one ConnectionShard.

    `common_body` is the msgpack map of ``wire`` field ``message``, encoded once for all recipients.
    """

    mailbox_seq: int
    event_ordinal: int
    common_body: bytes
    recipients: list[Recipient]
    committed_at: int


class PresenceReady(NamedTuple):
    """The mailbox stage knows this connection: every entry above `from_seq` will be pushed to it."""

    connection_id: int
    session_epoch: int
    from_seq: int


class PushBatch(NamedTuple):
    """One value of ``qim.push.v1``: what one batch of a MailboxShard has for one ConnectionShard."""

    tenant_id: str
    mailbox_shard: int
    fencing_epoch: int
    items: list[PushItem]
    ready: list[PresenceReady]

    def encode(self) -> bytes:
        """The record's bytes; RecordError when over the record limit (the caller splits batches)."""
        return pack_fields(tuple(self))


_RECIPIENT = tuple[int, int, bytes, int, int, str | None]
_ITEM = tuple[int, int, bytes, tuple[_RECIPIENT, ...], int]
_PUSH = Layout("PushBatch", str, int, int, tuple[_ITEM, ...], tuple[tuple[int, int, int], ...])


def decode_push(data: bytes) -> PushBatch:
    """A PushBatch from its bytes; RecordError if they are not one."""
    fields = _PUSH.read(data)
    items = [
        _new(PushItem, (seq, ordinal, body, [_new(Recipient, one) for one in recipients], at))
        for seq, ordinal, body, recipients, at in fields[3]
    ]
    return PushBatch(fields[0], fields[1], fields[2], items, [PresenceReady(*one) for one in fields[4]])


def pack_ordinals(ordinals: list[int]) -> bytes:
    """Ordinals, ascending, as little-endian u32."""
    return struct.pack(f"<{len(ordinals)}I", *ordinals)


def unpack_ordinals(data: bytes) -> list[int]:
    """The ordinals of `pack_ordinals`."""
    return list(struct.unpack(f"<{len(data) // _U32.size}I", data))


def record_key(*parts: str) -> bytes:
    """A Kafka key: the parts joined by NUL, which no id may contain."""
    return "\0".join(parts).encode()
