"""Requests and answers of the admin API, and the form of ids. The OpenAPI document is made from them.

Spec: §4.
"""

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from qim_streams import limits
from qim_streams.ids import TEXT_ID_MAX
from qim_streams.membership.commands import GroupState
from qim_streams.membership.ports import Conversation
from qim_streams.quotas.rules import FANOUT_MAX

ID_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._@~-]{{0,{TEXT_ID_MAX - 1}}}$"
MESSAGE_ID_PATTERN = r"^[0-9a-fA-F]{32}$"

Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
Tenant = Annotated[str, Path(pattern=ID_PATTERN, description="tenant")]
ConversationPath = Annotated[str, Path(pattern=ID_PATTERN, description="conversation")]
UserPath = Annotated[str, Path(pattern=ID_PATTERN, description="user")]
MessagePath = Annotated[str, Path(pattern=MESSAGE_ID_PATTERN, description="message id, 32 hex digits")]
Users = Annotated[list[Id], Field(min_length=1, max_length=limits.GROUP_MEMBERS_PER_CHANGE_MAX)]
SendPolicy = Literal["members", "admins"]
JoinPolicy = Literal["invite", "open"]
HistoryPolicy = Literal["joined", "all"]
Role = Literal["owner", "admin", "member"]
# Frames carry names as text without control characters: a name that has one would break every client.
NAME_PATTERN = r"^[^\x00-\x1f\x7f]*$"
Name = Annotated[str, StringConstraints(max_length=limits.GROUP_NAME_MAX, pattern=NAME_PATTERN)]


class Request(BaseModel):
    """A request body: unknown fields are errors, so a misspelt one is not ignored; types are as documented.

    (A text is no number, whatever is in it.)
    """

    model_config = ConfigDict(extra="forbid", strict=True)


class TenantRulesBody(Request):
    """Rules of a tenant. Null: the deployment's default."""

    fanout_per_s: Annotated[int, Field(ge=0, le=FANOUT_MAX)] | None = Field(
        None, description="recipients per second of all its messages together; 0: without a bound"
    )
    multi_login: str | None = Field(
        None, description="all: every device; platform: one device of each; newest: only the newest"
    )


class CreateGroup(Request):
    """A new group. Without `owner` the first of `members` owns it."""

    conversation_id: Id | None = Field(None, description="wanted id; null: the server makes one")
    owner: Id | None = None
    members: Annotated[list[Id], Field(max_length=limits.GROUP_MEMBERS_PER_CHANGE_MAX)] = []
    name: Name = ""
    send_policy: SendPolicy = "members"
    join_policy: JoinPolicy = "invite"
    history_policy: HistoryPolicy = "joined"


class UpdateGroup(Request):
    """What changes; what is null stays."""

    name: Name | None = None
    send_policy: SendPolicy | None = None
    join_policy: JoinPolicy | None = None
    history_policy: HistoryPolicy | None = None


class UserList(Request):
    """Users to add or remove."""

    user_ids: Users


class OneUser(Request):
    """The user on whose behalf something is done."""

    user_id: Id


class SetRole(Request):
    """A member's new role; `owner` hands the group over."""

    role: Role


class MintToken(Request):
    """Whom a token is for, and for how long."""

    user_id: Id
    ttl_s: int = Field(3_600, ge=1, le=limits.TOKEN_TTL_MAX_S, description="seconds")


class MemberAnswer(BaseModel):
    """An active member."""

    user_id: str
    role: Role


class ConversationAnswer(BaseModel):
    """A conversation as it stands."""

    conversation_id: str
    kind: Literal["direct", "group"]
    last_seq: int = Field(description="last allocated conversation_seq, 0 for none")
    version: int = Field(description="grows with every change")
    name: str
    send_policy: SendPolicy
    join_policy: JoinPolicy
    history_policy: HistoryPolicy
    members_active: int
    members_max: int
    created_at: int = Field(description="milliseconds since the epoch")
    dismissed: bool


class GroupAnswer(ConversationAnswer):
    """A conversation with a page of its active members, by user id."""

    members: list[MemberAnswer]
    next_user_id: str | None = Field(description="pass as after_user_id for the next page; null: no more")


class DirectAnswer(BaseModel):
    """The direct chat of two users. It is made by its first message: until then `conversation` is null."""

    conversation_id: str
    conversation: ConversationAnswer | None


class TokenAnswer(BaseModel):
    """An access token. Keep it secret."""

    access_token: str
    expires_at: int = Field(description="seconds since the epoch")


class HealthAnswer(BaseModel):
    """Whether the process is alive."""

    status: Literal["ok"]


class ReadyAnswer(BaseModel):
    """Whether every dependency answers; `dependencies` maps each to `ok` or to the kind of its failure."""

    ready: bool
    reasons: list[str]
    dependencies: dict[str, str]


class VersionAnswer(BaseModel):
    """What is running."""

    version: str


class FailureAnswer(BaseModel):
    """Every error has this form."""

    code: int
    name: str
    temporary: bool = Field(description="the same request may succeed later")
    detail: str
    field: str | None
    retry_after_ms: int | None


def conversation_answer(head: Conversation) -> ConversationAnswer:
    """The answer for a head."""
    return ConversationAnswer(**_fields(head))


def group_answer(state: GroupState) -> GroupAnswer:
    """The answer for a group and a page of its members."""
    members = [MemberAnswer(user_id=one.user_id, role=one.role) for one in state.members]  # type: ignore[arg-type]
    return GroupAnswer(members=members, next_user_id=state.next_user_id, **_fields(state.conversation))


def _fields(head: Conversation) -> dict[str, Any]:
    fields = {name: getattr(head, name) for name in ConversationAnswer.model_fields if name != "last_seq"}
    return fields | {"last_seq": head.seq}
