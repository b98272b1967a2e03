"""One suite for every LeaseStore (T-C1)."""

import asyncio

import pytest

from qim_streams.limits import EPOCH_BOUNDARIES_MAX
from qim_streams.ownership.ports import Grant, Holder
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.redis_tier import RedisClient
from tests.support.hot_tier import HotTier, memory_tier, redis_tier
from tests.support.waiting import eventually

TTL_MS = 60_000


@pytest.fixture(params=["memory", "redis"])
async def tier(request: pytest.FixtureRequest, hot_client: RedisClient) -> HotTier:
    return memory_tier() if request.param == "memory" else redis_tier(hot_client)


async def test_a_free_lease_is_granted_and_others_learn_who_holds_it(tier: HotTier) -> None:
    leases = tier.leases
    assert await leases.acquire("s:1", "a", 1, "host:1", TTL_MS) == Grant("s:1", 1)
    holder = await leases.acquire("s:1", "b", 9, "host:2", TTL_MS)
    assert isinstance(holder, Holder)
    assert (holder.node, holder.boot, holder.address, holder.epoch) == ("a", 1, "host:1", 1)
    assert 0 < holder.remaining_ms <= TTL_MS
    found = await leases.holders(["s:2", "s:1"])
    assert found[0] is None
    assert found[1] is not None
    assert (found[1].node, found[1].epoch) == ("a", 1)
    assert await leases.holders([]) == []


async def test_asking_again_renews_without_a_new_epoch(tier: HotTier) -> None:
    await tier.leases.acquire("s:1", "a", 1, "host:1", TTL_MS)
    assert await tier.leases.acquire("s:1", "a", 1, "host:9", TTL_MS) == Grant("s:1", 1)
    (holder,) = await tier.leases.holders(["s:1"])
    assert holder is not None
    assert holder.address == "host:9"


async def test_a_newer_boot_of_the_node_takes_over_at_once(tier: HotTier) -> None:
    """P15: the node's lock proves that the old process is dead."""
    leases = tier.leases
    old = await leases.acquire("s:1", "a", 1, "host:1", TTL_MS)
    assert isinstance(old, Grant)
    assert await leases.acquire("s:1", "a", 2, "host:2", TTL_MS) == Grant("s:1", 2)
    assert await leases.renew([old], "a", 1, TTL_MS) == [False]
    assert isinstance(await leases.acquire("s:1", "a", 1, "host:1", TTL_MS), Holder)
    await leases.release([old], "a", 1)
    (holder,) = await leases.holders(["s:1"])
    assert holder is not None
    assert holder.boot == 2


async def test_boots_are_compared_as_numbers(tier: HotTier) -> None:
    await tier.leases.acquire("s:1", "a", 9, "host:1", TTL_MS)
    assert await tier.leases.acquire("s:1", "a", 10, "host:1", TTL_MS) == Grant("s:1", 2)


async def test_a_released_lease_is_free_and_its_epoch_stays(tier: HotTier) -> None:
    leases = tier.leases
    grants = [await leases.acquire(f"s:{n}", "a", 1, "host:1", TTL_MS) for n in range(3)]
    held = [grant for grant in grants if isinstance(grant, Grant)]
    await leases.release(held[:2], "a", 1)
    assert await leases.renew(held, "a", 1, TTL_MS) == [False, False, True]
    assert await leases.acquire("s:0", "b", 1, "host:2", TTL_MS) == Grant("s:0", 2)
    assert await leases.acquire("s:1", "a", 1, "host:1", TTL_MS) == Grant("s:1", 2)
    assert await leases.renew([], "a", 1, TTL_MS) == []


async def test_an_expired_lease_goes_to_another_node_with_a_new_epoch(hot_client: RedisClient) -> None:
    """T-Z2: a lease ends by the server's clock alone: claimants have none to disagree with it."""
    leases = redis_tier(hot_client).leases
    grant = await leases.acquire("s:1", "a", 1, "host:1", 60)
    assert isinstance(grant, Grant)

    async def taken() -> bool:
        return await leases.acquire("s:1", "b", 1, "host:2", TTL_MS) == Grant("s:1", 2)

    await eventually(taken, 5, "the lease expires by the server's clock")
    assert await leases.renew([grant], "a", 1, TTL_MS) == [False]


async def test_of_many_claimants_at_once_one_gets_it(hot_client: RedisClient) -> None:
    leases = redis_tier(hot_client).leases
    answers = await asyncio.gather(
        *(leases.acquire("s:1", f"n{n}", 1, f"host:{n}", TTL_MS) for n in range(12))
    )
    assert sum(isinstance(answer, Grant) for answer in answers) == 1


async def test_expiry_in_memory_follows_the_given_clock() -> None:
    tier = memory_tier()
    assert tier.memory is not None
    now = 0
    tier.memory.clock_ms = lambda: now
    await tier.leases.acquire("s:1", "a", 1, "host:1", 100)
    now = 99
    assert isinstance(await tier.leases.acquire("s:1", "b", 1, "host:2", 100), Holder)
    now = 100
    assert await tier.leases.acquire("s:1", "b", 1, "host:2", 100) == Grant("s:1", 2)


async def test_an_epoch_that_a_log_has_seen_is_left_behind(tier: HotTier) -> None:
    """A store that came back from an old copy gives epochs out again: the owner goes above the log's."""
    leases = tier.leases
    grant = await leases.acquire("s:1", "a", 1, "host:1", TTL_MS)
    assert isinstance(grant, Grant)
    assert await leases.raise_epoch(Grant("s:1", 7), "a", 1, 900) is None
    assert await leases.raise_epoch(grant, "b", 1, 900) is None
    assert await leases.raise_epoch(grant, "a", 1, 900) == Grant("s:1", 901)
    assert await leases.renew([grant], "a", 1, TTL_MS) == [False]
    assert await leases.acquire("s:1", "a", 1, "host:1", TTL_MS) == Grant("s:1", 901)
    assert await leases.raise_epoch(Grant("s:1", 901), "a", 1, 5) == Grant("s:1", 902)
    assert await leases.acquire("s:1", "a", 2, "host:1", TTL_MS) == Grant("s:1", 903)


async def test_an_epoch_that_was_raised_has_a_boundary(hot_client: RedisClient) -> None:
    leases = redis_tier(hot_client).leases
    grant = await leases.acquire("s:1", "a", 1, "host:1", TTL_MS)
    assert isinstance(grant, Grant)
    await leases.raise_epoch(grant, "a", 1, 40)
    kept = sorted(int(epoch) for epoch in await hot_client.hkeys("{s:1}:epochs"))
    assert kept == list(range(1, 42))
    await leases.raise_epoch(Grant("s:1", 41), "a", 1, 10_000_000)
    epochs = {int(epoch) for epoch in await hot_client.hkeys("{s:1}:epochs")}
    assert {10_000_001, 10_000_001 - EPOCH_BOUNDARIES_MAX + 1} <= epochs, "bounded, and the newest are there"


@pytest.mark.parametrize("resource", ["s:1", "ob:1", "cs:1", "writers:1"])
async def test_no_epoch_comes_twice_however_often_everything_is_lost(
    hot_client: RedisClient, resource: str
) -> None:
    """FLUSHALL between takeovers, of every kind of resource: each new epoch is above all old ones."""
    leases, seen = RedisLeaseStore(hot_client), [0]
    for boot in range(1, 7):
        grant = await leases.acquire(resource, f"node-{boot % 2}", boot, "host:1", TTL_MS)
        assert isinstance(grant, Grant)
        assert grant.epoch > max(seen), f"{grant.epoch} after {seen}"
        seen.append(grant.epoch)
        await leases.release([grant], f"node-{boot % 2}", boot)
        if boot % 2:
            await hot_client.flushall()
            await eventually(lambda: _clock_passed(hot_client, seen[-1]), 10, "a second later")


async def _clock_passed(client: RedisClient, epoch: int) -> bool:
    """Grants count up by one and take longer than a second: the rule's condition, made true in a test."""
    return int((await client.time())[0]) > epoch
