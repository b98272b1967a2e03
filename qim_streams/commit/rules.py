"""The commit rule: what becomes of a message, given what the store holds. The same rule as ``commit.lua``.

Invariants: a repeat is answered before anything else is looked at, so a member who left still gets the
answer to what he sent; a sequence number is allocated only together with record, pending row and dedup
row; message ids of a conversation grow with its sequence numbers.

`PartitionState` is what the script reads and writes, as plain dictionaries; `commit_group` changes it in
place, as one atomic step. No I/O, no clock.

Spec: §3, §14.3.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from qim_streams.commit.ports import (
    NOTHING_CONFIRMED,
    NOTHING_COVERED,
    SEQ_MAX,
    Change,
    CommitRequest,
    CommitResult,
    CommitStatus,
    Confirmed,
    Covered,
)
from qim_streams.errors import FencedError, InvariantViolation
from qim_streams.membership.ports import Member
from qim_streams.mentions import field_of
from qim_streams.operations.rules import (
    NO_REVISION,
    STATE_OF,
    Operation,
    decide_change,
    is_speech,
    operation_of,
    readable,
    revise,
    revision_bytes,
    revision_of,
)
from qim_streams.records import KIND_MESSAGE, MessageRecord, message_head

NO_ID = bytes(16)
DIGEST_BYTES = 16
_DIGEST_DOMAIN = b"qim.payload.v1\0"
_DIGEST_OF_KIND_0 = _DIGEST_DOMAIN + bytes(2)

ConversationKey = tuple[str, str]  # tenant, conversation
DedupKey = tuple[str, str, str, str]  # tenant, conversation, sender, client_message_id


def payload_digest(kind: int, body: bytes, target_seq: int = 0, mentions: bytes = b"") -> bytes:
    """16 bytes over what must be equal when a client_message_id is used again."""
    if mentions:
        head = _DIGEST_DOMAIN + b"mentions" + len(mentions).to_bytes(4, "big")
        return blake3(head + mentions + body).digest(DIGEST_BYTES)
    if kind == KIND_MESSAGE:
        return blake3(_DIGEST_OF_KIND_0 + body).digest(DIGEST_BYTES)
    prefix = _DIGEST_DOMAIN + kind.to_bytes(2, "big") + target_seq.to_bytes(8, "big")
    return blake3(prefix + body).digest(DIGEST_BYTES)


@dataclass(slots=True)
class Head:
    """A conversation's head, as far as commits are concerned. `kind` "" is "was never created"."""

    kind: str = ""
    seq: int = 0
    last_id: bytes = NO_ID
    version: int = 0
    send_policy: str = "members"
    dismissed: bool = False
    active: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """What dedup keeps of a message."""

    digest: bytes
    message_id: bytes
    seq: int
    version: int
    committed_at: int
    revision: int = NO_REVISION


@dataclass(slots=True)
class PartitionState:
    """Everything under the hash tag of one Outbox partition that a commit reads or writes."""

    epoch: int = 0
    heads: dict[ConversationKey, Head] = field(default_factory=dict)
    members: dict[ConversationKey, dict[str, Member]] = field(default_factory=dict)
    reservations: dict[DedupKey, Reservation] = field(default_factory=dict)
    records: dict[ConversationKey, dict[int, bytes]] = field(default_factory=dict)
    pending: dict[bytes, tuple[str, str, int]] = field(default_factory=dict)
    covered: Covered = NOTHING_COVERED  # highest Outbox offset that was confirmed, and the fence there
    call: tuple[int, int] = (0, 0)  # epoch and number of the last numbered call

    def fence(self, resource: str, epoch: int) -> None:
        """FencedError unless `epoch` is the current one."""
        if epoch != self.epoch:
            raise FencedError(resource, epoch, self.epoch)

    def number(self, epoch: int, low: int, mine: int) -> None:
        """Count a call: `low` is the last one that its owner knows to be applied. See ``fence.lua``.

        InvariantViolation for a call that comes late, and where an acknowledged one is missing.
        """
        seen = self.call[1] if self.call[0] == epoch else 0
        if seen >= mine:
            raise InvariantViolation(f"call {mine} of epoch {epoch} comes after call {seen}")
        if seen < low:
            raise InvariantViolation(f"call {low} of epoch {epoch} was acknowledged and is lost")
        self.call = (epoch, mine)


def decide_repeat(kept: Reservation, digest: bytes, is_pending: bool) -> CommitStatus:
    """The status of a message whose client_message_id is known."""
    if kept.digest != digest:
        return CommitStatus.CONFLICT
    return CommitStatus.REPEAT_RESERVED if is_pending else CommitStatus.REPEAT_COMMITTED


def decide_new(
    request: CommitRequest, head: Head | None, sender: Member | None, behind: bool
) -> CommitStatus:
    """The status of a message whose client_message_id is not known.

    `behind`: an earlier request of this conversation in the same call was CLOCK_BEHIND.
    """
    if head is None or not head.kind:
        return CommitStatus.NO_CONVERSATION
    if sender is None or not sender.active:
        return CommitStatus.NOT_MEMBER
    if head.dismissed:
        return CommitStatus.DISMISSED
    speaks = request.change is None or is_speech(request.change.kind)
    if head.send_policy == "admins" and sender.role == "member" and speaks:
        return CommitStatus.NOT_ALLOWED
    if request.to_everybody and head.kind != "direct" and sender.role == "member":
        return CommitStatus.NOT_ALLOWED
    if request.refuse_new:
        return CommitStatus.RATE_LIMITED
    if behind or request.message_id <= head.last_id:
        return CommitStatus.CLOCK_BEHIND
    if head.seq >= SEQ_MAX:
        return CommitStatus.EXHAUSTED
    return CommitStatus.NEW


def confirm(state: PartitionState, confirmed: Confirmed) -> None:
    """Take messages off the pending list, for the owner."""
    for message_id in confirmed.message_ids:
        state.pending.pop(message_id, None)
    _cover(state, Covered(confirmed.offset, state.epoch))


def restore(state: PartitionState, messages: Iterable[MessageRecord], covered: Covered) -> int:
    """Put back what is missing of messages of the Outbox; returns how many records were. Spec: §14.4."""
    missing = 0
    for message in messages:
        conversation = (message.tenant_id, message.conversation_id)
        records = state.records.setdefault(conversation, {})
        if message.conversation_seq not in records:
            records[message.conversation_seq] = message.encode()
            missing += 1
        if revision_of(message) == NO_REVISION:  # else its body is not the one that was sent
            dedup = (*conversation, message.sender_id, message.client_message_id)
            state.reservations.setdefault(dedup, reservation_of(message))
        head = state.heads.setdefault(conversation, Head())
        if message.conversation_seq > head.seq:
            head.seq, head.last_id = message.conversation_seq, message.message_id
        # It is in the Outbox: the relay must not append it again, least of all after an edit has changed it.
        state.pending.pop(message.message_id, None)
        operation = operation_of(message)
        if operation is not None:
            _apply(records, operation)
    _cover(state, covered)
    return missing


def _cover(state: PartitionState, covered: Covered) -> None:
    if covered.offset > state.covered.offset:
        state.covered = covered


def reservation_of(message: MessageRecord) -> Reservation:
    """What dedup keeps of a message of the Outbox."""
    operation = operation_of(message)
    target_seq, revision = (operation.target_seq, operation.revision) if operation else (0, NO_REVISION)
    return Reservation(
        payload_digest(message.kind, message.body, target_seq, field_of(message)),
        message.message_id,
        message.conversation_seq,
        message.membership_version,
        message.committed_at,
        revision,
    )


def _apply(records: dict[int, bytes], operation: Operation) -> None:
    record = records.get(operation.target_seq)
    target = None if record is None else readable(record)
    changed = None if target is None else revise(target, operation)
    if changed is not None:
        records[operation.target_seq] = changed.encode()


def commit_group(
    state: PartitionState, requests: Sequence[CommitRequest], confirmed: Confirmed = NOTHING_CONFIRMED
) -> list[CommitResult]:
    """Confirm, then decide and apply each request in order. Changes `state`."""
    confirm(state, confirmed)
    behind: set[ConversationKey] = set()
    return [_commit_one(state, request, behind) for request in requests]


def _commit_one(state: PartitionState, request: CommitRequest, behind: set[ConversationKey]) -> CommitResult:
    conversation = (request.tenant_id, request.conversation_id)
    dedup = (*conversation, request.sender_id, request.client_message_id)
    kept = state.reservations.get(dedup)
    if kept is not None:
        status = decide_repeat(kept, request.payload_digest, kept.message_id in state.pending)
        return CommitResult(
            status, kept.message_id, kept.seq, kept.version, kept.committed_at, revision=kept.revision
        )
    head = state.heads.get(conversation)
    sender = state.members.get(conversation, {}).get(request.sender_id)
    status = decide_new(request, head, sender, conversation in behind)
    if status is CommitStatus.CLOCK_BEHIND:
        behind.add(conversation)
        return CommitResult(status, head.last_id if head else NO_ID)
    if status is not CommitStatus.NEW or head is None or sender is None:
        return CommitResult(status)
    records, revision = state.records.setdefault(conversation, {}), NO_REVISION
    if request.change is not None:
        status, revision, after = _changed(state, records, head, request, request.change, sender.role)
        if status is not CommitStatus.NEW:
            return CommitResult(status)
        records[request.change.target_seq] = after
    head.seq += 1
    head.last_id = request.message_id
    made = CommitResult(
        status, request.message_id, head.seq, head.version, request.committed_at, head.active, revision
    )
    records[head.seq] = record_of(made, request.record_tail)
    state.pending[request.message_id] = (*conversation, head.seq)
    state.reservations[dedup] = Reservation(
        request.payload_digest, request.message_id, head.seq, head.version, request.committed_at, revision
    )
    return made


def _changed(
    state: PartitionState,
    records: dict[int, bytes],
    head: Head,
    request: CommitRequest,
    change: Change,
    role: str,
) -> tuple[CommitStatus, int, bytes]:
    """Whether an operation may be, and then the target's new revision and record."""
    if not 1 <= change.target_seq <= head.seq:
        return CommitStatus.NO_TARGET, NO_REVISION, b""
    record = records.get(change.target_seq) or change.archived
    if not record:
        return CommitStatus.TARGET_COLD, NO_REVISION, b""
    target = readable(record)
    if target is None:
        return CommitStatus.NO_TARGET, NO_REVISION, b""
    if target.message_id in state.pending:
        return CommitStatus.TARGET_UNSETTLED, NO_REVISION, b""
    status, revision = decide_change(change, target, request.sender_id, role, request.committed_at)
    if status is not CommitStatus.NEW:
        return status, NO_REVISION, b""
    after = target._replace(
        state=STATE_OF[change.kind], body=change.body, extra=(revision, *target.extra[1:])
    )
    return status, revision, after.encode()


def record_of(result: CommitResult, tail: bytes) -> bytes:
    """The MessageRecord bytes that the store wrote for a NEW message."""
    record = message_head(result.conversation_seq, result.membership_version) + tail
    return record + revision_bytes(result.revision) if result.revision else record
