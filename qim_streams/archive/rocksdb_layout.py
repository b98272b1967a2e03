"""Keys of the RocksDB archive, ordered so that a conversation is one range of keys in seq order.

::

    v                                                -> layout version, one byte
    w <outbox partition, u32 big-endian>             -> archive watermark + 1, u64 big-endian
    f <outbox partition, u32 big-endian>             -> epoch of the last barrier passed, u64 big-endian
    m <tenant> NUL <conversation> NUL <seq, u64 big-endian>  -> MessageRecord bytes, in front of them
                                                               NUL and the revision (u32) unless it is 0
    u <tenant> NUL <user> NUL <conversation>         -> version (u64) and UserConversationState bytes

A MessageRecord begins with its version, which is never 0, so the two forms cannot be mistaken.
Ids contain no NUL (``ids.is_text_id``), so no two addresses share a key and no conversation's range
reaches into another's. Pure: no store is touched here.

Spec: §2, §14.8.
"""

import struct

VERSION_KEY = b"v"
VERSION = b"\x01"

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


def watermark_key(partition: int) -> bytes:
    """The key of a partition's watermark."""
    return b"w" + _U32.pack(partition)


def fence_key(partition: int) -> bytes:
    """The key of a partition's fence."""
    return b"f" + _U32.pack(partition)


def encode_fence(epoch: int) -> bytes:
    """The value of a fence."""
    return _U64.pack(epoch)


def decode_fence(value: bytes | None) -> int:
    """The fence of a stored value; 0 for a missing one."""
    return 0 if value is None else int(_U64.unpack(value)[0])


def encode_watermark(watermark: int) -> bytes:
    """The value of a watermark from -1 (nothing) on."""
    return _U64.pack(watermark + 1)


def decode_watermark(value: bytes | None) -> int:
    """The watermark of a stored value; -1 for a missing one."""
    return -1 if value is None else int(_U64.unpack(value)[0]) - 1


def conversation_prefix(tenant_id: str, conversation_id: str) -> bytes:
    """What every key of a conversation begins with, and no other key does."""
    return b"m%b\0%b\0" % (tenant_id.encode(), conversation_id.encode())


def message_key(tenant_id: str, conversation_id: str, seq: int) -> bytes:
    """The key of a message; 0 <= seq <= SEQ_MAX."""
    return conversation_prefix(tenant_id, conversation_id) + _U64.pack(seq)


def encode_message(record: bytes, revision: int) -> bytes:
    """The value of a message; `record` must not begin with NUL."""
    return record if revision == 0 else b"\0" + _U32.pack(revision) + record


def decode_message(value: bytes) -> tuple[bytes, int]:
    """MessageRecord bytes and revision of a stored value."""
    if value[:1] != b"\0":
        return value, 0
    start = 1 + _U32.size
    return value[start:], int(_U32.unpack(value[1:start])[0])


def user_prefix(tenant_id: str, user_id: str) -> bytes:
    """What every state of a user begins with, and no other key does."""
    return b"u%b\0%b\0" % (tenant_id.encode(), user_id.encode())


def state_key(tenant_id: str, user_id: str, conversation_id: str) -> bytes:
    """The key of a user's state in a conversation."""
    return user_prefix(tenant_id, user_id) + conversation_id.encode()


def encode_state(state: bytes, version: int) -> bytes:
    """The value of a state."""
    return _U64.pack(version) + state


def decode_state(value: bytes) -> tuple[bytes, int]:
    """State bytes and version of a stored value."""
    return value[_U64.size :], int(_U64.unpack(value[: _U64.size])[0])


def seq_of(key: bytes) -> int:
    """The conversation_seq of a message key."""
    return int(_U64.unpack(key[-_U64.size :])[0])
