"""The shard map and the steps of a split as the console shows them. Spec: §11."""

from collections.abc import Sequence

import pytest

from qim_streams.console.shard_map import ShardMap
from qim_streams.errors import ProtocolError
from qim_streams.mailbox.ports import WatermarkState
from qim_streams.ownership.ports import Holder
from qim_streams.sharding.rules import Pair, Placement, ShardMapping, Split, Step
from qim_streams.sync.boundaries import EpochBoundary

PAIRS = (Pair(0, 2, 0, 1_000), Pair(1, 3, 0, 1_000))


class World:
    """Logs and stores of two shards that were split, or not."""

    def __init__(self, *splits: Split) -> None:
        self.placement = Placement(ShardMapping(2, len(splits), splits))
        self.waters = {0: 50, 1: 60, 2: 1_005, 3: -1}
        self.fanout = [10, 10]
        self.written, self.leased = 12, 13  # epochs

    async def load(self) -> Placement:
        return self.placement

    async def outbox_ends(self) -> list[int]:
        return [20, 20]

    async def dispatch_ends(self) -> list[int]:
        return [51, 61, 6, 0]

    async def dispatched(self) -> list[int]:
        return self.fanout

    async def find_marker(self, partition: int, start: int, version: int) -> int | None:
        raise AssertionError("nothing is looked for")

    async def append_marker(self, partition: int, version: int) -> int:
        raise AssertionError("nothing is written")

    async def coverage(self, shards: Sequence[int]) -> list[int]:
        return [self.waters[one] for one in shards]

    async def unserved(self, shards: Sequence[int]) -> list[int]:
        return []

    async def sizes(self, shards: Sequence[int]) -> list[int]:
        return [7 for _ in shards]

    async def watermarks(self, shards: Sequence[int]) -> list[WatermarkState]:
        return [WatermarkState(self.written, tuple(range(64))) for _ in shards]

    async def holders(self, resources: list[str]) -> list[Holder | None]:
        return [
            None if one == "s:1" else Holder(one, "node", 2, "a:1", self.leased, 500) for one in resources
        ]

    async def read(self, shard: int, first: int, last: int) -> list[EpochBoundary | None]:
        assert last - first < 100, "nobody has room for that many"
        return [
            EpochBoundary(epoch, (epoch,) * 64) if epoch > 10 else None for epoch in range(first, last + 1)
        ]

    def map(self) -> ShardMap:
        counts = {"ob": 2, "s": 4, "cs": 1}
        return ShardMap(self.load, self, self, self, self.holders, self, counts)


def split(step: Step, **changes: tuple[int, ...]) -> Split:
    """A split of both shards."""
    return Split(1, PAIRS, step, (5, 5))._replace(**changes)


async def test_a_map_that_was_never_split() -> None:
    view = await World().map().read()
    assert [(one.shard, one.watermark, one.records, one.mailboxes) for one in view.shards] == [
        (0, 50, 51, 7), (1, 60, 61, 7),
    ]  # fmt: skip
    assert (view.shards[0].lease.node, view.shards[0].lease.epoch) == ("node", 13)
    assert view.shards[1].lease.node is None
    assert view.split is None


@pytest.mark.parametrize(
    ("made", "step", "passed", "caught_up"),
    [
        (split(Step.PLANNED), "planned", 0, 0),
        (split(Step.PREPARED), "prepared", 0, 0),
        (split(Step.MARKED, marks=(9, 15)), "marked", 1, 0),
        (split(Step.SETTLED, marks=(9, 9), ends=(50, 70)), "settled", 2, 1),
        (split(Step.SETTLED, marks=(9, 9), ends=(50, 60)), "done", 2, 2),
    ],
)
async def test_a_split_step_by_step(made: Split, step: str, passed: int, caught_up: int) -> None:
    view = (await World(made).map().read()).split
    assert view is not None
    assert (view.step, view.partitions_passed, view.shards_caught_up) == (step, passed, caught_up)
    assert (view.partitions, view.shards) == (2, 2)


async def test_one_shard_with_its_takeovers() -> None:
    view = await World().map().shard(0)
    assert (len(view.lanes), view.epoch) == (64, 12)
    assert [one.epoch for one in view.boundaries] == [13, 12, 11], "the newest first, the lease's included"
    with pytest.raises(ProtocolError, match="shard"):
        await World().map().shard(4)


async def test_a_shard_that_nobody_has_written_yet() -> None:
    """Its lease's epoch is the time in seconds then; all epochs up to it were asked for, nine gigabytes."""
    world = World()
    world.written, world.leased = 0, 1_796_000_000
    view = await world.map().shard(0)
    assert view.epoch == 0
    assert [one.epoch for one in view.boundaries] == list(range(1_796_000_000, 1_796_000_000 - 20, -1))
    world.written = 20
    assert len((await world.map().shard(0)).boundaries) == 20


async def test_every_resource_is_listed() -> None:
    names = [one.resource for one in await World().map().leases()]
    assert names == ["ob:0", "ob:1", "s:0", "s:1", "s:2", "s:3", "cs:0"]
