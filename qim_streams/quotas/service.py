"""A writer's copies of the fan-out buckets kept near the shared ones; rules of tenants as of a moment ago.

Invariants: nothing here is awaited on the way of a message or more than once in a while on that of a login;
a store that is away changes nothing but that the copies drift.

Spec: §3.2, §13.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from qim_streams.errors import StoreError
from qim_streams.lru import LruMap
from qim_streams.quotas.buckets import TenantQuotas
from qim_streams.quotas.ports import RulesStore, SharedQuotas
from qim_streams.quotas.rules import NO_RULES, TenantRules

log = logging.getLogger(__name__)

EVERY_S: Final = 0.2
REPORTS_MAX: Final = 500  # in one pass
TELL_EVERY_S: Final = 10.0
TOLD_MAX: Final = 5  # tenants named in a log line
RULES_KEPT_MS: Final = 5_000
RULES_TENANTS_MAX: Final = 10_000


class QuotaKeeper:
    """`run` is its task."""

    def __init__(
        self,
        quotas: TenantQuotas,
        shared: SharedQuotas,
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._quotas, self._shared = quotas, shared
        self._now_ms, self._sleep = now_ms, sleep
        self._away = False

    async def run(self) -> None:
        """Report for ever."""
        passes = 0
        while True:
            await self._sleep(EVERY_S)
            await self.report()
            passes += 1
            if passes * EVERY_S >= TELL_EVERY_S:
                passes = 0
                self._tell()

    async def report(self) -> None:
        """One pass."""
        quotas = self._quotas
        reports = quotas.due(self._now_ms(), REPORTS_MAX)
        if not reports:
            return
        try:
            standings = await self._shared.charge(reports, quotas.per_s, quotas.burst_s)
        except StoreError as error:
            if not self._away:
                log.warning("fan-out quotas are each writer's own for now: %s", error)
            self._away = True
            for report in reports:
                quotas.unanswered(report)
            return
        self._away = False
        now_ms = self._now_ms()
        for report, standing in zip(reports, standings, strict=True):
            quotas.answered(report, standing, now_ms)

    def _tell(self) -> None:
        refused = self._quotas.take_refused()
        if refused:
            named = ", ".join(f"{tenant} ({count} refused)" for tenant, count in refused[:TOLD_MAX])
            log.warning("%d tenants are over their fan-out quota: %s", len(refused), named)


class RulesCache:
    """The rules of tenants as they were at most five seconds ago; when the store is away, as last seen."""

    def __init__(self, store: RulesStore, now_ms: Callable[[], int]) -> None:
        self._store, self._now_ms = store, now_ms
        self._known: LruMap[str, tuple[int, TenantRules]] = LruMap(RULES_TENANTS_MAX, RULES_TENANTS_MAX)

    async def of(self, tenant_id: str) -> TenantRules:
        """The rules of a tenant; never raises for a store that is away."""
        now_ms, known = self._now_ms(), self._known.get(tenant_id)
        if known is not None and 0 <= now_ms - known[0] < RULES_KEPT_MS:
            return known[1]
        try:
            rules = await self._store.get(tenant_id)
        except StoreError as error:
            log.warning("tenant rules are not read now: %s", error)
            return known[1] if known is not None else NO_RULES
        self._known.put(tenant_id, (now_ms, rules))
        return rules
