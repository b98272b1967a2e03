"""What is asked of a writer and what it answers: plain values that cross the internal RPC.

Spec: §3.
"""

from enum import IntEnum
from typing import NamedTuple

from qim_streams.commit.ports import CommitResult, CommitStatus


class SendRequest(NamedTuple):
    """A message to send. `to_user_id` is set for a direct chat that may have to be made first; then
    `conversation_id` is `ids.direct_conversation_id` of the two users.

    The gateway has authenticated sender and device; `sender_ordinal` is the sender's in this tenant. For an
    edit or recall `target_seq` names the message and `body` is its new one.
    """

    tenant_id: str
    conversation_id: str
    sender_id: str
    sender_ordinal: int
    sender_device_id: str
    client_message_id: str
    body: bytes
    to_user_id: str | None = None
    kind: int = 0
    target_seq: int = 0


class SendStatus(IntEnum):
    """How a send ended. The numbers cross the wire between processes and never change."""

    COMMITTED = 0  # durable in the Outbox: SEND_ACK
    REFUSED = 1  # nothing was committed; `code` says why
    UNKNOWN = 2  # repeat with the same client_message_id
    NOT_OWNER = 3  # this writer does not own the partition; nothing was committed by this request


class SendOutcome(NamedTuple):
    """The answer to a `SendRequest`. Ids and numbers are set for COMMITTED, `code` for REFUSED."""

    status: SendStatus
    message_id: bytes = b""
    conversation_seq: int = 0
    committed_at: int = 0
    code: str = ""  # a name of the error table
    detail: str = ""
    retry_after_ms: int | None = None  # None: repeating changes nothing


NOT_OWNER = SendOutcome(SendStatus.NOT_OWNER)
UNKNOWN = SendOutcome(SendStatus.UNKNOWN, code="OUTCOME_UNKNOWN", retry_after_ms=0)

_REFUSALS = {
    CommitStatus.CONFLICT: (
        "CLIENT_MESSAGE_ID_CONFLICT",
        "this client_message_id was used for another message",
    ),
    CommitStatus.NO_CONVERSATION: ("NO_CONVERSATION", "there is no such conversation"),
    CommitStatus.NOT_MEMBER: ("NOT_MEMBER", "the sender is not a member"),
    CommitStatus.DISMISSED: ("DISMISSED", "the group was dismissed"),
    CommitStatus.NOT_ALLOWED: ("NOT_ALLOWED", "only administrators may send here"),
    CommitStatus.EXHAUSTED: ("INTERNAL", "the conversation has used its last sequence number"),
    CommitStatus.NO_TARGET: ("TARGET_NOT_FOUND", "the conversation has no such message"),
    CommitStatus.NOT_A_MESSAGE: ("TARGET_NOT_A_MESSAGE", "the number is that of an edit or recall"),
    CommitStatus.TARGET_RECALLED: ("TARGET_RECALLED", "the message was recalled; that stands"),
    CommitStatus.NOT_YOURS: ("NOT_ALLOWED", "somebody else sent this message"),
    CommitStatus.TOO_LATE: ("CHANGE_TOO_LATE", "the time in which this message could be changed is over"),
    CommitStatus.TOO_MANY_EDITS: ("TOO_MANY_EDITS", "the message was edited as often as is possible"),
}


def committed(result: CommitResult) -> SendOutcome:
    """The answer for a message that is durable in the Outbox, the same for every repeat."""
    return SendOutcome(SendStatus.COMMITTED, result.message_id, result.conversation_seq, result.committed_at)


def refused(code: str, detail: str, retry_after_ms: int | None = None) -> SendOutcome:
    """A refusal."""
    return SendOutcome(SendStatus.REFUSED, code=code, detail=detail, retry_after_ms=retry_after_ms)


UNSETTLED = SendOutcome(
    SendStatus.REFUSED,
    code="TARGET_UNSETTLED",
    detail="the message is being committed; repeat",
    retry_after_ms=200,
)


def refused_by(status: CommitStatus) -> SendOutcome:
    """The final refusal of a commit status."""
    return refused(*_REFUSALS[status])
