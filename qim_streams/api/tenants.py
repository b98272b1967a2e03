"""Routes of a tenant's rules: its fan-out quota and on how many devices a user may be.

Rules hold within a few seconds, everywhere. They lie in the hot tier: after its loss a tenant has the
deployment's defaults until they are set again.

Spec: §3.2, §6, §13.
"""

from fastapi import APIRouter

from qim_streams.api.models import Tenant, TenantRulesBody
from qim_streams.errors import ProtocolError
from qim_streams.quotas.ports import RulesStore
from qim_streams.quotas.rules import TenantRules, check


def tenant_routes(store: RulesStore) -> APIRouter:
    """The routes ``/v1/tenants/{tenant}/rules``."""
    routes = APIRouter(prefix="/v1/tenants/{tenant}", tags=["tenants"])

    @routes.get("/rules")
    async def get_rules(tenant: Tenant) -> TenantRulesBody:
        """What is set for this tenant; null: the deployment's default."""
        return _answer(await store.get(tenant))

    @routes.put("/rules")
    async def put_rules(tenant: Tenant, body: TenantRulesBody) -> TenantRulesBody:
        """Replace all rules of this tenant; what is null or left out gets the default again."""
        rules = TenantRules(body.fanout_per_s, body.multi_login)
        wrong = check(rules)
        if wrong is not None:
            raise ProtocolError("FIELD_INVALID", wrong, field=wrong.partition(":")[0])
        await store.put(tenant, rules)
        return _answer(rules)

    return routes


def _answer(rules: TenantRules) -> TenantRulesBody:
    return TenantRulesBody(fanout_per_s=rules.fanout_per_s, multi_login=rules.multi_login)
