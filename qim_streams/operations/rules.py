"""What edits and recalls are, who may do them, and what becomes of the message that they name. Pure.

An operation is a message of its own kind in the conversation of its target: it has a number, an id, an
Outbox record and mailbox entries like any message. Its MessageRecord names the target in `extra`:
``(0, target seq, revision)``. The target gets that revision: new state and body, all else unchanged, and
the revision in its own ``extra[0]``, by which stores keep the newest (`archive.ports`).

Invariants: the revised bytes follow from the target as sent and from the operation alone, so whoever
applies an operation, in whatever order and however often, ends with the same bytes; edits of a message
are numbered 1, 2, 3, ..., a recall has the highest revision there is, so it stands whatever comes late; a
recalled message has no body; operations are never targets.

The commit script has the same rule (``operations.lua``).

Spec: §8.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from qim_streams.archive.ports import REVISION_MAX
from qim_streams.commit.ports import Change, CommitStatus
from qim_streams.errors import RecordError
from qim_streams.records import (
    KIND_EDIT,
    KIND_MESSAGE,
    KIND_RECALL,
    STATE_EDITED,
    STATE_RECALLED,
    MessageRecord,
    decode_message,
)

RECALL_REVISION = REVISION_MAX
EDITS_MAX = REVISION_MAX - 1  # of one message
OPERATIONS = (KIND_EDIT, KIND_RECALL)
OPERATORS_DEVICE = ":operator"  # no client can have it (`ids.is_text_id`); it knows no window
RECORDED_AS = "operator"  # its name in records
STATE_OF = {KIND_EDIT: STATE_EDITED, KIND_RECALL: STATE_RECALLED}
NO_REVISION = 0

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class Operation(NamedTuple):
    """An edit or a recall as committed. `body` is the target's new one."""

    kind: int
    target_seq: int
    revision: int
    body: bytes


def revision_of(message: MessageRecord) -> int:
    """Which state of the message the record holds: its first extra field if that is a number, else 0.

    RecordError for a number that no revision can have.
    """
    first = message.extra[0] if message.extra else NO_REVISION
    if not isinstance(first, int):
        return NO_REVISION
    if not 0 <= first <= REVISION_MAX:
        raise RecordError(f"MessageRecord: revision {first} is not between 0 and {REVISION_MAX}")
    return first


def operation_of(message: MessageRecord) -> Operation | None:
    """The operation that a message is, None for any other kind; RecordError for one that is malformed."""
    if message.kind not in OPERATIONS:
        return None
    named: Sequence[Any] = message.extra[1:3]
    if len(named) < 2 or type(named[0]) is not int or type(named[1]) is not int:
        raise RecordError("MessageRecord: an operation without target and revision")
    target_seq, revision = named
    if not 1 <= target_seq < message.conversation_seq:
        raise RecordError(
            f"MessageRecord: operation {message.conversation_seq} on {target_seq}, not before it"
        )
    if not 1 <= revision <= REVISION_MAX:
        raise RecordError(f"MessageRecord: revision {revision} is not between 1 and {REVISION_MAX}")
    return Operation(message.kind, target_seq, revision, message.body)


def target_seq_of(message: MessageRecord) -> int | None:
    """The number of the message that an operation names, None for any other kind or when it is malformed."""
    try:
        operation = operation_of(message)
    except RecordError:
        return None
    return None if operation is None else operation.target_seq


def operation_tail(message: MessageRecord, target_seq: int) -> bytes:
    """`MessageRecord.tail()` of an operation without its revision, which is given with its number.

    `revision_bytes` is to follow.
    """
    return message._replace(extra=(0, target_seq, 0)).tail()[:-1]


def revision_bytes(revision: int) -> bytes:
    """The end of an operation's record."""
    data: bytes = _pack(revision)
    return data


def revise(target: MessageRecord, operation: Operation) -> MessageRecord | None:
    """The target after the operation; None when it stays as it is (it has that revision or a later one).

    Also None for what no operation can change: another operation, a record with fields that are unknown.
    """
    if target.kind != KIND_MESSAGE or not has_known_form(target) or revision_of(target) >= operation.revision:
        return None
    return target._replace(
        state=STATE_OF[operation.kind], body=operation.body, extra=(operation.revision, *target.extra[1:])
    )


def as_seen(message: MessageRecord, target: MessageRecord | None) -> MessageRecord:
    """An edit as readers see it: with the state and body that its target has by now.

    So a body that was recalled or replaced is shown nowhere, and a reader who missed later operations has
    their outcome. A copy of the target that is older than the edit says nothing.
    """
    operation = operation_of(message)
    if operation is None or target is None or revision_of(target) < operation.revision:
        return message
    return message._replace(state=target.state, body=target.body)


def has_known_form(message: MessageRecord) -> bool:
    """Whether a message has no extra fields but revision and mentions: the script can revise no other."""
    extra = message.extra
    if not extra:
        return True
    known = type(extra[0]) is int and 0 <= extra[0] <= REVISION_MAX
    return known and (len(extra) == 1 or (len(extra) == 2 and type(extra[1]) is bytes))


def decide_change(
    change: Change, target: MessageRecord, sender_id: str, role: str, at_ms: int
) -> tuple[CommitStatus, int]:
    """(NEW, the target's revision) if the sender, who is an active member, may do this; else (why not, 0).

    `at_ms`: the time of the operation. Windows are compared with the target's committed_at.
    """
    if target.kind != KIND_MESSAGE:
        return CommitStatus.NOT_A_MESSAGE, NO_REVISION
    if target.state == STATE_RECALLED:
        return CommitStatus.TARGET_RECALLED, NO_REVISION
    age_ms = at_ms - target.committed_at
    own = target.sender_id == sender_id
    governs = change.kind == KIND_RECALL and role != "member"
    if not own and not governs:
        return CommitStatus.NOT_YOURS, NO_REVISION
    in_time = (own and _is_within(age_ms, change.window_ms)) or (
        governs and _is_within(age_ms, change.admin_window_ms)
    )
    if not in_time:
        return CommitStatus.TOO_LATE, NO_REVISION
    if change.kind == KIND_RECALL:
        return CommitStatus.NEW, RECALL_REVISION
    revision = revision_of(target)
    if revision >= EDITS_MAX:
        return CommitStatus.TOO_MANY_EDITS, NO_REVISION
    return CommitStatus.NEW, revision + 1


def _is_within(age_ms: int, window_ms: int) -> bool:
    return window_ms < 0 or (window_ms > 0 and age_ms <= window_ms)


def readable(record: bytes) -> MessageRecord | None:
    """The message of a stored record that may be a target, None when it cannot be understood."""
    try:
        message = decode_message(record)
    except RecordError:
        return None
    return message if message.kind != KIND_MESSAGE or has_known_form(message) else None


def is_speech(kind: int) -> bool:
    """Whether a group's send policy is asked: a recall says nothing."""
    return kind != KIND_RECALL
