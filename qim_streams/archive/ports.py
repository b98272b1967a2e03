"""The port of archives.

Spec: §1, §3, §14.8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A MessageRecord's bytes with its address."""

    tenant_id: str
    conversation_id: str
    conversation_seq: int
    record: bytes


class Archive(Protocol):
    """Messages by (tenant, conversation, seq), and a watermark per Outbox partition.

    `store` is idempotent. The watermark is the last Outbox offset below which everything is archived
    (inclusive), -1 for none; it only grows.
    """

    async def store(self, partition: int, messages: Sequence[ArchivedMessage], watermark: int) -> None:
        """Make the messages durable, then the watermark, in this order or in one atomic batch."""

    async def watermark(self, partition: int) -> int:
        """The archive watermark of an Outbox partition."""

    async def range(
        self, tenant_id: str, conversation_id: str, after_seq: int, up_to_seq: int, limit: int
    ) -> list[ArchivedMessage]:
        """after_seq < seq <= up_to_seq, ascending, at most `limit`."""

    async def latest(self, tenant_id: str, conversation_id: str) -> int:
        """The largest archived seq of a conversation, 0 for none."""

    async def close(self) -> None:
        """Release the store; calls after this raise StoreError."""
