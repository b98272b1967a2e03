"""Shared fan-out buckets and rules of tenants on a real Redis.

T-Q1. Spec: §3.2 L3, §13.
"""

import asyncio
import secrets

import pytest

from qim_streams.quotas.buckets import Report, Standing
from qim_streams.quotas.redis_quotas import RedisQuotas, RedisTenantRules, rules_key
from qim_streams.quotas.rules import NO_RULES, TenantRules
from qim_streams.redis_tier import RedisClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

RATE, BURST_S = 0.5, 100.0  # so slow that the test's own time adds little


def name() -> str:
    """A tenant of its own."""
    return f"t{secrets.token_hex(6)}"


async def charge(quotas: RedisQuotas, tenant: str, recipients: float, rate: float = RATE) -> Standing:
    """One report."""
    (standing,) = await quotas.charge([Report(tenant, recipients)], rate, BURST_S)
    return standing


async def test_charges_of_all_writers_add_up(hot_client: RedisClient) -> None:
    """Debts are kept, what is given back counts, and each tenant has a bucket of its own."""
    quotas, a, b = RedisQuotas(hot_client), name(), name()
    assert (await charge(quotas, a, 0)).level == 50
    many = await quotas.charge([Report(a, 30), Report(b, 10), Report(a, 40)], RATE, BURST_S)
    assert [round(one.level) for one in many] in ([20, 40, -20], [20, 40, -19])
    assert -20 <= (await charge(quotas, a, 0)).level < -10
    assert (await charge(quotas, a, -15.5)).level > -10
    assert all(one.per_s == RATE for one in many)


async def test_parallel_charges_lose_none(hot_client: RedisClient) -> None:
    quotas, a = RedisQuotas(hot_client), name()
    await asyncio.gather(*(charge(quotas, a, 1) for _ in range(200)))
    assert -150 <= (await charge(quotas, a, 0)).level <= -100


async def test_a_bucket_refills_and_goes(hot_client: RedisClient) -> None:
    """At its rate, up to the burst; a full one costs no memory."""
    quotas, a = RedisQuotas(hot_client), name()
    await charge(quotas, a, 500, rate=1_000.0)
    assert 0 < await hot_client.pttl(f"{{t:{a}}}:fanout") < 3_000

    async def gone() -> bool:
        return not await hot_client.exists(f"{{t:{a}}}:fanout")

    await eventually(gone, 20)
    assert (await charge(quotas, a, 0, rate=1_000.0)).level == 1_000 * BURST_S


async def test_a_tenant_of_its_own_rate(hot_client: RedisClient) -> None:
    """Set, changed, without a bound, and back to the default; what is owed stays owed."""
    quotas, rules, a = RedisQuotas(hot_client), RedisTenantRules(hot_client), name()
    assert await rules.get(a) == NO_RULES
    await rules.put(a, TenantRules(7, "newest"))
    assert await rules.get(a) == TenantRules(7, "newest")
    standing = await charge(quotas, a, 10_000)
    assert (standing.per_s, round(standing.level, -1)) == (7, -9_300)
    await rules.put(a, TenantRules(0))
    assert await charge(quotas, a, 10**6) == Standing(0, 0)
    assert await rules.get(a) == TenantRules(0)
    await rules.put(a, NO_RULES)
    assert not await hot_client.exists(rules_key(a))
    assert await charge(quotas, a, 0) == Standing(50, RATE)
