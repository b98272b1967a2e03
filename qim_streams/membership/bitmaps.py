"""Member bitmaps: RoaringBitmaps of user ordinals, one per MailboxShard.

Invariants: a bitmap holds exactly the active members of one shard at one version; equal sets give equal
bytes; nobody left is empty bytes. Pure functions on bytes.

Spec: §4, §5.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyroaring import BitMap

from qim_streams.errors import InvariantViolation, RecordError
from qim_streams.placement import mailbox_shard
from qim_streams.records import pack_ordinals

MemberSnapshot = dict[int, tuple[int, bytes]]  # shard -> (bitmap version, packed ordinals)


class Seat(NamedTuple):
    """A user of a tenant as bitmaps see him."""

    user_id: str
    ordinal: int


def decode(data: bytes) -> BitMap:
    """The set of a stored bitmap; RecordError if the bytes are not one."""
    if not data:
        return BitMap()
    try:
        return BitMap.deserialize(data)
    except ValueError as error:
        raise RecordError(f"member bitmap of {len(data)} bytes: {error}") from error


def encode(members: BitMap) -> bytes:
    """The bytes of a set; empty for the empty set."""
    if not members:
        return b""
    members.run_optimize()
    return bytes(members.serialize())


def by_shard(tenant_id: str, seats: Iterable[Seat], mailbox_shards: int) -> dict[int, list[int]]:
    """Ordinals grouped by the MailboxShard of their user."""
    grouped: dict[int, list[int]] = {}
    for seat in seats:
        grouped.setdefault(mailbox_shard(tenant_id, seat.user_id, mailbox_shards), []).append(seat.ordinal)
    return grouped


def changed(
    current: Mapping[int, bytes], joins: Mapping[int, list[int]], leaves: Mapping[int, list[int]]
) -> dict[int, bytes]:
    """New bitmaps of the shards that `joins` and `leaves` touch.

    `current` holds the bitmaps of all touched shards that have members. InvariantViolation when somebody
    joins who is in, or leaves who is not: then rows and bitmaps of the version disagree.
    """
    result: dict[int, bytes] = {}
    for shard in {*joins, *leaves}:
        members = decode(current.get(shard, b""))
        leaving, joining = BitMap(leaves.get(shard, ())), BitMap(joins.get(shard, ()))
        if not leaving.issubset(members) or joining.intersect(members):
            raise InvariantViolation(f"shard {shard}: member bitmap and member rows disagree")
        members -= leaving
        members |= joining
        result[shard] = encode(members)
    return result


def snapshot(version_map: Mapping[int, int], bitmaps: Mapping[int, bytes]) -> MemberSnapshot:
    """The members of a version as they travel in an Outbox record."""
    return {
        shard: (version, pack_ordinals(list(decode(bitmaps[shard]))))
        for shard, version in sorted(version_map.items())
    }
