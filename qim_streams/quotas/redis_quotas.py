"""Shared buckets and rules of tenants in Redis: ``{t:<tenant>}:fanout`` and ``{t:<tenant>}:rules``.

The bucket of a tenant that is full again goes by itself; rules stay until they are replaced.

Spec: §3.2, §13.
"""

from collections.abc import Sequence
from typing import Any

from qim_streams.quotas.buckets import Report, Standing
from qim_streams.quotas.rules import TenantRules, fields_of, rules_of
from qim_streams.redis_tier import RedisClient, Script, exchange, translate, translated


class RedisQuotas:
    """`SharedQuotas` on Redis, by the server's clock."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._script = Script.load("qim_streams.quotas", "charge.lua")

    async def charge(self, reports: Sequence[Report], per_s: float, burst_s: float) -> list[Standing]:
        """See the port."""
        calls = [
            (
                [_bucket_key(report.tenant_id), rules_key(report.tenant_id)],
                (f"{report.charged:.3f}", f"{per_s:.3f}", int(burst_s * 1_000)),
            )
            for report in reports
        ]
        async with translated("fan-out quotas"):
            answers = await self._script.call_many(self._client, calls)
        standings = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise translate(answer, "fan-out quotas") from answer
            standings.append(Standing(float(answer[0]), float(answer[1])))
        return standings


class RedisTenantRules:
    """`RulesStore` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def get(self, tenant_id: str) -> TenantRules:
        """See the port."""
        async with translated("tenant rules"):
            (row,) = await exchange(self._client, [("HGETALL", rules_key(tenant_id))])
            if isinstance(row, BaseException):
                raise row
        return rules_of({name.decode(): value.decode("utf-8", "replace") for name, value in row.items()})

    async def put(self, tenant_id: str, rules: TenantRules) -> None:
        """See the port."""
        key = rules_key(tenant_id)
        fields: dict[Any, Any] = dict(fields_of(rules))
        async with translated("tenant rules"), self._client.pipeline(transaction=True) as both:
            both.delete(key)
            if fields:
                both.hset(key, mapping=fields)
            await both.execute()


def rules_key(tenant_id: str) -> str:
    """Where the rules of a tenant are."""
    return f"{{t:{tenant_id}}}:rules"


def _bucket_key(tenant_id: str) -> str:
    return f"{{t:{tenant_id}}}:fanout"
