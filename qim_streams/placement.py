"""Placement: which partition, shard and lane a conversation or user belongs to.

Invariants: pure functions of ids; a user's lane does not contain the shard count and therefore
survives a shard split; every hash has a domain of its own, so shard and lane are independent.

Spec: §2.
"""

from functools import lru_cache

from blake3 import blake3

from qim_streams.ids import LaneId, ShardId, UserOrdinal

LANES = 64
LANE_BITS = 6
ORDINAL_MAX = 2**32 - 1
_CACHE_MAX = 65_536


def key_partition(domain: bytes, key: bytes, partitions: int) -> int:
    """Where the records of a key go in a log whose hash has this domain, 0 <= result < partitions."""
    return _number(domain + key) % partitions


def _hash(domain: bytes, *parts: str) -> int:
    return _number(domain + "\0".join(parts).encode())


def _number(material: bytes) -> int:
    return int.from_bytes(blake3(material).digest(8), "big")


@lru_cache(maxsize=_CACHE_MAX)
def outbox_partition(tenant_id: str, conversation_id: str, partitions: int) -> int:
    """The Outbox partition of a conversation, 0 <= result < partitions."""
    return _hash(b"qim.outbox\0", tenant_id, conversation_id) % partitions


@lru_cache(maxsize=_CACHE_MAX)
def room_partition(tenant_id: str, room_id: str, partitions: int) -> int:
    """The partition of a room's log, 0 <= result < partitions."""
    return _hash(b"qim.room\0", tenant_id, room_id) % partitions


@lru_cache(maxsize=_CACHE_MAX)
def mailbox_shard(tenant_id: str, user_id: str, shards: int) -> ShardId:
    """The MailboxShard (= dispatch partition) of a user, 0 <= result < shards."""
    return ShardId(_hash(b"qim.shard\0", tenant_id, user_id) % shards)


@lru_cache(maxsize=_CACHE_MAX)
def lane(tenant_id: str, user_id: str) -> LaneId:
    """The lane of a user, 0..63."""
    return LaneId(_hash(b"qim.lane\0", tenant_id, user_id) % LANES)


def ordinal_of(count: int, lane_id: int) -> UserOrdinal:
    """The ordinal of the `count`-th user (from 0) of a lane; OverflowError beyond u32."""
    value = (count << LANE_BITS) | lane_id
    if value > ORDINAL_MAX:
        raise OverflowError(f"lane {lane_id} of this tenant is full: {count} users")
    return UserOrdinal(value)


def lane_of_ordinal(ordinal: int) -> LaneId:
    """The lane of a user ordinal, read off its low six bits."""
    return LaneId(ordinal & (LANES - 1))
