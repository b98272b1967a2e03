"""One suite for every OrdinalDirectory (T-C1)."""

import asyncio

import pytest

from qim_streams.placement import LANES, lane, lane_of_ordinal
from qim_streams.redis_tier import RedisClient
from tests.support.hot_tier import HotTier, memory_tier, redis_tier


@pytest.fixture(params=["memory", "redis"])
async def tier(request: pytest.FixtureRequest, hot_client: RedisClient) -> HotTier:
    return memory_tier() if request.param == "memory" else redis_tier(hot_client)


async def test_an_ordinal_is_unique_stable_and_names_its_lane(tier: HotTier) -> None:
    users = [f"user{n}" for n in range(2_000)]
    ordinals = await tier.directory.assign("t", users)
    assert len(set(ordinals)) == 2_000
    assert {lane_of_ordinal(ordinal) for ordinal in ordinals} == set(range(LANES))
    assert all(lane_of_ordinal(o) == lane("t", user) for user, o in zip(users, ordinals, strict=True))
    assert await tier.directory.assign("t", users[::-1]) == ordinals[::-1]
    assert await tier.directory.find("t", users) == ordinals
    assert await tier.directory.names("t", ordinals) == users


async def test_tenants_do_not_share_ordinals(tier: HotTier) -> None:
    await tier.directory.assign("a", ["ann"])
    assert await tier.directory.find("b", ["ann"]) == [None]
    (ordinal,) = await tier.directory.find("a", ["ann"])
    assert ordinal is not None
    assert await tier.directory.names("b", [ordinal]) == [None]


async def test_who_is_unknown_stays_unknown_until_assigned(tier: HotTier) -> None:
    assert await tier.directory.find("t", ["new", "new"]) == [None, None]
    (ordinal,) = await tier.directory.assign("t", ["new"])
    assert await tier.directory.find("t", ["other", "new"]) == [None, ordinal]
    assert await tier.directory.names("t", [ordinal + 64, ordinal]) == [None, "new"]
    assert await tier.directory.assign("t", ["new", "new"]) == [ordinal, ordinal]
    assert await tier.directory.assign("t", []) == []
    assert await tier.directory.names("t", []) == []


async def test_two_processes_at_once_give_out_the_same_numbers(hot_client: RedisClient) -> None:
    users = [f"user{n}" for n in range(300)]
    one, two = redis_tier(hot_client), redis_tier(hot_client)
    halves = await asyncio.gather(
        *(tier.directory.assign("t", users[start:]) for tier in (one, two) for start in (0, 100, 200))
    )
    full = halves[0]
    assert len(set(full)) == 300
    assert all(half == full[300 - len(half) :] for half in halves)
