"""What the archiver keeps of a batch of Outbox records. Pure: no store, no clock.

A record is kept when it decodes, its ids are legal, and its key names its conversation. What fails is
poison: it goes to the dead letters and costs only itself. A message at an address that already holds
other bytes is poison too: the first one stands, because it is the one that was acknowledged
(Spec: §3.5). Unless it is a later revision of the same message (an edit, a recall): then it replaces what
is there, and an earlier revision that comes late is a repeat. The partition is not judged: it follows from
a setting, and a wrong setting must not turn good messages into dead letters.

An edit or recall is kept as any message, and its target is kept in the revision that it makes, whether the
target is in the same batch or was archived long ago (`apply_operations`).

Spec: §1, §3, §8, §11.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

from qim_streams.archive.ports import ArchivedMessage
from qim_streams.errors import RecordError
from qim_streams.ids import is_text_id
from qim_streams.log_ports import LogRecord
from qim_streams.operations.rules import Operation, operation_of, readable, revise, revision_of
from qim_streams.ownership.log_fence import BARRIER_KEY, NO_FENCE, barrier_epoch
from qim_streams.records import MessageRecord, decode_message, decode_outbox, record_key

Address = tuple[str, str, int]


R = TypeVar("R", bound=LogRecord)


@dataclass(slots=True)
class Reading(Generic[R]):
    """A batch as read: one message per address in log order, in its highest revision; how often an address
    was repeated; the poison with its reason; edits and recalls, with their records and targets.
    `committed_at` holds the first message's, 0 for none. `fenced`: records of an old owner, left out."""

    messages: dict[Address, ArchivedMessage] = field(default_factory=dict)
    sources: dict[Address, R] = field(default_factory=dict)
    poison: list[tuple[R, str]] = field(default_factory=list)
    operations: list[tuple[R, Address, Operation]] = field(default_factory=list)
    repeated: int = 0
    fenced: int = 0
    committed_at: int = 0


def read_message(record: LogRecord) -> tuple[ArchivedMessage, int]:
    """The message of an Outbox record and its committed_at; RecordError says what is wrong with it."""
    archived, message, _ = _read(record)
    return archived, message.committed_at


def _read(record: LogRecord) -> tuple[ArchivedMessage, MessageRecord, int]:
    """The message twice, and the epoch of who appended it."""
    if record.value is None:
        raise RecordError("OutboxRecord: a tombstone; the Outbox has none")
    outbox = decode_outbox(record.value)
    encoded = outbox.message
    message = decode_message(encoded)
    tenant_id, conversation_id, seq = message.tenant_id, message.conversation_id, message.conversation_seq
    key = _key_of(tenant_id, conversation_id)
    if not key:
        raise RecordError("MessageRecord: tenant_id or conversation_id is not a legal id")
    if seq < 1:
        raise RecordError(f"MessageRecord: conversation_seq {seq}, the first is 1")
    if record.key != key:
        raise RecordError("OutboxRecord: its key names another conversation than the message")
    revision = revision_of(message) if message.extra else 0
    archived = ArchivedMessage(tenant_id, conversation_id, seq, encoded, revision, record.offset)
    return archived, message, outbox.fencing_epoch


@lru_cache(maxsize=65_536)
def _key_of(tenant_id: str, conversation_id: str) -> bytes:
    """The Outbox key of a conversation; empty when an id is none."""
    if not (is_text_id(tenant_id) and is_text_id(conversation_id)):
        return b""
    return record_key(tenant_id, conversation_id)


def _replaces(message: ArchivedMessage, stored: bytes) -> bool | None:
    """Whether `message` replaces `stored` at its address: False for a repeat, None for a contradiction."""
    if stored == message.record:
        return False
    old = decode_message(stored)
    if old.message_id != decode_message(message.record).message_id or revision_of(old) == message.revision:
        return None
    return message.revision > revision_of(old)


def read_batch(records: Iterable[R], fence: int = NO_FENCE) -> Reading[R]:
    """The messages of a batch, at most one per address, and its poison. `fence`: that of all its records."""
    reading: Reading[R] = Reading()
    for record in records:
        try:
            if record.key == BARRIER_KEY and barrier_epoch(record.key, record.value) is not None:
                continue
            message, decoded, epoch = _read(record)
            if epoch < fence:
                reading.fenced += 1
                continue
            operation = operation_of(decoded)
        except RecordError as error:
            reading.poison.append((record, str(error)))
            continue
        address = (message.tenant_id, message.conversation_id, message.conversation_seq)
        earlier = reading.messages.get(address)
        if earlier is None:
            reading.messages[address] = message
            reading.sources[address] = record
            reading.committed_at = reading.committed_at or decoded.committed_at
        else:
            replaces = _replaces(message, earlier.record)
            if replaces is None:
                reading.poison.append((record, _contradiction(address)))
                continue
            if replaces:
                reading.messages[address] = message
                reading.sources[address] = record
            else:
                reading.repeated += 1
        if operation is not None:
            target = (message.tenant_id, message.conversation_id, operation.target_seq)
            reading.operations.append((record, target, operation))
    return reading


def drop_known(reading: Reading[R], known: Mapping[Address, bytes | None]) -> list[ArchivedMessage]:
    """The messages that the archive does not hold yet, as far as is known.

    `known` has the archive's bytes for the addresses that were looked up. Equal ones and earlier revisions
    are counted as repeated, contradictions are moved to the poison.
    """
    if not known:
        return list(reading.messages.values())
    fresh = []
    for address, message in reading.messages.items():
        stored = known.get(address)
        replaces = True if stored is None else _replaces(message, stored)
        if replaces:
            fresh.append(message)
        elif replaces is None:
            reading.poison.append((reading.sources[address], _contradiction(address)))
        else:
            reading.repeated += 1
    return fresh


def targets_elsewhere(reading: Reading[R]) -> list[Address]:
    """The targets of edits and recalls that are not in the batch themselves: the archive is to be asked."""
    return [target for _, target, _ in reading.operations if target not in reading.messages]


def apply_operations(reading: Reading[R], known: Mapping[Address, bytes | None]) -> list[Address]:
    """Bring the targets of all edits and recalls of the batch to the revisions that those make.

    `known` has the archive's bytes of `targets_elsewhere` at least. Afterwards `reading.messages` holds every
    target, changed or not. Returns the targets that neither batch nor archive has: nothing is done for them.
    """
    missing = []
    for record, address, operation in reading.operations:
        stored = _latest(reading.messages.get(address), address, known.get(address))
        target = None if stored is None else readable(stored.record)
        if stored is None or target is None:
            missing.append(address)
            continue
        after = revise(target, operation)
        if after is not None:
            stored = ArchivedMessage(*address, after.encode(), operation.revision, record.offset)
        if reading.messages.get(address) != stored:
            reading.messages[address] = stored
            reading.sources[address] = record
    return missing


def _latest(here: ArchivedMessage | None, address: Address, stored: bytes | None) -> ArchivedMessage | None:
    """The higher revision of a message in the batch and in the archive."""
    message = None if stored is None else readable(stored)
    if stored is None or message is None:
        return here
    archived = ArchivedMessage(*address, stored, revision_of(message))
    return archived if here is None or archived.revision > here.revision else here


def _contradiction(address: Address) -> str:
    tenant, conversation, seq = address
    return f"{tenant}/{conversation} seq {seq}: another message is archived at this seq"
