"""Ports of the commit stage: the conversation store of an Outbox partition, the Outbox, direct chats.

Spec: §3, §14.3.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from qim_streams.records import MessageRecord

SEQ_MAX = 2**53 - 1  # numbers are exact to here in a Lua script


class CommitStatus(IntEnum):
    """What the commit script decided for one message. The numbers are the script's."""

    NEW = 0  # seq allocated, record and pending row written, dedup RESERVED
    REPEAT_RESERVED = 1  # same id and payload, Outbox append not confirmed yet
    REPEAT_COMMITTED = 2  # same id and payload, done: answer the same
    CONFLICT = 3  # same client_message_id, another payload; the first stands
    NO_CONVERSATION = 4
    NOT_MEMBER = 5
    DISMISSED = 6
    NOT_ALLOWED = 7  # member, but the send policy says no
    RATE_LIMITED = 8  # it would be new, and the request says that no new one is due
    CLOCK_BEHIND = 9  # message_id not above the conversation's last: observe and retry
    EXHAUSTED = 10  # the conversation has used its last sequence number
    # Of edits and recalls (`operations.rules`):
    NO_TARGET = 11  # no message has this number, or none that can be understood
    NOT_A_MESSAGE = 12  # the target is itself an edit or recall
    TARGET_COLD = 13  # only the archive may have the target: ask again with its record
    TARGET_UNSETTLED = 14  # the target is RESERVED yet
    TARGET_RECALLED = 15
    NOT_YOURS = 16  # somebody else sent it
    TOO_LATE = 17  # the window for it is over
    TOO_MANY_EDITS = 18  # the target was edited as often as is possible


class Change(NamedTuple):
    """What an edit or recall asks for, beside what every message has.

    `kind`: of the operation. `window_ms`: for the target's sender; `admin_window_ms`: for owners and
    admins, who may recall only; each -1 for at any time, 0 for never. `archived`: the target's record in
    the archive, empty when it was not asked; the store looks at it only if it has none itself.
    """

    kind: int
    target_seq: int
    body: bytes  # the target's new one
    window_ms: int
    admin_window_ms: int
    archived: bytes = b""


class CommitRequest(NamedTuple):
    """One message for `ConversationStore.commit`. `record_tail` is `MessageRecord.tail()`.

    `refuse_new`: the sender's rate is used up, so only a repeat may be answered. `change`: of an edit or
    recall; its `record_tail` is `operations.rules.operation_tail`.
    """

    tenant_id: str
    conversation_id: str
    sender_id: str
    client_message_id: str
    payload_digest: bytes  # 16 bytes over what must be equal in a repeat
    message_id: bytes  # candidate
    committed_at: int  # milliseconds since the epoch, as in the record
    record_tail: bytes
    refuse_new: bool = False
    change: Change | None = None
    to_everybody: bool = False  # it mentions everybody: in a group administrators may


class CommitResult(NamedTuple):
    """`message_id`, `conversation_seq`, `membership_version`, `committed_at`: those that stand, for NEW,
    repeats and CONFLICT; else empty and 0.

    For CLOCK_BEHIND `message_id` is the conversation's last id (16 zero bytes when there is none: an
    earlier request of the same call was behind). `members_active` is set for NEW only. `revision`: the
    one that an edit or recall gave its target, 0 for any other message.
    """

    status: CommitStatus
    message_id: bytes = b""
    conversation_seq: int = 0
    membership_version: int = 0
    committed_at: int = 0
    members_active: int = 0
    revision: int = 0


class PendingMessage(NamedTuple):
    """A message committed in the store and not yet confirmed in the Outbox. `record` is its MessageRecord."""

    tenant_id: str
    conversation_id: str
    conversation_seq: int
    message_id: bytes
    record: bytes


class Confirmed(NamedTuple):
    """Messages whose Outbox records are acknowledged, and the highest of their offsets (-1: none)."""

    message_ids: Sequence[bytes]
    offset: int


NOTHING_CONFIRMED = Confirmed((), -1)


class Covered(NamedTuple):
    """How far a store knows the Outbox (-1: not at all), and the epoch of the last barrier up to there."""

    offset: int
    fence: int


NOTHING_COVERED = Covered(-1, 0)


class ConversationStore(Protocol):
    """Conversations of one Outbox partition: writes are atomic and fenced by `epoch` (FencedError).

    A message is RESERVED while it is pending and COMMITTED once it was confirmed.

    StoreError with outcome UNKNOWN means that the call may have been applied. Repeating it with the same
    requests is safe and settles it: what was applied comes back as REPEAT_RESERVED with the request's own
    message_id, and a call that was given up can no longer be applied once a later one was answered.
    InvariantViolation: the store has lost writes that it had acknowledged.
    """

    async def commit(
        self,
        partition: int,
        epoch: int,
        requests: Sequence[CommitRequest],
        confirmed: Confirmed = NOTHING_CONFIRMED,
    ) -> list[CommitResult]:
        """Confirm `confirmed` (see `confirm`), then decide and apply each request in order; one result each.

        After a CLOCK_BEHIND every later request of the same conversation in the call is CLOCK_BEHIND too,
        so that a repeat of them keeps their order.
        """

    async def confirm(self, partition: int, epoch: int, confirmed: Confirmed) -> None:
        """RESERVED -> COMMITTED for messages whose Outbox record is acknowledged; unknown ids are ignored."""

    async def pending(self, partition: int, epoch: int, limit: int) -> list[PendingMessage]:
        """Up to `limit` unconfirmed messages, per conversation in seq order starting with the oldest."""

    async def covered(self, partition: int, epoch: int) -> Covered:
        """The highest Outbox offset that was ever confirmed here.

        Every record up to it was committed in this store before, so a store that knows the offset has
        them; what lies behind it in the Outbox may be missing after a loss.
        """

    async def restore(
        self, partition: int, epoch: int, messages: Sequence[MessageRecord], covered: Covered
    ) -> int:
        """Put back what is missing of messages of the Outbox, up to `covered`; returns how many were.

        Numbers only go up; what is there stays, but an edit or recall among `messages` is applied to its
        target if that is there. The messages are COMMITTED.
        """

    async def leave_out(self, partition: int, epoch: int, last: Sequence[tuple[str, str, int]]) -> None:
        """Raise the last number of each (tenant, conversation) to `seq`: what lies between is not used."""

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where the hot tier has none."""


class OutboxAppend(NamedTuple):
    """One Outbox record to append: partition, Kafka key, value."""

    partition: int
    key: bytes
    value: bytes


class Outbox(Protocol):
    """The Outbox log."""

    def append(self, records: Sequence[OutboxAppend]) -> Awaitable[list[int]]:
        """Hand `records` over now; the awaitable gives their offsets once ALL are acknowledged.

        Records of one partition lie in the log in the order in which they were handed over, across calls.
        Raises StoreError (NOT_APPLIED) at once when there is no room; the awaitable raises StoreError
        (UNKNOWN) when an acknowledgement does not come.
        """


class OutboxReader(Protocol):
    """Reads the Outbox from outside of any consumer group."""

    async def begin(self, partition: int) -> int:
        """The first offset that the log still has. StoreUnavailable when it does not answer."""

    def read(self, partition: int, start: int) -> AsyncIterator[list[tuple[int, bytes, bytes]]]:
        """Batches of (offset, key, value) from `start` (inclusive) to the end of the log as of this call.

        StoreUnavailable when the log does not answer; InvariantViolation when records from `start` on are
        no longer there or `start` lies beyond the end: then nobody can say what is missing.
        """


class DirectChat(NamedTuple):
    """A sender who wants a conversation with a peer; both may be the same user."""

    tenant_id: str
    conversation_id: str
    sender_id: str
    sender_ordinal: int
    peer_id: str


class Replay(Protocol):
    """Puts lost membership changes back, at the grant of a partition."""

    async def run(self, partition: int, epoch: int, used: Mapping[tuple[str, str], int]) -> int:
        """How many were missing. `used`: (tenant, conversation) -> a version that a message was sent under,
        never to be made again by another change.

        FencedError, StoreUnavailable: call again; InvariantViolation: cannot be.
        """


class DirectChats(Protocol):
    """Creates direct chats at their first message."""

    async def ensure_direct(
        self, partition: int, epoch: int, chats: Sequence[DirectChat]
    ) -> Awaitable[object] | None:
        """Make the chats exist. FencedError, StoreError as the store.

        What comes back, if anything, is to be awaited before any message of them is acknowledged: the
        change log has the chats then.
        """
