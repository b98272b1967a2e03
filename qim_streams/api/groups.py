"""Routes of groups: create, read, change, members, roles, dismiss.

As the operator by default; `owner` of a new group, `join` and `leave` act on behalf of a user. Each change
is one command to the writer; repeating a change that was already made is a success that changes nothing.

Spec: §4.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query

from qim_streams import limits
from qim_streams.api import models
from qim_streams.api.models import (
    ConversationAnswer,
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
from qim_streams.membership.commands import GroupCommand, GroupOp

PAGE = 100
_FIELDS = ("name", "send_policy", "join_policy", "history_policy")
Run = Callable[..., Awaitable[ConversationAnswer]]


def group_routes(commands: Commands, new_group_id: Callable[[], str]) -> APIRouter:
    """The routes under ``/v1/tenants/{tenant}/groups``."""
    routes = APIRouter(prefix="/v1/tenants/{tenant}/groups", tags=["groups"])

    async def run(
        op: GroupOp, tenant: str, conversation: str, actor: str | None = None, **fields: Any
    ) -> ConversationAnswer:
        state = await commands.group(GroupCommand(op, tenant, actor, conversation, **fields))
        return models.conversation_answer(state.conversation)

    @routes.post("", status_code=201)
    async def create_group(tenant: Tenant, body: CreateGroup) -> ConversationAnswer:
        """Make a group."""
        conversation = body.conversation_id or new_group_id()
        chosen = body.model_dump(include=set(_FIELDS))
        users = tuple(body.members)
        return await run(GroupOp.CREATE, tenant, conversation, body.owner, user_ids=users, fields=chosen)

    @routes.get("/{conversation}")
    async def read_group(
        tenant: Tenant,
        conversation: ConversationPath,
        after_user_id: Annotated[str | None, Query(pattern=models.ID_PATTERN)] = None,
        limit: Annotated[int, Query(ge=0, le=limits.GROUP_PAGE_MAX)] = PAGE,
    ) -> GroupAnswer:
        """Read a group and a page of its members, by user id; go on from `next_user_id`."""
        command = GroupCommand(
            GroupOp.GET, tenant, None, conversation, after_user_id=after_user_id or "", limit=limit
        )
        return models.group_answer(await commands.group(command))

    @routes.patch("/{conversation}")
    async def update_group(
        tenant: Tenant, conversation: ConversationPath, body: UpdateGroup
    ) -> ConversationAnswer:
        """Change name or policies."""
        changed = body.model_dump(exclude_none=True)
        return await run(GroupOp.UPDATE, tenant, conversation, fields=changed)

    @routes.delete("/{conversation}")
    async def dismiss_group(tenant: Tenant, conversation: ConversationPath) -> ConversationAnswer:
        """End a group: nobody can send any more, history stays."""
        return await run(GroupOp.DISMISS, tenant, conversation)

    _member_routes(routes, run)
    return routes


def _member_routes(routes: APIRouter, run: Run) -> None:
    @routes.post("/{conversation}/members")
    async def add_members(
        tenant: Tenant, conversation: ConversationPath, body: UserList
    ) -> ConversationAnswer:
        """Add users; those who are members already stay as they are."""
        return await run(GroupOp.ADD, tenant, conversation, user_ids=tuple(body.user_ids))

    @routes.post("/{conversation}/members/remove")
    async def remove_members(
        tenant: Tenant, conversation: ConversationPath, body: UserList
    ) -> ConversationAnswer:
        """Remove users; those who are not members are passed over."""
        return await run(GroupOp.REMOVE, tenant, conversation, user_ids=tuple(body.user_ids))

    @routes.delete("/{conversation}/members/{user}")
    async def remove_member(
        tenant: Tenant, conversation: ConversationPath, user: UserPath
    ) -> ConversationAnswer:
        """Remove one user."""
        return await run(GroupOp.REMOVE, tenant, conversation, user_ids=(user,))

    @routes.put("/{conversation}/members/{user}/role")
    async def set_role(
        tenant: Tenant, conversation: ConversationPath, user: UserPath, body: SetRole
    ) -> ConversationAnswer:
        """Give a member another role; `owner` hands the group over."""
        return await run(GroupOp.SET_ROLE, tenant, conversation, user_ids=(user,), role=body.role)

    @routes.post("/{conversation}/join")
    async def join_group(tenant: Tenant, conversation: ConversationPath, body: OneUser) -> ConversationAnswer:
        """Join an open group on behalf of a user."""
        return await run(GroupOp.JOIN, tenant, conversation, body.user_id)

    @routes.post("/{conversation}/leave")
    async def leave_group(
        tenant: Tenant, conversation: ConversationPath, body: OneUser
    ) -> ConversationAnswer:
        """Leave a group on behalf of a user."""
        return await run(GroupOp.LEAVE, tenant, conversation, body.user_id)
