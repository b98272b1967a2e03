"""Outbox batches as the streaming layer hands them over, and dead letters that remember."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from qim_streams import hlc
from qim_streams.log_ports import Poison
from qim_streams.ownership.log_fence import BARRIER_KEY, encode_barrier
from qim_streams.records import MessageRecord, OutboxRecord, record_key

TENANT = "acme"


@dataclass(frozen=True)
class Record:
    """A record of the log."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp: int = 0


@dataclass(frozen=True)
class Batch:
    """Consecutive records of a partition."""

    partition: int
    records: list[Any]
    previous_offset: int


@dataclass
class RememberedLetters:
    """Dead letters in a list."""

    letters: list[tuple[int, str]] = field(default_factory=list)

    async def send(self, poison: Sequence[Poison]) -> None:
        """Remember each record's offset and the reason."""
        self.letters += [(one.record.offset, one.cause) for one in poison]


def message(seq: int, conversation: str = "room", body: bytes = b"hi", tenant: str = TENANT) -> MessageRecord:
    """A message of a conversation; its id follows from seq."""
    return MessageRecord(
        conversation_seq=seq,
        membership_version=1,
        tenant_id=tenant,
        conversation_id=conversation,
        message_id=hlc.encode(1_000 + seq, 0, 7),
        last_activity_id=hlc.encode(1_000 + seq, 0, 7),
        sender_id="ann",
        sender_ordinal=64,
        sender_device_id="phone",
        client_message_id=f"c{seq}",
        fencing_epoch=1,
        committed_at=1_000 + seq,
        kind=0,
        state=0,
        body=body,
    )


def record(
    offset: int, of: MessageRecord, *, flags: int = 0, key: bytes | None = None, epoch: int = 1
) -> Record:
    """The Outbox record of a message, appended by the owner of `epoch`."""
    value = OutboxRecord(of.encode(), epoch, flags, None).encode()
    return Record(key or record_key(of.tenant_id, of.conversation_id), value, offset)


def barrier(offset: int, epoch: int) -> Record:
    """The barrier of an owner."""
    return Record(BARRIER_KEY, encode_barrier(epoch), offset)


def batch(records: list[Record], *, previous: int | None = None, partition: int = 0) -> Batch:
    """A batch that continues the offset before its first record, unless told otherwise."""
    return Batch(partition, records, records[0].offset - 1 if previous is None else previous)
