"""Routes of what runs: the stages with rates, lag and health; the workers; the gateways.

Spec: §11, §13.
"""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from qim_streams.console.model import TopologyView
from qim_streams.console.services import ConsoleDeps

PartitionsOf = Annotated[
    str | None, Query(pattern="^[A-Za-z0-9_-]{0,80}$", description="only of this stage; null: of all")
]


class GatewaysAnswer(BaseModel):
    """Where clients connect, of the gateways that hold a ConnectionShard now."""

    urls: list[str] = Field(description="WebSocket URLs")


def topology_routes(console: ConsoleDeps) -> APIRouter:
    """The routes ``/v1/topology`` and ``/v1/gateways``."""
    routes = APIRouter(prefix="/v1", tags=["operation"])
    gateways = console.gateways

    @routes.get("/topology")
    async def topology(partitions_of: PartitionsOf = None) -> TopologyView:
        """Every stage in the order of a message's way: rates, lag in records and seconds, owners, health."""
        view = await console.topology.read()
        if partitions_of is None:
            return view
        stages = [one if one.name == partitions_of else replace(one, partitions=[]) for one in view.stages]
        return replace(view, stages=stages)

    @routes.get("/gateways")
    async def known_gateways() -> GatewaysAnswer:
        """The gateways that serve."""
        return GatewaysAnswer(urls=await gateways())

    return routes
