"""The admin API as one ASGI application.

Invariants: every route but health, version and the documents needs the key; every error has one form;
no body over the limit is read; nothing is loaded from outside.
"""

from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse
from starlette.types import ASGIApp

from qim_streams import __version__
from qim_streams.admin.http import Audited, Gatekeeper
from qim_streams.admin.keys import AdminKeys
from qim_streams.api import failures, page
from qim_streams.api.console import console_files, console_routes
from qim_streams.api.conversations import conversation_routes
from qim_streams.api.groups import group_routes
from qim_streams.api.guard import BodyLimit, require_key
from qim_streams.api.health import health_routes
from qim_streams.api.messages import message_routes
from qim_streams.api.models import FailureAnswer
from qim_streams.api.ports import ApiDeps
from qim_streams.api.presence import presence_routes
from qim_streams.api.push import push_routes
from qim_streams.api.rooms import room_routes
from qim_streams.api.tenants import tenant_routes
from qim_streams.api.tokens import token_routes

TITLE = "Q-IM streams admin API"
DESCRIPTION = (
    "Groups, direct chats, chat rooms, presence, devices and quiet hours of notifications, access tokens, "
    "rules of tenants, conversation heads and message traces. Every route below /v1 needs the admin key. "
    "Every error has the form "
    "{code, name, temporary, detail, field, retry_after_ms}; repeating a change whose outcome is not known "
    "is safe."
)


def build_api(deps: ApiDeps) -> ASGIApp:
    """The application: routes, key, limits, documents."""
    gate = gatekeeper(deps)
    return BodyLimit(Audited(build_routes(deps, gate), deps.audit), gate.knows)


def gatekeeper(deps: ApiDeps) -> Gatekeeper:
    """Who knows keys and roles."""
    return Gatekeeper(deps.admins or AdminKeys(deps.api_key, None), deps.audit)


def build_routes(deps: ApiDeps, gate: Gatekeeper | None = None) -> FastAPI:
    """The routes, without the limit on bodies."""
    app = FastAPI(
        title=TITLE,
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    failures.install(app)
    app.include_router(health_routes(deps.probes))
    keyed = [
        group_routes(deps.commands, deps.new_group_id),
        conversation_routes(deps.conversations),
        message_routes(deps.trace),
        token_routes(deps.mint),
        tenant_routes(deps.rules),
        *([] if deps.presence is None else [presence_routes(deps.presence)]),
        *([] if deps.rooms is None else [room_routes(deps.rooms)]),
        *([] if deps.push is None else [push_routes(deps.push)]),
        *([] if deps.console is None else console_routes(deps.console)),
    ]
    guard = Depends(require_key(gate or gatekeeper(deps)))
    for routes in keyed:
        app.include_router(
            routes,
            dependencies=[guard],
            responses={"4XX": {"model": FailureAnswer}, "5XX": {"model": FailureAnswer}},
        )

    if deps.console is not None:
        app.include_router(console_files(deps.console.gateways))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        """The document for people."""
        return HTMLResponse(page.render(app.openapi()), headers=page.HEADERS)

    return app
