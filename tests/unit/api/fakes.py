"""A writer in memory, and an API around it that is called without a socket."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from qim_streams.api.app import build_api
from qim_streams.api.ports import ApiDeps, Probe
from qim_streams.errors import AdmissionRefused
from qim_streams.membership.commands import GroupCommand, GroupOp, GroupState, check
from qim_streams.membership.ports import Conversation, Member
from qim_streams.trace.model import MessageTrace, TracedMessage
from tests.support.gateway_world import FakeRules

KEY = "an-admin-key-of-more-than-32-characters"
BASE = "/v1/tenants/acme"


POLICIES = {"name": "", "send_policy": "members", "join_policy": "invite", "history_policy": "joined"}


@dataclass
class Group:
    """A group of the fake writer."""

    roles: dict[str, str]
    fields: dict[str, str]
    kind: str = "group"
    dismissed: bool = False

    def head(self, tenant_id: str, conversation_id: str) -> Conversation:
        """The head of the group."""
        return Conversation(
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            kind=self.kind,
            version=1,
            seq=17,
            members_max=1_000,
            members_active=len(self.roles),
            created_at=5,
            creator_id="",
            dismissed=self.dismissed,
            **self.fields,
        )


class FakeWriter:
    """Carries out group commands on dictionaries and remembers them. `failure` is raised once set."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], Group] = {}
        self.asked: list[GroupCommand] = []
        self.failure: Exception | None = None

    async def group(self, command: GroupCommand) -> GroupState:
        """As the port says, refusing what the real one refuses."""
        self.asked.append(command)
        if self.failure is not None:
            raise self.failure
        check(command)
        address = (command.tenant_id, command.conversation_id)
        if command.op is GroupOp.CREATE:
            self._create(address, command)
        group = self.groups.get(address)
        if group is None:
            raise AdmissionRefused("NO_CONVERSATION", "there is no such conversation")
        self._change(group, command)
        users = [user for user in sorted(group.roles) if user > command.after_user_id]
        page = users[: command.limit]
        members = tuple(Member(user, 0, group.roles[user], True, ((0, None),)) for user in page)
        more = page[-1] if page and len(page) < len(users) else None
        return GroupState(group.head(*address), members, more)

    def _create(self, address: tuple[str, str], command: GroupCommand) -> None:
        if address in self.groups:
            raise AdmissionRefused("CONVERSATION_EXISTS", "choose another id")
        members = [*([command.actor_id] if command.actor_id else []), *command.user_ids]
        roles = dict.fromkeys(members, "member") | dict.fromkeys(members[:1], "owner")
        self.groups[address] = Group(roles, dict(POLICIES) | dict(command.fields))

    def _change(self, group: Group, command: GroupCommand) -> None:
        actor = command.actor_id or ""
        if command.op is GroupOp.ADD:
            group.roles |= {user: "member" for user in command.user_ids if user not in group.roles}
        elif command.op is GroupOp.REMOVE:
            for user in command.user_ids:
                group.roles.pop(user, None)
        elif command.op is GroupOp.JOIN:
            if group.fields["join_policy"] != "open":
                raise AdmissionRefused("NOT_ALLOWED", "members are added by an administrator")
            group.roles.setdefault(actor, "member")
        elif command.op is GroupOp.LEAVE:
            group.roles.pop(actor, None)
        elif command.op is GroupOp.SET_ROLE:
            group.roles[command.user_ids[0]] = command.role
        elif command.op is GroupOp.UPDATE:
            group.fields |= command.fields
        elif command.op is GroupOp.DISMISS:
            group.dismissed = True

    async def conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """Heads, as the reading port says."""
        address = (tenant_id, conversation_id)
        return self.groups[address].head(*address) if address in self.groups else None


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
        "new_group_id": lambda: "g-new",
        "conversations": writer,
        "trace": fake_trace,
        "mint": fake_mint,
        "rules": FakeRules(),
        "probes": {"redis": well} if probes is None else probes,
    }
    return ApiDeps(**(given | changes))


def client(of: ApiDeps, *, key: str | None = KEY) -> httpx.AsyncClient:
    """A client of the application, without a socket. Unforeseen errors become answers, as on a server."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app=build_api(of), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers)
