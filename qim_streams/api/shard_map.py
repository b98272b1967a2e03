"""Routes of the shard map: shards, leases, epochs, takeovers, the progress of a split. They only read.

Spec: §11.
"""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel

from qim_streams.console.services import ConsoleDeps
from qim_streams.console.shard_map import LeaseView, ShardMapView, ShardView


class LeasesAnswer(BaseModel):
    """Every resource that can be leased: ``ob:`` Outbox, ``s:`` shards, ``cs:`` gateways, ``rm:`` rooms."""

    leases: list[LeaseView]


def shard_routes(console: ConsoleDeps) -> APIRouter:
    """The routes ``/v1/shards`` and ``/v1/leases``."""
    routes = APIRouter(prefix="/v1", tags=["operation"])
    shards = console.shards

    @routes.get("/shards")
    async def shard_map() -> ShardMapView:
        """The shard map, who serves which shard, and the last split."""
        return await shards.read()

    @routes.get("/shards/{shard}")
    async def one_shard(shard: Annotated[int, Path(ge=0, le=4_095)]) -> ShardView:
        """W of all 64 lanes as the store has it, and the last takeovers."""
        return await shards.shard(shard)

    @routes.get("/leases")
    async def leases() -> LeasesAnswer:
        """Who holds what, under which epoch, for how long."""
        return LeasesAnswer(leases=await shards.leases())

    return routes
