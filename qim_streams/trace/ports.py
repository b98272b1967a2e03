"""The log as a trace reads it: by time and offset, bounded, without a consumer group.

Spec: §1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class LogEntry(NamedTuple):
    """A record of the log. `at_ms` is its CreateTime, milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None


Visit = Callable[[LogEntry], bool]
"""Looks at an entry; True when its partition needs no further look. Called in the reader's thread."""


@dataclass(frozen=True, slots=True)
class Scan:
    """How a scan ended: entries looked at, and whether every partition was read to its end (as of the
    start) or until its visitor had enough. False: the bound was reached first."""

    entries: int
    complete: bool


class LogReader(Protocol):
    """Reads any partition. StoreUnavailable when the brokers do not answer."""

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has, 0 when it does not exist."""

    async def offsets_at(self, topic: str, partitions: list[int], at_ms: int) -> dict[int, int]:
        """Per partition the offset of the first record at or after `at_ms`; its end when there is none."""

    async def scan(self, topic: str, starts: Mapping[int, int], visit: Visit, entries_max: int) -> Scan:
        """Show `visit` the entries of each partition from its start on, up to its end as of now.

        At most `entries_max` entries in all. Entries that retention has removed are skipped.
        """

    async def close(self) -> None:
        """Release the connection."""
