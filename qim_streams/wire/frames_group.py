"""The frames of groups. They are part of the tables in ``frames``.

Spec: §2, §4.
"""

from typing import Annotated, NamedTuple

from qim_streams import limits
from qim_streams.wire.kinds import U32_MAX, Bool, Int, ListOf, OneOf, Text, TextId
from qim_streams.wire.schema import Schema, Struct

_ID = TextId()
_COUNT = Int(0)
_NAME = Text(limits.GROUP_NAME_MAX)
_SEND_POLICY = OneOf(("members", "admins"))
_JOIN_POLICY = OneOf(("invite", "open"))
_HISTORY_POLICY = OneOf(("joined", "all"))
_ROLE = OneOf(("owner", "admin", "member"))

Rid = Annotated[int, Int(0, U32_MAX), "request id; the answer repeats it"]
Conversation = Annotated[str, _ID, "the conversation"]


class GroupCreate(NamedTuple):
    """Make a group; the sender becomes its owner."""

    rid: Rid
    members: Annotated[
        list[str], ListOf(_ID, limits.GROUP_MEMBERS_PER_CHANGE_MAX), "users to add besides the owner"
    ]
    conversation_id: Annotated[str | None, _ID, "wanted id; null: the server makes one"] = None
    name: Annotated[str, _NAME, "for people"] = ""
    send_policy: Annotated[str, _SEND_POLICY, "who may send"] = "members"
    join_policy: Annotated[str, _JOIN_POLICY, "whether anybody may join"] = "invite"
    history_policy: Annotated[str, _HISTORY_POLICY, "what a new member may read of the past"] = "joined"


class GroupAdd(NamedTuple):
    """Add users to a group."""

    rid: Rid
    conversation_id: Conversation
    user_ids: Annotated[list[str], ListOf(_ID, limits.GROUP_MEMBERS_PER_CHANGE_MAX), "users"]


class GroupRemove(NamedTuple):
    """Remove users from a group."""

    rid: Rid
    conversation_id: Conversation
    user_ids: Annotated[list[str], ListOf(_ID, limits.GROUP_MEMBERS_PER_CHANGE_MAX), "users"]


class GroupJoin(NamedTuple):
    """Join an open group."""

    rid: Rid
    conversation_id: Conversation


class GroupLeave(NamedTuple):
    """Leave a group."""

    rid: Rid
    conversation_id: Conversation


class GroupDismiss(NamedTuple):
    """End a group for everybody; the owner only."""

    rid: Rid
    conversation_id: Conversation


class GroupSetRole(NamedTuple):
    """Give a member another role; `owner` hands the group over."""

    rid: Rid
    conversation_id: Conversation
    user_id: Annotated[str, _ID, "the member"]
    role: Annotated[str, _ROLE, "new role"]


class GroupUpdate(NamedTuple):
    """Change name or policies; what is null stays."""

    rid: Rid
    conversation_id: Conversation
    name: Annotated[str | None, _NAME, "for people"] = None
    send_policy: Annotated[str | None, _SEND_POLICY, "who may send"] = None
    join_policy: Annotated[str | None, _JOIN_POLICY, "whether anybody may join"] = None
    history_policy: Annotated[str | None, _HISTORY_POLICY, "what a new member may read of the past"] = None


class GroupGet(NamedTuple):
    """Read a group and a page of its members, in order of user id."""

    rid: Rid
    conversation_id: Conversation
    after_user_id: Annotated[str | None, _ID, "exclusive start of the page"] = None
    limit: Annotated[int, Int(0, limits.GROUP_PAGE_MAX), "members of the page"] = 100


class MemberRow(NamedTuple):
    """An active member of a group."""

    user_id: Annotated[str, _ID, "the user"]
    role: Annotated[str, _ROLE, "owner, admin or member"]


class GroupState(NamedTuple):
    """A group as it stands; the answer to every GROUP frame."""

    rid: Rid
    conversation_id: Conversation
    kind: Annotated[str, OneOf(("direct", "group")), "what it is"]
    name: Annotated[str, _NAME, "for people"]
    version: Annotated[int, _COUNT, "grows with every change of members"]
    send_policy: Annotated[str, _SEND_POLICY, "who may send"]
    join_policy: Annotated[str, _JOIN_POLICY, "whether anybody may join"]
    history_policy: Annotated[str, _HISTORY_POLICY, "what a new member may read of the past"]
    members_active: Annotated[int, _COUNT, "how many"]
    members: Annotated[
        list[MemberRow], ListOf(Struct(Schema(MemberRow)), limits.GROUP_PAGE_MAX), "a page of them"
    ]
    dismissed: Annotated[bool, Bool(), "whether it has ended"] = False
    next_user_id: Annotated[str | None, _ID, "start of the next page; null: this was the last"] = None


GroupFrame = (
    GroupCreate
    | GroupAdd
    | GroupRemove
    | GroupJoin
    | GroupLeave
    | GroupDismiss
    | GroupSetRole
    | GroupUpdate
    | GroupGet
)
