"""Routes that look things up: tenants, users with devices and lists, conversations, messages without bodies.

Spec: §2, §8.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from qim_streams import limits
from qim_streams.api.models import ConversationPath, Tenant, UserPath
from qim_streams.console.directory import ConversationPage, MessagePage, SessionPage, UserPage, UserView
from qim_streams.console.services import ConsoleDeps

PAGE = 50
LIMIT_MAX = 200
SEQ_MAX = 2**53 - 1
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX)]
Contains = Annotated[str, Query(pattern="^[A-Za-z0-9._@~-]{0,128}$", description="part of an id")]
Cursor = Annotated[
    str | None, Query(max_length=limits.SESSION_CURSOR_MAX, description="`next_cursor` of the page before")
]


class TenantsAnswer(BaseModel):
    """Tenants, ascending; at most a thousand."""

    tenants: list[str]


def directory_routes(console: ConsoleDeps) -> APIRouter:
    """The routes below ``/v1/tenants`` that list."""
    routes = APIRouter(prefix="/v1/tenants", tags=["directory"])
    directory = console.directory

    @routes.get("")
    async def tenants() -> TenantsAnswer:
        """Tenants whose users have conversations."""
        return TenantsAnswer(tenants=await directory.tenants())

    @routes.get("/{tenant}/users")
    async def users(
        tenant: Tenant, cursor: Cursor = None, limit: Limit = PAGE, contains: Contains = ""
    ) -> UserPage:
        """Users, in no particular order. A page may have more than `limit`, or fewer while it searches."""
        return await directory.users(tenant, cursor, limit, contains)

    @routes.get("/{tenant}/users/{user}")
    async def user(tenant: Tenant, user: UserPath) -> UserView:
        """A user: shard and lane, devices, presence, mailbox."""
        return await directory.user(tenant, user)

    @routes.get("/{tenant}/users/{user}/sessions")
    async def sessions(
        tenant: Tenant, user: UserPath, cursor: Cursor = None, limit: Limit = PAGE
    ) -> SessionPage:
        """The user's session list, newest first, hidden conversations included."""
        return await directory.sessions(tenant, user, cursor, limit)

    @routes.get("/{tenant}/conversations")
    async def conversations(
        tenant: Tenant,
        cursor: Cursor = None,
        limit: Limit = PAGE,
        contains: Contains = "",
        kind: Literal["direct", "group"] | None = None,
    ) -> ConversationPage:
        """Conversations in the order in which messages of them were last archived; others are not listed."""
        return await directory.conversations(tenant, cursor, limit, contains, kind)

    @routes.get("/{tenant}/conversations/{conversation}/messages")
    async def messages(
        tenant: Tenant,
        conversation: ConversationPath,
        before_seq: Annotated[int | None, Query(ge=1, le=SEQ_MAX)] = None,
        limit: Limit = PAGE,
    ) -> MessagePage:
        """Messages without their bodies, by falling number, from hot tier and archive."""
        return await directory.messages(tenant, conversation, before_seq, limit)

    return routes
