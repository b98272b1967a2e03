"""Ports of sharding: the log of mappings, and what readers need of mailboxes.

Spec: §11.
"""

from collections.abc import Sequence
from typing import Protocol

from qim_streams.mailbox.ports import StoredEntry, Stretch, WatermarkState


class MappingLog(Protocol):
    """The log of mappings (`mapping_log`). StoreUnavailable when it does not answer."""

    async def read(self, start: int) -> tuple[list[bytes], int]:
        """The values from offset `start` to the end as of this call, and the next offset."""

    async def append(self, key: bytes, value: bytes) -> None:
        """Append a record; returns when it is acknowledged. StoreError UNKNOWN: read what stands."""


class MailboxReader(Protocol):
    """The reading half of `mailbox.ports.MailboxStore`, see there."""

    async def watermarks(self, shards: Sequence[int]) -> list[WatermarkState]:
        """See `MailboxStore.watermarks`."""

    async def watermark(self, shard: int) -> WatermarkState:
        """See `MailboxStore.watermark`."""

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        """See `MailboxStore.read`."""

    async def trim_watermark(self, shard: int, tenant_id: str, ordinal: int) -> int:
        """See `MailboxStore.trim_watermark`."""

    async def anything(self, stretches: Sequence[Stretch]) -> list[bool]:
        """See `MailboxStore.anything`."""
