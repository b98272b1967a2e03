"""A writer in memory, and an API around it that is called without a socket."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from qim_streams import ids
from qim_streams.api.app import build_api
from qim_streams.api.ports import ApiDeps, Probe
from qim_streams.errors import AdmissionRefused
from qim_streams.membership.ports import Conversation
from qim_streams.trace.model import MessageTrace, TracedMessage
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
    GroupState,
    GroupUpdate,
    MemberRow,
)

KEY = "an-admin-key-of-more-than-32-characters"
BASE = "/v1/tenants/acme"


@dataclass
class Group:
    """A group of the fake writer."""

    name: str = ""
    roles: dict[str, str] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    version: int = 1
    kind: str = "group"
    dismissed: bool = False


class FakeWriter:
    """Carries out GROUP frames on dictionaries and remembers who asked. `failure` is raised once set."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], Group] = {}
        self.asked: list[tuple[str, str | None, Any]] = []
        self.failure: Exception | None = None

    async def group(self, tenant_id: str, actor: str | None, request: GroupFrame) -> GroupState:
        """As the port says."""
        self.asked.append((tenant_id, actor, request))
        if self.failure is not None:
            raise self.failure
        if isinstance(request, GroupCreate):
            return self._create(tenant_id, actor, request)
        conversation = request.conversation_id
        group = self.groups.get((tenant_id, conversation))
        if group is None:
            raise AdmissionRefused("NO_CONVERSATION", "there is no such conversation")
        self._change(group, actor, request)
        after, limit = "", 1_000
        if isinstance(request, GroupGet):
            after, limit = request.after_user_id or "", request.limit
        return self._state(conversation, group, after, limit)

    def _create(self, tenant: str, actor: str | None, request: GroupCreate) -> GroupState:
        conversation = request.conversation_id or f"g{len(self.groups)}"
        if (tenant, conversation) in self.groups:
            raise AdmissionRefused("CONVERSATION_EXISTS", "choose another id")
        members = [*([actor] if actor else []), *request.members]
        roles = dict.fromkeys(members, "member") | dict.fromkeys(members[:1], "owner")
        policies = {name: getattr(request, name) for name in ("send_policy", "join_policy", "history_policy")}
        self.groups[tenant, conversation] = Group(request.name, roles, policies)
        return self._state(conversation, self.groups[tenant, conversation])

    def _change(self, group: Group, actor: str | None, request: GroupFrame) -> None:
        if isinstance(request, GroupAdd):
            group.roles |= {user: "member" for user in request.user_ids if user not in group.roles}
        elif isinstance(request, GroupRemove):
            for user in request.user_ids:
                group.roles.pop(user, None)
        elif isinstance(request, GroupJoin):
            assert actor is not None
            if group.policies["join_policy"] != "open":
                raise AdmissionRefused("NOT_ALLOWED", "members are added by an administrator")
            group.roles.setdefault(actor, "member")
        elif isinstance(request, GroupLeave):
            assert actor is not None
            group.roles.pop(actor, None)
        elif isinstance(request, GroupSetRole):
            group.roles[request.user_id] = request.role
        elif isinstance(request, GroupUpdate):
            group.name = request.name if request.name is not None else group.name
            changed = {name: getattr(request, name) for name in group.policies}
            group.policies |= {name: value for name, value in changed.items() if value is not None}
        elif isinstance(request, GroupDismiss):
            group.dismissed = True
        if not isinstance(request, GroupGet):
            group.version += 1

    async def direct(self, tenant_id: str, user_id: str, peer_id: str) -> GroupState:
        """As the port says."""
        if self.failure is not None:
            raise self.failure
        conversation = ids.direct_conversation_id(tenant_id, user_id, peer_id)
        group = self.groups.setdefault(
            (tenant_id, conversation),
            Group("", dict.fromkeys((user_id, peer_id), "member"), dict(POLICIES), kind="direct"),
        )
        return self._state(conversation, group)

    async def conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """Heads, as the reading port says."""
        group = self.groups.get((tenant_id, conversation_id))
        if group is None:
            return None
        return Conversation(
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            kind=group.kind,
            version=group.version,
            seq=17,
            name=group.name,
            members_max=1_000,
            members_active=len(group.roles),
            created_at=5,
            creator_id="",
            dismissed=group.dismissed,
            **group.policies,
        )

    def _state(self, conversation: str, group: Group, after: str = "", limit: int = 1_000) -> GroupState:
        users = [user for user in sorted(group.roles) if user > after]
        page = users[:limit]
        return GroupState(
            rid=0,
            conversation_id=conversation,
            kind=group.kind,
            name=group.name,
            version=group.version,
            members_active=len(group.roles),
            members=[MemberRow(user, group.roles[user]) for user in page],
            dismissed=group.dismissed,
            next_user_id=page[-1] if page and len(page) < len(users) else None,
            **group.policies,
        )


POLICIES = {"send_policy": "members", "join_policy": "invite", "history_policy": "joined"}


async def fake_trace(tenant_id: str, message_id: bytes, conversation_id: str | None) -> MessageTrace:
    """Finds ids that begin with 01, of tenant acme."""
    trace = MessageTrace(tenant_id, message_id.hex(), notes=[f"looked in {conversation_id or 'all'}"])
    if message_id[0] == 1 and tenant_id == "acme":
        trace.message = TracedMessage("room", 5, 1, "ann", "phone", "c", 1, 1_000, 12)
    return trace


def fake_mint(tenant_id: str, user_id: str, ttl_s: int) -> tuple[str, int]:
    """A token that tells whom it is for."""
    return f"{tenant_id}.{user_id}", 1_000 + ttl_s


async def well() -> None:
    """A probe that answers."""


def deps(writer: FakeWriter, probes: Mapping[str, Probe] | None = None, **changes: Any) -> ApiDeps:
    """Everything the API needs, around a fake writer."""
    given: dict[str, Any] = {
        "api_key": KEY.encode(),
        "commands": writer,
        "conversations": writer,
        "trace": fake_trace,
        "mint": fake_mint,
        "probes": {"redis": well} if probes is None else probes,
    }
    return ApiDeps(**(given | changes))


def client(of: ApiDeps, *, key: str | None = KEY) -> httpx.AsyncClient:
    """A client of the application, without a socket. Unforeseen errors become answers, as on a server."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app=build_api(of), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers)
