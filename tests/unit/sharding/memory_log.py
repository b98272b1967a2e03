"""A log of mappings in memory, and mappings that were split."""

from collections.abc import Mapping

from qim_streams.sharding import rules
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.mapping_log import encode
from qim_streams.sharding.rules import ShardMapping


class MemoryMappingLog:
    """`MappingLog` in memory."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    async def read(self, start: int) -> tuple[list[bytes], int]:
        """See the port."""
        return self.values[start:], len(self.values)

    async def append(self, key: bytes, value: bytes) -> None:
        """See the port."""
        self.values.append(value)


def write_split(log: MemoryMappingLog, ends: Mapping[int, int], groups: int = 2) -> ShardMapping:
    """Append a whole split of the shards in `ends`, which end there (inclusive)."""
    mapping = rules.plan(
        ShardMapping(groups), sorted(ends), {one: at + 1 for one, at in ends.items()}, [0], 64
    )
    steps = [mapping, rules.prepared(mapping)]
    steps.append(rules.marked(steps[-1], [0]))
    steps.append(rules.settled(steps[-1], {one: at + 1 for one, at in ends.items()}))
    log.values += [encode(one) for one in steps]
    return steps[-1]


async def split(ends: Mapping[int, int], groups: int = 2) -> Mappings:
    """Mappings after a settled split."""
    log = MemoryMappingLog()
    write_split(log, ends, groups)
    mappings = Mappings(groups, log)
    await mappings.load()
    return mappings
