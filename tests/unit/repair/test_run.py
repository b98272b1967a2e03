"""A repair run: who does what, what is said, and what is refused."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from qim_streams.errors import ConfigError, FencedError, Outcome, StoreUnavailable
from qim_streams.ownership.ports import Grant
from qim_streams.repair.rules import RepairStatus, ShardStanding
from qim_streams.repair.run import RepairRun, RepairTerms
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore
from tests.unit.repair.test_rules import outbox


@dataclass
class World:
    """Two partitions that lost everything; time passes only while somebody sleeps."""

    writers: int = 0
    now_s: float = 0.0
    whole: set[int] = field(default_factory=set)
    shard_at: int = 5
    said: list[str] = field(default_factory=list)
    recovered: list[tuple[int, int]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    tier: MemoryHotTier = field(default_factory=lambda: MemoryHotTier(lambda *_: 0))

    async def read(self) -> RepairStatus:
        partitions = [
            replace(outbox(tail=-1, proved=number in self.whole), partition=number) for number in (0, 1)
        ]
        return RepairStatus(partitions, [ShardStanding(0, self.shard_at, -1, 5, 6, False)], self.writers)

    async def recover(self, partition: int, epoch: int) -> tuple[int, int]:
        if self.failures:
            raise self.failures.pop(0)
        holder = (await self.leases.holders([f"ob:{partition}"]))[0]
        assert holder is not None
        assert holder.epoch == epoch
        self.recovered.append((partition, epoch))
        self.whole.add(partition)
        return 7, 2

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    @property
    def leases(self) -> MemoryLeaseStore:
        return MemoryLeaseStore(self.tier)

    async def run(self, wait_s: float = 10.0) -> RepairStatus:
        terms = RepairTerms("repair.here.1", 60_000, wait_s, self.sleep, lambda: self.now_s)
        return await RepairRun(self.read, self.leases, self.recover, terms, self.said.append).run()


async def test_without_a_writer_it_repairs_under_its_own_leases_and_gives_them_back() -> None:
    world = World()
    assert (await world.run()).is_whole
    assert [partition for partition, _ in world.recovered] == [0, 1]
    assert await world.leases.holders(["ob:0", "ob:1"]) == [None, None]
    assert "ob:0: whole; 7 messages and 2 membership versions were missing" in world.said


async def test_with_a_writer_it_waits_and_says_each_thing_once() -> None:
    world = World(writers=1)
    status = await world.run(wait_s=5)
    assert not status.is_whole
    assert world.recovered == []
    assert world.now_s >= 5
    assert [line for line in world.said if line.startswith("ob:0")] == [
        "ob:0: behind, its writer is at offset -1 of 99"
    ]


async def test_mailboxes_are_waited_for_and_an_absent_worker_is_named() -> None:
    world = World(shard_at=3)
    assert not (await world.run(wait_s=2)).is_whole
    assert "s:0: mailboxes at 3 of 5, no mailbox worker owns it: start one" in world.said


@pytest.mark.parametrize(
    "error", [FencedError("ob:0", 1), StoreUnavailable("the log is away", Outcome.NOT_APPLIED)]
)
async def test_a_partition_that_fails_is_taken_up_again(error: Exception) -> None:
    world = World(failures=[error])
    assert (await world.run()).is_whole


async def test_a_lease_of_a_writer_that_is_gone_is_waited_for() -> None:
    world = World()
    world.tier.clock_ms = lambda: int(world.now_s * 1_000)
    assert isinstance(await world.leases.acquire("ob:0", "writer", 1, "w:1", 3_000), Grant)
    assert (await world.run()).is_whole
    assert world.now_s >= 3
    assert any("writer holds the lease" in line for line in world.said)


async def test_what_nobody_can_prove_is_refused_with_its_cost() -> None:
    world = World()

    async def lost() -> RepairStatus:
        return RepairStatus([outbox(tail=-1, begin=50, archived=40)], [], 0)

    world.read = lost  # type: ignore[method-assign]
    with pytest.raises(
        ConfigError, match=r"ob:0: Outbox records 41 to 49 .* --accept ob:0: up to 9 messages"
    ):
        await world.run()
    assert world.recovered == []
