"""Ports of the commit stage: the conversation store of an Outbox partition, and the Outbox.

Spec: §3, §14.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class CommitStatus(Enum):
    """What the commit script decided for one message."""

    NEW = "new"  # seq allocated, record and pending row written, dedup RESERVED
    REPEAT_RESERVED = "repeat_reserved"  # same id and payload, Outbox append not confirmed yet
    REPEAT_COMMITTED = "repeat_committed"  # same id and payload, done: answer the same
    CONFLICT = "conflict"  # same client_message_id, another payload; the first stands
    NO_CONVERSATION = "no_conversation"
    NOT_MEMBER = "not_member"
    NOT_ALLOWED = "not_allowed"  # member, but the send policy says no
    DISMISSED = "dismissed"
    CLOCK_BEHIND = "clock_behind"  # message_id not above the conversation's last: observe and retry


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """One message for `ConversationStore.commit`. `record_tail` is `MessageRecord.tail()`."""

    tenant_id: str
    conversation_id: str
    sender_id: str
    client_message_id: str
    payload_digest: bytes  # 16 bytes over what must be equal in a repeat
    message_id: bytes  # candidate
    record_tail: bytes


@dataclass(frozen=True, slots=True)
class CommitResult:
    """`message_id`, `conversation_seq` and `membership_version` are those that stand (0/empty if none).

    For CLOCK_BEHIND `message_id` is the conversation's last id.
    """

    status: CommitStatus
    message_id: bytes = b""
    conversation_seq: int = 0
    membership_version: int = 0


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message committed in the store and not yet confirmed in the Outbox."""

    tenant_id: str
    conversation_id: str
    conversation_seq: int
    record: bytes


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Names a message whose Outbox record is acknowledged."""

    tenant_id: str
    conversation_id: str
    sender_id: str
    client_message_id: str
    message_id: bytes


class ConversationStore(Protocol):
    """Conversations of one Outbox partition: every call is atomic and fenced by `epoch` (FencedError).

    StoreError with outcome UNKNOWN means that the call may have been applied; repeating it is safe.
    """

    async def commit(
        self, partition: int, epoch: int, requests: Sequence[CommitRequest]
    ) -> list[CommitResult]:
        """Decide and apply each request in order; one result each."""

    async def confirm(self, partition: int, epoch: int, done: Sequence[Confirmation]) -> None:
        """Dedup RESERVED -> COMMITTED and pending rows removed, for acknowledged Outbox records."""

    async def pending(self, partition: int, epoch: int, limit: int) -> list[PendingMessage]:
        """Up to `limit` unconfirmed messages, per conversation in seq order starting with the oldest."""

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where the hot tier has none."""


@dataclass(frozen=True, slots=True)
class OutboxAppend:
    """One Outbox record to append: partition, Kafka key, value."""

    partition: int
    key: bytes
    value: bytes


class Outbox(Protocol):
    """The Outbox log. Appends of one partition keep their order."""

    async def append(self, records: Sequence[OutboxAppend]) -> list[int]:
        """Offsets, in order, once ALL are acknowledged by the broker; raises StoreError (UNKNOWN) else."""
