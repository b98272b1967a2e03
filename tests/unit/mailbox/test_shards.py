"""Leases of shards: waiting, parking over a rebalance, loss, and the look at W."""

import asyncio
from typing import NoReturn

import pytest

from qim_streams.mailbox import metrics, shards
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.shards import LeaseTerms, Shard, ShardLeases
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore
from tests.support.waiting import eventually


class Died(Exception):
    pass


class Bench:
    def __init__(self) -> None:
        self.now_ms = 1_000
        self.tier = MemoryHotTier(lambda *_: 0, lambda: self.now_ms)
        self.leases, self.store = MemoryLeaseStore(self.tier), MemoryMailboxStore()
        self.deaths: list[str] = []

    def worker(self, node: str, boot: int = 1, renew_ms: int = 10**7, floor: int = 0) -> ShardLeases:
        def die(why: str) -> NoReturn:
            self.deaths.append(why)
            raise Died(why)

        terms = LeaseTerms(node, boot, node, 3_000, renew_ms)
        return ShardLeases(self.leases, self.store, terms, die, lambda shard: floor)

    async def holder(self, shard: int) -> str | None:
        (found,) = await self.leases.holders([f"s:{shard}"])
        return found.node if found else None


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_new_boot_takes_over_at_once_and_an_other_node_waits(bench: Bench) -> None:
    """§11: the epoch rises with each owner."""
    assert await bench.worker("a").acquire(0) == 1
    assert await bench.worker("a", boot=2).acquire(0) == 2
    waiting = asyncio.create_task(bench.worker("b").acquire(0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    bench.now_ms += 3_001
    assert await waiting == 3


async def test_an_epoch_that_the_log_has_seen_is_not_given_again(bench: Bench) -> None:
    """A lease store from an old copy: the owner goes above what is in the table of watermarks."""
    before = metrics.ALARMS.labels("epoch_fell_back")._value.get()
    worker = bench.worker("a", floor=70)
    assert await worker.acquire(0) == 71
    assert await worker.acquire(0) == 71, "and stays there"
    same = bench.worker("b", floor=1)
    assert await same.acquire(1) == 2, "an equal one is somebody else's"
    assert metrics.ALARMS.labels("epoch_fell_back")._value.get() == before + 2
    own = bench.worker("c", floor=1)
    own._ours[2] = 1  # what it wrote itself before a rebalance
    assert await own.acquire(2) == 1


async def test_a_rebalance_keeps_the_epoch_of_what_comes_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients see the epoch: it is not raised for a partition that never left; the others are given up."""
    monkeypatch.setattr(shards, "_SETTLE_S", 0.0)
    worker = bench.worker("a")
    for shard in (0, 1):
        await worker.acquire(shard)
    worker.release(frozenset({0, 1}))
    assert await bench.holder(1) == "a"
    assert await worker.acquire(0) == 1
    assert await eventually(lambda: _is_free(bench, 1), 5)
    assert await bench.holder(0) == "a"
    assert await bench.worker("b").acquire(1) == 2


async def _is_free(bench: Bench, shard: int) -> bool:
    return await bench.holder(shard) is None


async def test_a_worker_left_without_partitions_gives_everything_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "PARK_S", 0.01)
    worker = bench.worker("a")
    await worker.acquire(0)
    worker.release(frozenset({0}))
    assert await eventually(lambda: _is_free(bench, 0), 5)
    await worker.close()


async def test_a_clean_stop_waits_for_nobody(bench: Bench) -> None:
    worker = bench.worker("a")
    await worker.acquire(0)
    worker.release(frozenset({0}))
    await worker.close()
    assert await bench.holder(0) is None


async def test_a_lost_lease_ends_the_process(bench: Bench) -> None:
    worker = bench.worker("a")
    await worker.acquire(0)
    await worker.renew()
    bench.now_ms += 3_001
    await bench.worker("b").acquire(0)
    with pytest.raises(Died, match="s:0 was lost"):
        await worker.renew()


async def test_a_lost_parked_lease_is_nobodys_business(bench: Bench) -> None:
    worker = bench.worker("a")
    await worker.acquire(0)
    worker.release(frozenset({0}))
    bench.now_ms += 3_001
    await worker.renew()
    assert bench.deaths == []
    await worker.close()


async def test_a_store_behind_our_w_ends_the_process(bench: Bench) -> None:
    """T-R2: a power loss is noticed without a message coming."""
    worker = bench.worker("a")
    bench.store.grant(0, await worker.acquire(0))
    old = bench.store.snapshot()
    await bench.store.write_and_advance(0, 1, [], -1, 4)
    worker.served[0] = Shard(0, 1, coverage=4, floor=4, pushed_through=4, buried_through=-1)
    await worker.compare()
    bench.store.restore(old)
    with pytest.raises(Died, match="W was 4 and is -1"):
        await worker.compare()


async def test_the_background_task_renews(bench: Bench) -> None:
    worker = bench.worker("a", renew_ms=5)
    await worker.acquire(0)
    bench.now_ms += 2_000

    async def renewed() -> bool:
        (found,) = await bench.leases.holders(["s:0"])
        return found is not None and found.remaining_ms == 3_000

    assert await eventually(renewed, 5)
    await worker.close()
