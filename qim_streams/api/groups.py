"""Routes of groups: create, read, change, members, roles, dismiss.

As the operator by default; `join` and `leave` act on behalf of the user they name. Each change is one
command to the writer; repeating a change that was already made is a success that changes nothing.

Spec: §4.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Query

from qim_streams import limits
from qim_streams.api import models
from qim_streams.api.models import (
    ConversationPath,
    CreateGroup,
    GroupAnswer,
    OneUser,
    SetRole,
    Tenant,
    UpdateGroup,
    UserList,
    UserPath,
)
from qim_streams.api.ports import Commands
from qim_streams.wire.frames_group import (
    GroupAdd,
    GroupCreate,
    GroupDismiss,
    GroupFrame,
    GroupGet,
    GroupJoin,
    GroupLeave,
    GroupRemove,
    GroupSetRole,
    GroupUpdate,
)

OPERATOR = None
Run = Callable[[str, str | None, GroupFrame], Awaitable[GroupAnswer]]
PAGE = 100


def group_routes(commands: Commands) -> APIRouter:
    """The routes under ``/v1/tenants/{tenant}/groups``."""
    routes = APIRouter(prefix="/v1/tenants/{tenant}/groups", tags=["groups"])

    async def run(tenant: str, actor: str | None, request: GroupFrame) -> GroupAnswer:
        return models.group_answer(await commands.group(tenant, actor, request))

    @routes.post("", status_code=201)
    async def create_group(tenant: Tenant, body: CreateGroup) -> GroupAnswer:
        """Make a group."""
        frame = GroupCreate(
            0,
            body.members,
            body.conversation_id,
            body.name,
            body.send_policy,
            body.join_policy,
            body.history_policy,
        )
        return await run(tenant, body.owner, frame)

    @routes.get("/{conversation}")
    async def read_group(
        tenant: Tenant,
        conversation: ConversationPath,
        after_user_id: Annotated[str | None, Query(pattern=models.ID_PATTERN)] = None,
        limit: Annotated[int, Query(ge=0, le=limits.GROUP_PAGE_MAX)] = PAGE,
    ) -> GroupAnswer:
        """Read a group and a page of its members, by user id; go on from `next_user_id`."""
        return await run(tenant, OPERATOR, GroupGet(0, conversation, after_user_id, limit))

    @routes.patch("/{conversation}")
    async def update_group(tenant: Tenant, conversation: ConversationPath, body: UpdateGroup) -> GroupAnswer:
        """Change name or policies."""
        return await run(tenant, OPERATOR, GroupUpdate(0, conversation, **body.model_dump()))

    @routes.delete("/{conversation}")
    async def dismiss_group(tenant: Tenant, conversation: ConversationPath) -> GroupAnswer:
        """End a group: nobody can send any more, history stays."""
        return await run(tenant, OPERATOR, GroupDismiss(0, conversation))

    _member_routes(routes, run)
    return routes


def _member_routes(routes: APIRouter, run: Run) -> None:
    @routes.post("/{conversation}/members")
    async def add_members(tenant: Tenant, conversation: ConversationPath, body: UserList) -> GroupAnswer:
        """Add users; those who are members already stay as they are."""
        return await run(tenant, OPERATOR, GroupAdd(0, conversation, body.user_ids))

    @routes.post("/{conversation}/members/remove")
    async def remove_members(tenant: Tenant, conversation: ConversationPath, body: UserList) -> GroupAnswer:
        """Remove users; those who are not members are passed over."""
        return await run(tenant, OPERATOR, GroupRemove(0, conversation, body.user_ids))

    @routes.delete("/{conversation}/members/{user}")
    async def remove_member(tenant: Tenant, conversation: ConversationPath, user: UserPath) -> GroupAnswer:
        """Remove one user."""
        return await run(tenant, OPERATOR, GroupRemove(0, conversation, [user]))

    @routes.put("/{conversation}/members/{user}/role")
    async def set_role(
        tenant: Tenant, conversation: ConversationPath, user: UserPath, body: SetRole
    ) -> GroupAnswer:
        """Give a member another role; `owner` hands the group over."""
        return await run(tenant, OPERATOR, GroupSetRole(0, conversation, user, body.role))

    @routes.post("/{conversation}/join")
    async def join_group(tenant: Tenant, conversation: ConversationPath, body: OneUser) -> GroupAnswer:
        """Join an open group on behalf of a user."""
        return await run(tenant, body.user_id, GroupJoin(0, conversation))

    @routes.post("/{conversation}/leave")
    async def leave_group(tenant: Tenant, conversation: ConversationPath, body: OneUser) -> GroupAnswer:
        """Leave a group on behalf of a user."""
        return await run(tenant, body.user_id, GroupLeave(0, conversation))
