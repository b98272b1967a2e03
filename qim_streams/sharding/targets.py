"""From groups to shards: the mapping version of each place in the Outbox, and what fan-out writes to.

A version is in force from its marker on. Where a worker goes on in the middle of a partition, its page says
which one; a marker that retention has removed is known from the log of mappings.

Members that travel in the record are divided here, so nobody gets a dispatch for nothing. A group whose
members are a bitmap goes to all its shards; each takes its own out of it (`mailbox.members`), perhaps none.

Spec: §4, §11.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from qim_streams.log_ports import LogBatch
from qim_streams.records import pack_ordinals, unpack_ordinals
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.marker import MARKER_KEY, behind
from qim_streams.sharding.rules import Placement

BEFORE_ALL: Final = -1
ShardMap = Mapping[int, tuple[int, bytes | None]]  # group or shard -> (bitmap version, packed ordinals)
Turns = list[tuple[int, int]]
"""(offset, version behind it), ascending; the first is (BEFORE_ALL, version before the batch)."""


def spread(groups: ShardMap, placement: Placement, version: int) -> ShardMap:
    """The same members by shard."""
    if not version:
        return groups
    found: dict[int, tuple[int, bytes | None]] = {}
    for group, (bitmap, packed) in groups.items():
        shards = placement.targets(group, version)
        if len(shards) == 1 or packed is None:
            found |= dict.fromkeys(shards, (bitmap, packed))
            continue
        ordinals = unpack_ordinals(packed)
        for shard in shards:
            share = placement.select(ordinals, shard, version)
            if share:
                found[shard] = bitmap, pack_ordinals(share)
    return found


def version_at(turns: Turns, offset: int) -> int:
    """The version in force for the record at `offset`."""
    return next(version for at, version in reversed(turns) if at < offset)


class OutboxVersions:
    """The versions in force at the positions of one fan-out worker."""

    def __init__(self, mappings: Mappings) -> None:
        self._mappings = mappings
        self._stands: dict[int, int] = {}

    async def begin(self, partition: int, version: int, start: int) -> None:
        """A worker goes on at `start`; its page says `version`. StoreUnavailable: call again."""
        splits = (await self._mappings.load()).mapping.splits
        passed = [split.version for split in splits if split.marks and split.marks[partition] < start]
        self._stands[partition] = max([version, *passed])

    def turns(self, batch: LogBatch) -> Turns:
        """Where in a batch another version begins."""
        version = self._stands.get(batch.partition, 0)
        found = [(BEFORE_ALL, version)]
        for record in batch.records:
            if record.key == MARKER_KEY:
                after = behind(version, record.key, record.value)
                if after != version:
                    version = after
                    found.append((record.offset, version))
        return found

    async def placement(self, turns: Iterable[Turns]) -> Placement:
        """One that knows all these versions. StoreUnavailable: call again."""
        return await self._mappings.at_least(max((one[-1][1] for one in turns), default=0))

    def note(self, partition: int, turns: Turns) -> None:
        """The batch with these turns is dispatched."""
        self._stands[partition] = turns[-1][1]

    def of(self, partition: int) -> int:
        """The version in force behind everything that was noted."""
        return self._stands.get(partition, 0)
