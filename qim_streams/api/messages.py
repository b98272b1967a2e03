"""The route of message traces: a search through logs, so only a few at a time.

Spec: §1.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from qim_streams.api import models
from qim_streams.api.failures import ApiRefusal
from qim_streams.api.models import MessagePath, Tenant
from qim_streams.api.ports import Tracing

TRACES_AT_ONCE = 2


def message_routes(trace: Tracing) -> APIRouter:
    """The routes under ``/v1/tenants/{tenant}/messages``."""
    routes = APIRouter(prefix="/v1/tenants/{tenant}/messages", tags=["messages"])
    running: set[str] = set()

    @routes.get("/{message}/trace")
    async def trace_message(
        tenant: Tenant,
        message: MessagePath,
        conversation_id: Annotated[
            str | None, Query(pattern=models.ID_PATTERN, description="narrows the search when known")
        ] = None,
    ) -> dict[str, Any]:
        """Where a message is at each level, since when, and where not."""
        key = f"{tenant}/{message}"
        if len(running) >= TRACES_AT_ONCE or key in running:
            raise ApiRefusal("TOO_MANY_TRACES", f"at most {TRACES_AT_ONCE} traces run at once")
        running.add(key)
        try:
            found = await trace(tenant, bytes.fromhex(message), conversation_id)
        finally:
            running.discard(key)
        if not found.found:
            raise ApiRefusal("MESSAGE_NOT_FOUND", "; ".join(found.notes))
        return found.to_json()

    return routes
