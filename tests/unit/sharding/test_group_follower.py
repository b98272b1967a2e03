"""Logs that stay partitioned by group, followed for shards. Spec: §6, §11."""

from collections.abc import Sequence

from qim_streams.log_ports import LogRecord
from qim_streams.push.ports import OnRecords
from qim_streams.sharding import rules
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.group_follower import GroupFollower
from qim_streams.sharding.mapping_log import encode
from qim_streams.sharding.rules import ShardMapping
from tests.support.waiting import eventually
from tests.unit.sharding.memory_log import MemoryMappingLog


class Inner:
    """A follower by partition that remembers what it was asked for."""

    def __init__(self) -> None:
        self.followed: list[int] = []
        self.reading: set[int] = set()
        self.on_records: OnRecords | None = None

    def start(self, on_records: OnRecords) -> None:
        self.on_records = on_records

    async def follow(self, partition: int) -> None:
        self.followed.append(partition)
        self.reading.add(partition)

    def unfollow(self, partitions: frozenset[int]) -> None:
        self.reading -= partitions

    def failure(self) -> BaseException | None:
        return None

    async def close(self) -> None:
        self.reading.clear()


async def test_a_shard_goes_over_to_its_group_when_it_is_made() -> None:
    log, inner, got = MemoryMappingLog(), Inner(), list[int]()
    mappings = Mappings(2, log)
    follower = GroupFollower(inner, mappings)

    async def on_records(shard: int, records: Sequence[LogRecord]) -> None:
        got.append(shard)

    follower.start(on_records)
    for shard in (0, 1, 2):
        await follower.follow(shard)
    assert inner.reading == {0, 1, 2}
    planned = rules.plan(ShardMapping(2), [0], {0: 3}, [0], 4)
    log.values += [encode(planned), encode(rules.prepared(planned))]
    await mappings.load()
    await eventually(lambda: inner.reading == {0, 1}, 10, "shard 2 to follow partition 0")
    assert inner.followed[-1] == 0, "from its beginning, for the new one"
    assert inner.on_records is not None
    await inner.on_records(0, ())
    await inner.on_records(2, ())
    assert got == [0, 2]
    follower.unfollow(frozenset({0}))
    assert inner.reading == {0, 1}, "shard 2 still needs it"
    follower.unfollow(frozenset({2}))
    assert inner.reading == {1}
    await follower.close()
    assert not mappings.on_change
