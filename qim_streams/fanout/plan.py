"""The dispatch plan: from one Outbox record and the shards of its membership version to GroupDispatches.

Exactly one dispatch per shard that has members, however many; direct chats take the same path. Every
byte follows from the record, its place in the Outbox and the immutable version: planning it again after
a crash gives the same bytes (I10).

Pure. Spec: §4.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
from blake3 import blake3

from qim_streams import ids
from qim_streams.codec import RECORD_BYTES_MAX
from qim_streams.errors import RecordError
from qim_streams.log_ports import LogRecord
from qim_streams.placement import ORDINAL_MAX, outbox_partition
from qim_streams.records import (
    GroupDispatch,
    MessageRecord,
    OutboxRecord,
    decode_message,
    decode_outbox,
    record_key,
)

BODY_DIGEST_BYTES = 8
_U64_MAX = 2**64 - 1

_pack = msgspec.msgpack.Encoder().encode
_DISPATCH_START = b"\x01\xdc\x00\x14"  # version, array of 20 fields
_VERSIONED_START = b"\x01\xdc\x00\x15"  # of 21: with the mapping version, where there was a split
_ID_START = b"\xc4\x10"  # 16 bytes follow

ShardMap = Mapping[int, tuple[int, bytes | None]]  # shard -> (bitmap version, packed ordinals if inline)

_text_id = lru_cache(maxsize=65_536)(ids.is_text_id)  # of names that come again and again
_new = tuple.__new__


class OutboxMessage(NamedTuple):
    """An Outbox record as read, decoded and checked."""

    partition: int
    offset: int
    key: bytes
    outbox: OutboxRecord
    message: MessageRecord

    @property
    def conversation(self) -> tuple[str, str]:
        """Tenant and conversation."""
        message = self.message
        return message.tenant_id, message.conversation_id


def read_outbox(record: LogRecord, partition: int, partitions: int, mailbox_shards: int) -> OutboxMessage:
    """The message of a record read from `partition`; RecordError says why it is not one.

    Checked: ids, numbers that go into fixed-width fields, that the key names the conversation, that the
    conversation belongs into this partition, and that every shard exists.
    """
    value = record.value
    if value is None:
        raise RecordError("OutboxRecord: a tombstone")
    outbox = decode_outbox(value)
    message = decode_message(outbox.message)
    (
        seq, _, tenant_id, conversation_id, _, _, sender_id, ordinal, device_id, client_message_id, _,
        committed_at, kind, _, _, _,
    ) = message  # fmt: skip
    key, home = _place_of(tenant_id, conversation_id, partitions)
    if not key:
        raise RecordError("OutboxRecord: tenant or conversation is not an id")
    if not (_text_id(sender_id) and _text_id(device_id)):
        raise RecordError("OutboxRecord: sender or device is not an id")
    if not ids.is_text_id(client_message_id):
        raise RecordError("OutboxRecord: client_message_id is not an id")
    if record.key != key:
        raise RecordError("OutboxRecord: the key is not that of its conversation")
    if home != partition:
        raise RecordError(f"OutboxRecord: its conversation does not belong into partition {partition}")
    if not (
        seq >= 1
        and 0 <= ordinal <= ORDINAL_MAX
        and 0 <= committed_at <= _U64_MAX
        and 0 <= kind <= ORDINAL_MAX
        and 0 <= outbox.fencing_epoch <= _U64_MAX
    ):
        raise RecordError("OutboxRecord: a number is out of its range")
    members = outbox.members
    if members:
        for shard, (_, packed) in members.items():
            if not 0 <= shard < mailbox_shards or not packed or len(packed) % 4:
                raise RecordError(f"OutboxRecord: members of shard {shard} are malformed")
    return _new(OutboxMessage, (partition, record.offset, key, outbox, message))


@lru_cache(maxsize=65_536)
def _place_of(tenant_id: str, conversation_id: str, partitions: int) -> tuple[bytes, int]:
    """Kafka key and partition of a conversation; an empty key when an id is none."""
    if not (ids.is_text_id(tenant_id) and ids.is_text_id(conversation_id)):
        return b"", -1
    return record_key(tenant_id, conversation_id), outbox_partition(tenant_id, conversation_id, partitions)


def body_digest(body: bytes) -> bytes:
    """8 bytes that tell a repeated record from a forged one."""
    return blake3(body).digest(BODY_DIGEST_BYTES)


def plan(source: OutboxMessage, shards: ShardMap, version: int = 0) -> list[GroupDispatch]:
    """One GroupDispatch per shard of the message's membership version, in shard order; `version`: of the
    mapping."""
    message = source.message
    digest = body_digest(message.body)
    return [
        GroupDispatch(
            tenant_id=message.tenant_id,
            dispatch_id=ids.dispatch_id(message.message_id, shard),
            message_id=message.message_id,
            conversation_id=message.conversation_id,
            conversation_seq=message.conversation_seq,
            last_activity_id=message.last_activity_id,
            sender_id=message.sender_id,
            fencing_epoch=source.outbox.fencing_epoch,
            membership_version=message.membership_version,
            target_mailbox_shard=shard,
            kind=message.kind,
            sender_ordinal=message.sender_ordinal,
            sender_device_id=message.sender_device_id,
            client_message_id=message.client_message_id,
            body_digest=digest,
            outbox_partition=source.partition,
            outbox_offset=source.offset,
            committed_at=message.committed_at,
            bitmap_version=shards[shard][0],
            members=shards[shard][1],
            extra=(version,) if version else (),
        )
        for shard in sorted(shards)
    ]


def encode_plan(source: OutboxMessage, shards: ShardMap, version: int = 0) -> list[tuple[int, bytes]]:
    """(shard, bytes of its GroupDispatch) of `plan`, a fifth of the work for each further shard.

    The fields that all shards share are packed once; each dispatch is put together from bytes.
    """
    partition, offset, _, outbox, message = source
    (
        seq, membership_version, tenant_id, conversation_id, message_id, last_activity_id, sender_id,
        sender_ordinal, device_id, client_message_id, _, committed_at, kind, _, body, _,
    ) = message  # fmt: skip
    # The bytes of a packed array of fewer than 16 items are one byte, then those of the items.
    head = _pack(
        (
            message_id,
            conversation_id,
            seq,
            last_activity_id,
            sender_id,
            outbox.fencing_epoch,
            membership_version,
        )
    )[1:]
    template = _pack(
        (
            kind,
            sender_ordinal,
            device_id,
            client_message_id,
            body_digest(body),
            partition,
            offset,
            committed_at,
        )
    )[1:]
    start, end = (_VERSIONED_START, _pack(version)) if version else (_DISPATCH_START, b"")
    before, found = start + _pack(tenant_id) + _ID_START, []
    for shard in sorted(shards):
        bitmap, members = shards[shard]
        dispatch_id = ids.dispatch_id(message_id, shard)
        data = before + dispatch_id + head + _pack(shard) + template + _pack(bitmap) + _pack(members) + end
        if len(data) > RECORD_BYTES_MAX:
            raise RecordError(f"GroupDispatch: {len(data)} bytes, over the limit of {RECORD_BYTES_MAX}")
        found.append((shard, data))
    return found
