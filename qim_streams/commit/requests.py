"""From what a gateway asks of a writer to what the writer asks of the store. Pure.

Spec: §3.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from qim_streams.commit.outcome import SendRequest
from qim_streams.commit.ports import CommitRequest, CommitResult, DirectChat
from qim_streams.commit.rules import payload_digest
from qim_streams.mentions import EVERYBODY
from qim_streams.operations.rules import NO_REVISION, OPERATORS_DEVICE, RECORDED_AS, STATE_OF, operation_tail
from qim_streams.records import KIND_MESSAGE, STATE_NORMAL, MessageRecord


class Windows(NamedTuple):
    """How long messages may be changed, in milliseconds from their commit: -1 for ever, 0 never."""

    edit_ms: int = -1
    recall_ms: int = -1
    recall_admin_ms: int = -1


def commit_request(
    send: SendRequest, message_id: bytes, epoch: int, now_ms: int, refuse_new: bool
) -> CommitRequest:
    """The request of a message, or of an edit or recall as far as it is one."""
    record = MessageRecord(
        0,
        0,
        send.tenant_id,
        send.conversation_id,
        message_id,
        message_id,
        send.sender_id,
        send.sender_ordinal,
        # Every reader of the record holds names to be ids.
        RECORDED_AS if send.sender_device_id == OPERATORS_DEVICE else send.sender_device_id,
        send.client_message_id,
        epoch,
        now_ms,
        send.kind,
        STATE_NORMAL,
        send.body,
    )
    if send.kind != KIND_MESSAGE:
        tail = operation_tail(record._replace(state=STATE_OF[send.kind]), send.target_seq)
    elif send.mentions:
        tail = record._replace(extra=(NO_REVISION, send.mentions)).tail()
    else:
        tail = record.tail()
    return CommitRequest(
        send.tenant_id,
        send.conversation_id,
        send.sender_id,
        send.client_message_id,
        payload_digest(send.kind, send.body, send.target_seq, send.mentions),
        message_id,
        now_ms,
        tail,
        refuse_new,
        to_everybody=send.mentions[:1] == EVERYBODY,
    )


def chat_of(request: SendRequest) -> DirectChat:
    """The direct chat that a send to a user asks for."""
    return DirectChat(
        request.tenant_id,
        request.conversation_id,
        request.sender_id,
        request.sender_ordinal,
        request.to_user_id or "",
    )


def numbered(
    requests: Sequence[CommitRequest], results: Sequence[CommitResult]
) -> Iterator[tuple[str, bytes]]:
    """Tenant and message_id of each message that this call, or one before it of unknown outcome, numbered."""
    for request, result in zip(requests, results, strict=True):
        if result.message_id == request.message_id:  # else it names another one, or none
            yield request.tenant_id, result.message_id
