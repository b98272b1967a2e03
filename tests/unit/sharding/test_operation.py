"""The steps of a split, by anybody, after any kill. Spec: §11."""

from collections.abc import Sequence

import pytest

from qim_streams import failpoints
from qim_streams.errors import ConfigError, StoreUnavailable
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.operation import HEARD_S, POLL_S, SplitOperation, Standing
from qim_streams.sharding.rules import FIRST_STEP, Step
from tests.unit.sharding.memory_log import MemoryMappingLog

STEPS = ("planned", "prepared", "marked_some", "all_marked", "marks_noted", "ends_read", "settled")


class World:
    """Two Outbox partitions, two shards with room for four; fan-out passes what it is asked about twice."""

    def __init__(self) -> None:
        self.log = MemoryMappingLog()
        self.outbox: list[list[int]] = [[0] * 3, [0] * 5]  # versions of markers, 0 for a message
        self.ends = [7, 9, 0, 0]
        self.asked, self.slept = 0, list[float]()
        self.served = {0, 1, 2, 3}
        self.told: list[Standing] = []

    def operation(self) -> SplitOperation:
        """One that knows nothing yet."""
        return SplitOperation(Mappings(2, self.log), self.log, self, self, self.sleep)

    async def sleep(self, seconds: float) -> None:
        """No time passes; but nobody waits for ever."""
        self.slept.append(seconds)
        assert len(self.slept) < 1_000, f"stands at {self.told[-1:]}"

    async def outbox_ends(self) -> list[int]:
        return [len(one) for one in self.outbox]

    async def dispatch_ends(self) -> list[int]:
        return self.ends

    async def dispatched(self) -> list[int]:
        self.asked += 1
        return [len(one) - 1 if self.asked % 3 == 0 else 0 for one in self.outbox]

    async def find_markers(self, starts: Sequence[int], version: int) -> list[int | None]:
        return [
            next((at for at in range(start, len(log)) if log[at] == version), None)
            for start, log in zip(starts, self.outbox, strict=True)
        ]

    async def append_marker(self, partition: int, version: int) -> int:
        self.outbox[partition].append(version)
        return len(self.outbox[partition]) - 1

    async def coverage(self, shards: Sequence[int]) -> list[int]:
        placement = await Mappings(2, self.log).load()
        return [placement.last_of(one, self.ends[one]) if self.ends[one] else -1 for one in shards]

    async def unserved(self, shards: Sequence[int]) -> list[int]:
        return [one for one in shards if one not in self.served]

    async def sizes(self, shards: Sequence[int]) -> list[int]:
        return [0 for _ in shards]

    async def finish(self) -> Mappings:
        """Prepare if nothing is under way, run to the end, and read what stands."""
        operation, mappings = self.operation(), Mappings(2, self.log)
        if not (await mappings.load()).mapping.splits:
            await operation.begin([0, 1])
        done = await operation.run(self.told.append)
        assert done is not None
        assert done.done
        await mappings.load()
        return mappings


def check(world: World, mappings: Mappings) -> None:
    """One split, whole, with one marker in each partition."""
    (split,) = mappings.current.mapping.splits
    assert (split.step, split.ends, split.marks) == (Step.SETTLED, (6, 8), (3, 5))
    assert [pair.first for pair in split.pairs] == [FIRST_STEP] * 2
    assert [log.count(1) for log in world.outbox] == [1, 1]
    assert mappings.current.shards == 4


async def die_at(step: str, world: World) -> None:
    """A split that ends at this step."""
    failpoints.arm(f"shard.{step}:1:raise")
    try:
        with pytest.raises(failpoints.FailpointError):
            await world.finish()
    finally:
        failpoints.arm("")


async def test_a_split_goes_through_its_steps() -> None:
    world = World()
    check(world, await world.finish())
    assert [one.step for one in world.told] == ["prepared", "marked", "dispatching", "settled", "done"]
    assert world.slept == [HEARD_S, POLL_S, POLL_S], "from the markers on only fan-out is waited for"


async def test_whoever_goes_on_behind_the_first_marker_does_not_rest() -> None:
    world = World()
    await die_at("marked_some", world)
    world.slept.clear()
    check(world, await world.finish())
    assert world.slept == [POLL_S, POLL_S]


@pytest.mark.parametrize("step", STEPS)
async def test_it_goes_on_after_a_kill_at_every_step(step: str) -> None:
    world = World()
    await die_at(step, world)
    check(world, await world.finish())


async def test_two_at_once_do_it_once() -> None:
    world = World()
    first, second = world.operation(), world.operation()
    await first.begin([0, 1])
    with pytest.raises(ConfigError, match="under way"):
        await second.begin([0])
    await first.run(world.told.append)
    await second.run(world.told.append)
    mappings = Mappings(2, world.log)
    await mappings.load()
    check(world, mappings)


async def test_a_split_is_abandoned_before_it_marks_anything_and_not_later() -> None:
    world = World()
    first, second = world.operation(), world.operation()
    with pytest.raises(ConfigError, match="nothing to abort"):
        await first.abort()
    await first.begin([0, 1])
    gone = await second.abort()
    assert (gone.version, gone.pairs) == (1, ())
    stands = await first.run(world.told.append)
    assert stands is not None
    assert (stands.step, stands.done) == ("abandoned", True)
    assert not any(one for log in world.outbox for one in log), "no marker"
    await first.begin([1])
    await first.run(world.told.append)
    mappings = Mappings(2, world.log)
    assert [(one.old, one.new) for one in (await mappings.load()).mapping.splits[1].pairs] == [(1, 2)]
    assert [log.count(2) for log in world.outbox] == [1, 1]


@pytest.mark.parametrize("step", STEPS[1:-1])
async def test_a_split_that_has_begun_is_not_abandoned(step: str) -> None:
    world = World()
    await die_at(step, world)
    with pytest.raises(ConfigError, match="only be finished"):
        await world.operation().abort()
    check(world, await world.finish())


async def test_a_shard_that_got_nothing_is_split_again() -> None:
    """And one that gets its first records while it is: neither is waited for in vain."""
    world = World()
    world.ends = [700, 900, *[0] * 10]
    world.served |= set(range(4, 12))
    await world.finish()
    world.ends[3] = 20
    again = world.operation()
    await again.begin([0, 1, 2, 3])
    world.ends[3] = 25
    done = await again.run(world.told.append)
    assert done is not None
    assert (done.done, done.version) == (True, 2)
    world.ends[2] = 1  # behind its marks
    third = world.operation()
    assert [pair.old for pair in (await third.begin([2, 6])).pairs] == [2, 6]
    done = await third.run(world.told.append)
    assert done is not None
    mappings = Mappings(2, world.log)
    placement = await mappings.load()
    assert (done.version, placement.shards) == (3, 10)
    ends = [split.ends for split in placement.mapping.splits]
    assert ends == [(699, 899), (699, 899, FIRST_STEP - 1, FIRST_STEP + 24), (FIRST_STEP, 2 * FIRST_STEP - 1)]
    firsts = [pair.first // FIRST_STEP for split in placement.mapping.splits for pair in split.pairs]
    assert firsts == [1, 1, 1, 1, 2, 2, 2, 3]


async def test_what_would_make_users_wait_is_refused() -> None:
    world = World()
    world.served = {0, 1, 2}
    with pytest.raises(StoreUnavailable, match="3"):
        await world.operation().begin([0, 1])
    assert not world.log.values


@pytest.mark.parametrize("ends", [[7, 9, 1, 0], [900, 0, 0, 0]])
async def test_a_wrong_number_of_shards_is_noticed(ends: list[int]) -> None:
    world = World()
    world.ends = ends
    with pytest.raises(ConfigError, match="QIM_MAILBOX_SHARDS"):
        await world.operation().begin([0])
    assert not world.log.values
