"""The console's routes: its files, which hold no data and need no key, and everything that they ask for.

Spec: §11.
"""

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from qim_streams.api.dead_letters import dead_letter_routes
from qim_streams.api.directory import directory_routes
from qim_streams.api.failures import ApiRefusal
from qim_streams.api.shard_map import shard_routes
from qim_streams.api.tables import table_routes
from qim_streams.api.topology import topology_routes
from qim_streams.console import assets
from qim_streams.console.services import ConsoleDeps

ROOT = "/console"
GATEWAYS_S = 2.0
Gateways = Callable[[], Awaitable[list[str]]]


def console_routes(console: ConsoleDeps) -> list[APIRouter]:
    """The routes that pages ask; each needs the key."""
    return [
        topology_routes(console),
        table_routes(console),
        shard_routes(console),
        directory_routes(console),
        dead_letter_routes(console),
    ]


def console_files(gateways: Gateways) -> APIRouter:
    """The routes below ``/console``. `gateways`: URLs of gateways that the chat page may connect to."""
    routes = APIRouter(include_in_schema=False)
    files = assets.load_assets()
    chat = files["chat"]

    @routes.get(ROOT)
    async def without_slash() -> RedirectResponse:
        """To the page itself; its files are named relative to it."""
        return RedirectResponse(f"{ROOT}/", 308)

    @routes.get(ROOT + "/{path:path}")
    async def file(path: str, request: Request) -> Response:
        """A file of the console."""
        asset = files.get(path)
        if asset is None:
            raise ApiRefusal("NO_SUCH_ROUTE", "the console has no such file")
        allowed = await _origins(gateways) if asset is chat else []
        headers = assets.headers(asset, allowed)
        if request.headers.get("if-none-match") == asset.etag and not asset.is_page:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers, media_type=asset.media_type)

    return routes


async def _origins(gateways: Gateways) -> list[str]:
    """Scheme, host and port of each gateway; none when the lease store does not answer: the page says so."""
    try:
        async with asyncio.timeout(GATEWAYS_S):
            urls = await gateways()
    except Exception:  # noqa: BLE001 - without it the page still comes, and says that it finds no gateway
        return []
    return sorted({"/".join(url.split("/", 3)[:3]) for url in urls})
