"""Names of traces and spans, and which messages are sampled. Pure.

A message's trace id is made from its message_id, and a span's id from message, stage and place. So every
stage knows the trace of a message, whether it is sampled, and the id of the span before its own, without a
field in any record; and what a replay tells again has the same ids.

The sampling rule is OpenTelemetry's for a ratio of trace ids: the low 64 bits of the id, against the ratio of
2^64. What a smaller ratio samples a larger one samples, too.

Spec: §1, §2.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from blake3 import blake3

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
_TRACE_DOMAIN: Final = b"qim.trace.v1\0"
_SPAN_DOMAIN: Final = b"qim.span.v1\0"
_ALL: Final = 2**64

Value = str | int


class Stage(StrEnum):
    """What a span is about; the value is the span's name."""

    SEND = "send"  # gateway: from the frame to its answer
    COMMIT = "commit"  # writer: the commit call of the group
    APPEND = "append outbox"  # writer: until the log has acknowledged it
    FANOUT = "fan out"  # fan-out: from the batch to acknowledged dispatches
    ARCHIVE = "archive"  # archiver: until the archive has it
    MAILBOX = "write mailboxes"  # mailbox: until W covers it in all lanes of the shard
    PUSH = "push"  # mailbox: until the push log has the batch
    DELIVER = "deliver"  # gateway: from the push log to the queues of sockets
    NOTIFY = "notify"  # notification: one request to a provider


_BEFORE: Final = {
    Stage.COMMIT: Stage.SEND,
    Stage.APPEND: Stage.COMMIT,
    Stage.FANOUT: Stage.APPEND,
    Stage.ARCHIVE: Stage.APPEND,
    Stage.MAILBOX: Stage.FANOUT,
    Stage.PUSH: Stage.MAILBOX,
    Stage.DELIVER: Stage.PUSH,
    Stage.NOTIFY: Stage.MAILBOX,
}
_PER_SHARD: Final = frozenset({Stage.MAILBOX, Stage.PUSH})  # a span of these in each MailboxShard


class Place(NamedTuple):
    """Where a stage met the message: a MailboxShard (-1 before there is one), and what tells spans of one
    stage and shard apart, where there are several."""

    shard: int = -1
    part: str = ""


NOWHERE: Final = Place()


class StageSpan(NamedTuple):
    """A stage's work on one message. Times are nanoseconds since the epoch; `failed`: why, empty if not."""

    stage: Stage
    trace_id: bytes
    span_id: bytes
    parent_id: bytes | None
    began_ns: int
    ended_ns: int
    attributes: dict[str, Value]
    failed: str = ""


def trace_id_of(message_id: bytes) -> bytes:
    """The 16 bytes of a message's trace id, evenly spread however message ids are made."""
    return blake3(_TRACE_DOMAIN + message_id).digest(TRACE_ID_BYTES)


def span_id_of(message_id: bytes, stage: Stage, place: Place = NOWHERE) -> bytes:
    """The 8 bytes of a span's id."""
    material = f"\0{stage}\0{place.shard}\0{place.part}".encode()
    return blake3(_SPAN_DOMAIN + message_id + material).digest(SPAN_ID_BYTES)


def parent_of(message_id: bytes, stage: Stage, place: Place = NOWHERE) -> bytes | None:
    """The id of the span of the stage before; None for the first stage."""
    before = _BEFORE.get(stage)
    if before is None:
        return None
    return span_id_of(message_id, before, Place(place.shard) if before in _PER_SHARD else NOWHERE)


def sample_bound(ratio: float) -> int:
    """The number that the low 64 bits of sampled trace ids are below. `ratio`: 0 to 1, both inclusive."""
    if not 0 <= ratio <= 1:
        raise ValueError(f"a ratio of {ratio}: must be from 0 to 1")
    return round(ratio * _ALL)


def is_sampled(trace_id: bytes, bound: int) -> bool:
    """Whether a trace is sampled: the same everywhere that has the same bound."""
    return int.from_bytes(trace_id[8:], "big") < bound
