"""Ports of the log as stages see it: batches to handle, records to append, poison to set aside.

`streaming` implements them; stages and tests import nothing else of it.

Spec: §3.4, §4, §5, §14.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class LogRecord(Protocol):
    """A record as read: bytes of key and value, and its offset."""

    @property
    def key(self) -> bytes | None:
        """The record's key."""

    @property
    def value(self) -> bytes | None:
        """The record's value, None for a tombstone."""

    @property
    def offset(self) -> int:
        """The record's offset in its partition."""


class LogBatch(Protocol):
    """Records of one partition in offset order, none skipped (`streaming.lanes.SourceBatch`)."""

    @property
    def partition(self) -> int:
        """The partition they were read from."""

    @property
    def records(self) -> Sequence[LogRecord]:
        """At least one record."""

    @property
    def previous_offset(self) -> int:
        """The offset read before the first one, -1 for none: the `expected_previous`. Spec: §14.2."""


class Outgoing(NamedTuple):
    """A record to append to an explicit partition; a value of None is a tombstone."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


class LogAppender(Protocol):
    """Appends to the log. Calls made one after the other keep their order per partition."""

    async def append(self, records: Sequence[Outgoing]) -> list[int]:
        """Offsets in order, once ALL are acknowledged; RecordTooLargeError (nothing appended), else
        StoreError with outcome UNKNOWN."""


@dataclass(frozen=True, slots=True)
class Poison:
    """A record that cannot be processed, and why (one line, without payload)."""

    topic: str
    partition: int
    record: LogRecord
    cause: str


class PoisonSink(Protocol):
    """Where poison goes: a log of its own, with the original bytes and coordinates."""

    async def send(self, poison: Sequence[Poison]) -> None:
        """Append all; returns when they are acknowledged. At least once. Spec: §11."""
