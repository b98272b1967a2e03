"""What a backup reads and a restore writes.

Spec: §14.8.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

LogRow = tuple[int, bytes | None, bytes | None]
"""Offset, key, value (None: a tombstone)."""
Entry = tuple[bytes | None, bytes | None]
"""Key and value to append."""
KeyRow = tuple[bytes, int, bytes]
"""Key, milliseconds until it expires (0: never), what the store's own dump of it says."""
Pair = tuple[bytes, bytes]


class Logs(Protocol):
    """The log. StoreUnavailable when it does not answer."""

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that is there, and the one behind the last."""

    def rows(self, topic: str, partition: int, start: int) -> AsyncIterator[Sequence[LogRow]]:
        """All records from `start` to the end as of this call, in order."""

    async def append(self, topic: str, partition: int, rows: Sequence[Entry]) -> None:
        """Append keys and values in order; they are acknowledged afterwards."""

    async def drop_below(self, topic: str, partition: int, offset: int) -> None:
        """Let the log begin at `offset`."""


class HotFamilies(Protocol):
    """Keys of the hot tier that no log has. StoreError."""

    def dumps(self) -> AsyncIterator[Sequence[KeyRow]]:
        """Every key of the families."""

    async def put(self, rows: Sequence[KeyRow]) -> None:
        """Write keys that are not there. ConfigError when one is."""

    async def is_empty(self) -> bool:
        """Whether the store holds nothing at all."""


class ArchivePairs(Protocol):
    """The archive as it lies on the disk. StoreError."""

    async def watermark(self, partition: int) -> int:
        """The archive watermark of an Outbox partition, -1 for none."""

    def pairs(self) -> AsyncIterator[Sequence[Pair]]:
        """Everything, in the order of the keys."""
