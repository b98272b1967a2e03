"""What the admin API needs of the rest of the system.

Spec: §1, §4.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from qim_streams.admin.audit import AuditLog
from qim_streams.admin.keys import AdminKeys
from qim_streams.console.directory import DeviceRow
from qim_streams.console.services import ConsoleDeps
from qim_streams.membership.commands import GroupCommand, GroupState
from qim_streams.membership.ports import Conversation
from qim_streams.notification.records import PushDevice, PushSettings
from qim_streams.presence.book import Seen
from qim_streams.quotas.ports import RulesStore
from qim_streams.rooms.commands import RoomAct, RoomCreate, RoomJoin, RoomView
from qim_streams.trace.model import MessageTrace


class Commands(Protocol):
    """Commands of groups, carried out by the writer that owns each of them.

    AdmissionRefused: the rules say no. StoreUnavailable, TimeoutError: no writer answers now; the change
    may or may not have been made, and repeating it is safe.
    """

    async def group(self, command: GroupCommand) -> GroupState:
        """Carry out a command, on behalf of its actor or as the operator (actor_id None)."""


class Conversations(Protocol):
    """Reading heads of conversations."""

    async def conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """The head, None when there is no such conversation."""


class Tracing(Protocol):
    """Tracing messages."""

    async def __call__(self, tenant_id: str, message_id: bytes, conversation_id: str | None) -> MessageTrace:
        """The way of a message; the conversation, when known, narrows the search."""


class PushAdmin(Protocol):
    """Registered devices and quiet hours. StoreError: repeating a call is safe."""

    async def register(self, device: PushDevice) -> PushDevice:
        """Notify a device from now on; the ordinal and version given are not looked at."""

    async def unregister(self, tenant_id: str, user_id: str, device_id: str) -> None:
        """Notify a device no more."""

    async def devices(self, tenant_id: str, user_id: str) -> list[PushDevice]:
        """The user's devices."""

    async def settings(self, tenant_id: str, user_id: str) -> PushSettings:
        """The user's settings."""

    async def change_settings(self, settings: PushSettings) -> PushSettings:
        """Keep settings."""


class PresenceAdmin(Protocol):
    """How users are seen. StoreError: ask again."""

    async def look(self, tenant_id: str, user_id: str) -> tuple[Seen, list[DeviceRow]] | None:
        """A user as others see him, and his devices, the one last seen first; None: nobody has that id."""


class RoomAdmin(Protocol):
    """Chat rooms. AdmissionRefused; StoreUnavailable: repeating a call is safe."""

    async def create(self, request: RoomCreate) -> RoomView:
        """Make a room; making the same one again changes nothing."""

    async def look(self, request: RoomJoin) -> RoomView:
        """A room as its writer sees it."""

    async def act(self, request: RoomAct) -> RoomView:
        """Mute, kick, close, ..."""

    async def list(self, tenant_id: str, after_room_id: str, limit: int) -> list[str]:
        """Ids of open rooms, ascending, above `after_room_id`."""

    async def count(self, tenant_id: str, room_id: str) -> int:
        """Connections in a room, over all gateways, a few seconds old."""


class TokenMint(Protocol):
    """Issuing access tokens."""

    def __call__(self, tenant_id: str, user_id: str, ttl_s: int) -> tuple[str, int]:
        """A token for a user and when it expires, seconds since the epoch."""


Probe = Callable[[], Awaitable[object]]
"""Returns when a dependency answers, raises when it does not."""


@dataclass(frozen=True, slots=True)
class ApiDeps:
    """Everything the API uses. `mint` is None where no HS256 secret is configured.

    `new_group_id` makes the id of a group that was asked for without one; `push` is None where it is off,
    `console` where the console is.
    """

    api_key: bytes
    commands: Commands
    new_group_id: Callable[[], str]
    conversations: Conversations
    trace: Tracing
    mint: TokenMint | None
    rules: RulesStore
    probes: Mapping[str, Probe]
    admins: AdminKeys | None = None  # None: `api_key` alone
    audit: AuditLog | None = None
    presence: PresenceAdmin | None = None
    rooms: RoomAdmin | None = None
    push: PushAdmin | None = None
    console: ConsoleDeps | None = None
