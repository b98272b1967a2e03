"""The port of mailbox stores.

Spec: §5, §7.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EntryGroup:
    """One stored value for many mailboxes. `ordinals` are the users that get it, ascending."""

    tenant_id: str
    mailbox_seq: int
    event_ordinal: int
    value: bytes
    ordinals: Sequence[int]


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """A shard as the store holds it: 64 watermarks (-1 = nothing) and the last writer's epoch."""

    epoch: int
    lanes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A mailbox row as read back."""

    mailbox_seq: int
    event_ordinal: int
    value: bytes


class MailboxStore(Protocol):
    """Mailboxes and watermarks of shards. Writes are fenced by `epoch` (FencedError, nothing written).

    Writing an entry twice is harmless: the second write of a (mailbox_seq, event_ordinal) changes nothing.
    StoreError UNKNOWN is resolved by repeating the call or reading the watermark back.
    """

    async def write_entries(self, shard: int, epoch: int, groups: Sequence[EntryGroup]) -> None:
        """Make the entries durable (at most 2,000 mailboxes in one call) without moving W."""

    async def write_and_advance(
        self, shard: int, epoch: int, groups: Sequence[EntryGroup], expected: int, observed: int
    ) -> int:
        """Entries and then W, atomically: all lanes from `expected` to `observed` by compare-and-set.

        Returns the coverage that stands afterwards: `observed`, or, when `expected` was not the
        persisted coverage, that other value and nothing was written. `groups` may be empty. Spec: §5.
        """

    async def watermark(self, shard: int) -> WatermarkState:
        """The persisted watermark of a shard, all lanes -1 for a new one."""

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        """Entries with after_seq < mailbox_seq <= up_to_seq, ascending, at most `limit`."""

    async def trim_watermark(self, shard: int, tenant_id: str, ordinal: int) -> int:
        """effective_trim(user): everything at or below may be gone; -1 when nothing was trimmed."""
