"""Ports of quotas: the shared buckets, and the rules of tenants.

Spec: §3.2, §13.
"""

from collections.abc import Sequence
from typing import Protocol

from qim_streams.quotas.buckets import Report, Standing
from qim_streams.quotas.rules import TenantRules


class SharedQuotas(Protocol):
    """The buckets that all writers share."""

    async def charge(self, reports: Sequence[Report], per_s: float, burst_s: float) -> list[Standing]:
        """Charge every report to its tenant's bucket; where each stands now.

        `per_s`: the rate of tenants without one of their own. StoreError: some may have been charged.
        """


class RulesStore(Protocol):
    """What operators set for tenants."""

    async def get(self, tenant_id: str) -> TenantRules:
        """The rules of a tenant; StoreUnavailable."""

    async def put(self, tenant_id: str, rules: TenantRules) -> None:
        """Replace the rules of a tenant; StoreUnavailable, then repeating is safe."""
