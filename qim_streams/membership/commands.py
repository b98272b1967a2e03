"""What can be asked of a group, and the answer: plain values that cross the internal RPC.

Invariants: a command that passed `check` has valid ids and bounded lists; an actor of None is the operator
and comes from the admin API only, never from a client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from qim_streams import limits
from qim_streams.errors import AdmissionRefused
from qim_streams.ids import is_direct_conversation_id, is_text_id
from qim_streams.membership.ports import Conversation, Member


class GroupOp(IntEnum):
    """What to do. The numbers cross the wire between processes and never change."""

    CREATE = 1  # user_ids: members beside the actor; fields: name and policies
    ADD = 2  # user_ids
    JOIN = 3
    LEAVE = 4
    REMOVE = 5  # user_ids
    SET_ROLE = 6  # user_ids: one; role
    UPDATE = 7  # fields: name, send_policy, join_policy, history_policy, what is to change
    DISMISS = 8
    GET = 9  # after_user_id, limit


_USERS_LEAST = {GroupOp.ADD: 1, GroupOp.REMOVE: 1, GroupOp.SET_ROLE: 1}
_USERS_MOST = {
    GroupOp.CREATE: limits.GROUP_MEMBERS_PER_CHANGE_MAX,
    GroupOp.ADD: limits.GROUP_MEMBERS_PER_CHANGE_MAX,
    GroupOp.REMOVE: limits.GROUP_MEMBERS_PER_CHANGE_MAX,
    GroupOp.SET_ROLE: 1,
}
_ACTOR_NEEDED = (GroupOp.JOIN, GroupOp.LEAVE)


@dataclass(frozen=True, slots=True)
class GroupCommand:
    """One request. `fields` holds the texts that CREATE or UPDATE sets; absent ones stay or take defaults."""

    op: GroupOp
    tenant_id: str
    actor_id: str | None
    conversation_id: str
    user_ids: tuple[str, ...] = ()
    role: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    after_user_id: str = ""
    limit: int = 0

    @property
    def system(self) -> bool:
        """Whether the operator asks."""
        return self.actor_id is None


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group after a command. `members`: a page, for GET; `next_user_id`: its last user if more follow."""

    conversation: Conversation
    members: tuple[Member, ...] = ()
    next_user_id: str | None = None


def check(command: GroupCommand) -> None:
    """AdmissionRefused FIELD_INVALID, naming the field, unless ids and sizes are in bounds."""
    ids = {"tenant_id": command.tenant_id, "conversation_id": command.conversation_id}
    if command.actor_id is not None:
        ids["actor_id"] = command.actor_id
    elif command.op in _ACTOR_NEEDED:
        raise _invalid("actor_id", "is missing")
    if command.after_user_id:
        ids["after_user_id"] = command.after_user_id
    for name, value in ids.items():
        if not is_text_id(value):
            raise _invalid(name, "is not an id")
    if command.op is not GroupOp.GET and is_direct_conversation_id(command.conversation_id):
        raise AdmissionRefused("NOT_ALLOWED", "a direct chat has the two members it was made for")
    least, most = _USERS_LEAST.get(command.op, 0), _USERS_MOST.get(command.op, 0)
    if not least <= len(command.user_ids) <= most:
        raise _invalid("user_ids", f"must have {least} to {most} users, has {len(command.user_ids)}")
    if not all(is_text_id(user) for user in command.user_ids):
        raise _invalid("user_ids", "has something that is not an id")
    if not 0 <= command.limit <= limits.GROUP_PAGE_MAX:
        raise _invalid("limit", f"must be 0 to {limits.GROUP_PAGE_MAX}")


def _invalid(name: str, what: str) -> AdmissionRefused:
    return AdmissionRefused("FIELD_INVALID", f"{name} {what}")
