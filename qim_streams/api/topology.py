"""Routes of what runs: the stages with rates, lag and health; the workers; the gateways.

Spec: §11, §13.
"""

from fastapi import APIRouter
from pydantic import BaseModel, Field

from qim_streams.console.model import TopologyView
from qim_streams.console.services import ConsoleDeps


class GatewaysAnswer(BaseModel):
    """Where clients connect, of the gateways that hold a ConnectionShard now."""

    urls: list[str] = Field(description="WebSocket URLs")


def topology_routes(console: ConsoleDeps) -> APIRouter:
    """The routes ``/v1/topology`` and ``/v1/gateways``."""
    routes = APIRouter(prefix="/v1", tags=["operation"])
    gateways = console.gateways

    @routes.get("/topology")
    async def topology() -> TopologyView:
        """Every stage in the order of a message's way: rates, lag in records and seconds, owners, health."""
        return await console.topology.read()

    @routes.get("/gateways")
    async def known_gateways() -> GatewaysAnswer:
        """The gateways that serve."""
        return GatewaysAnswer(urls=await gateways())

    return routes
