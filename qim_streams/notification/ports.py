"""Ports of offline push: registered devices, the queue, providers. That of badges is `sessions.badge_ports`.

Spec: §6.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from qim_streams.notification.records import PushDevice, PushSettings
from qim_streams.sessions.ports import SessionUser


class DeviceRow(NamedTuple):
    """What is stored of a device at one moment. `session_epoch`: 0 for a device that never signed on.

    `ended`: the login of another device has ended this one's session for good, by the tenant's rule.
    """

    device: PushDevice | None
    settings: PushSettings | None
    session_epoch: int
    ended: bool = False


class DeviceStore(Protocol):
    """Registered devices where they are read. StoreError: repeating a call is safe."""

    async def load(self, wanted: Sequence[tuple[str, str, str]]) -> list[DeviceRow]:
        """The row of each (tenant, user, device), many users in one round trip."""

    async def devices(self, tenant_id: str, user_id: str) -> list[PushDevice]:
        """All registered devices of a user, dead ones included, by name."""

    async def put(self, device: PushDevice) -> str | None:
        """Store a device unless a newer version is there; the device that gave way, None for none."""

    async def settings(self, tenant_id: str, user_id: str) -> PushSettings | None:
        """A user's settings; None: he has set nothing."""

    async def put_settings(self, settings: PushSettings) -> None:
        """Store settings unless a newer version is there."""

    async def remove(self, tenant_id: str, user_id: str, device_id: str) -> None:
        """Forget a device."""

    async def bury(self, device: PushDevice, reason: str) -> bool:
        """The provider refused this very version for good: keep the reason, not the token.

        False: another version is there, which is left alone.
        """

    async def claim_token(self, device: PushDevice) -> tuple[str, str, str] | None:
        """Note whose token this is; who had it before (tenant, user, device), None for the same."""

    async def is_whole(self) -> bool:
        """Whether everything that the device log holds was put into this run of the store."""

    async def mark_whole(self) -> None:
        """It was."""


class QueuedTask(NamedTuple):
    """A task taken off the queue.

    `attempts` were answered by the provider before. `interrupted`: another attempt was begun and nobody knows
    how it ended. `claimed_until`: nobody else takes the task before.
    """

    slot: int
    task_id: bytes
    task: bytes
    attempts: int
    interrupted: bool
    claimed_until: int


class NewTask(NamedTuple):
    """A task for the queue; not to be taken before `due_at`, ms."""

    task_id: bytes
    provider: str
    due_at: int
    task: bytes


class Accepted(NamedTuple):
    """What became of tasks: how many are queued, were known already, and found no room."""

    queued: int
    known: int
    refused: int


class Later(NamedTuple):
    """Take a task again at `due_at`, ms. `counted`: an attempt was made."""

    slot: int
    task_id: bytes
    provider: str
    due_at: int
    counted: bool


class Done(NamedTuple):
    """A task is over, sent or not."""

    slot: int
    task_id: bytes
    provider: str
    sent: bool


class Taken(NamedTuple):
    """Due tasks, and when the next one is due (None: none waits)."""

    tasks: list[QueuedTask]
    next_due: int | None


class TaskQueue(Protocol):
    """Tasks by slot (a partition of the task log) and provider. StoreError: repeating a call is safe.

    A task that is over is remembered for a while: offered again, it is not queued again.
    """

    async def position(self, slot: int) -> int:
        """The next offset of the slot's partition that was not accepted, 0 for none."""

    async def accept(
        self, slot: int, tasks: Sequence[NewTask], next_offset: int, now_ms: int, stands: int = 0
    ) -> Accepted:
        """Queue what is not known yet, then move the position.

        `stands`: where the caller knows it to stand. InvariantViolation when it stands lower: the store lost
        its last writes, and tasks with them; nothing is queued. One that lost everything goes on.
        """

    async def take(self, slots: Sequence[int], provider: str, now_ms: int, limit: int) -> Taken:
        """Claim due tasks of a provider, about `limit` of them, at most that many of each slot."""

    async def begin(self, tasks: Sequence[QueuedTask]) -> None:
        """Attempts at these are about to begin."""

    async def settle(self, done: Sequence[Done], later: Sequence[Later], now_ms: int) -> None:
        """Take tasks off the queue, or let them wait. What is no longer on the queue is left alone."""

    async def waiting(self, slots: Sequence[int], provider: str) -> int:
        """How many tasks of a provider the slots hold."""


class Result(Enum):
    """What a provider said."""

    SENT = "sent"  # handed over, nothing more (Spec: §1 NOTIFIED)
    DEAD = "dead"  # the token is good no more
    REFUSED = "refused"  # this notification will never be taken
    BUSY = "busy"  # the target, not the provider: later
    DOWN = "down"  # the provider: later, and for everybody


@dataclass(frozen=True, slots=True)
class Answer:
    """A provider's answer. `reason` is its own word; `retry_after_ms` what it asked for.

    `dead_since_ms`: the token died no later than this; a registration that is newer stands.
    """

    result: Result
    reason: str = ""
    retry_after_ms: int | None = None
    dead_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Notification:
    """What a provider is given. `notification_id`: 16 bytes, the same in each attempt.

    `collapse_key`: a notification replaces one with the same key on the device. `expires_at`: seconds since
    the epoch. `preview` is empty where the operator wants no text of messages to leave the system.
    """

    notification_id: bytes
    tenant_id: str
    user_id: str
    device_id: str
    app: str
    token: str
    conversation_id: str
    conversation_seq: int
    message_id: bytes
    sender_id: str
    committed_at: int
    mention_type: int
    badge: int | None
    title: str
    text: str
    collapse_key: str
    expires_at: int

    def __repr__(self) -> str:
        return f"Notification({self.notification_id.hex()})"


class Provider(Protocol):
    """A way to devices. Errors of the network are answers (DOWN), never exceptions."""

    @property
    def name(self) -> str:
        """Its name in settings, registrations and metrics; the same as long as there are devices of it."""

    async def send(self, notification: Notification) -> Answer:
        """Hand a notification over, once."""

    async def close(self) -> None:
        """Give connections up."""


class MessageReader(Protocol):
    """Messages in either tier."""

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where there is none."""


class StateReader(Protocol):
    """A user's marks on conversations, whole (see `sessions.restoring`)."""

    async def states(self, wanted: Sequence[tuple[SessionUser, str]]) -> list[bytes | None]:
        """UserConversationState bytes of each (user, conversation), None where there are none."""
