"""From frames to requests for writers, and from their answers to frames. Pure.

Spec: §3.
"""

from typing import Any

from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.errors import ProtocolError
from qim_streams.ids import direct_conversation_id
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.membership.commands import GroupState as GroupAnswer
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire import answers
from qim_streams.wire.frames import Error, SendAck, SendMessage
from qim_streams.wire.frames_group import (
    GroupAdd,
    GroupCreate,
    GroupDismiss,
    GroupFrame,
    GroupGet,
    GroupJoin,
    GroupLeave,
    GroupRemove,
    GroupSetRole,
    GroupState,
    GroupUpdate,
    MemberRow,
)

_PLAIN = {GroupJoin: GroupOp.JOIN, GroupLeave: GroupOp.LEAVE, GroupDismiss: GroupOp.DISMISS}
_SETTABLE = ("name", "send_policy", "join_policy", "history_policy")


def send_request(frame: SendMessage, sender: MailboxAddress, body_bytes_max: int) -> SendRequest:
    """The request of a SEND_MESSAGE; ProtocolError BODY_TOO_LARGE or FIELD_INVALID."""
    if len(frame.body) > body_bytes_max:
        raise ProtocolError(
            "BODY_TOO_LARGE", f"{len(frame.body)} bytes, the limit is {body_bytes_max}", field="body"
        )
    conversation_id = frame.conversation_id
    if (conversation_id is None) == (frame.to_user_id is None):
        raise ProtocolError("FIELD_INVALID", "give conversation_id or to_user_id", field="conversation_id")
    if frame.to_user_id is not None:
        conversation_id = direct_conversation_id(sender.tenant_id, sender.user_id, frame.to_user_id)
    assert conversation_id is not None
    return SendRequest(
        sender.tenant_id,
        conversation_id,
        sender.user_id,
        sender.ordinal,
        sender.device_id,
        frame.client_message_id,
        frame.body,
        frame.to_user_id,
    )


def send_answer(
    rid: int, client_message_id: str, conversation_id: str, outcome: SendOutcome
) -> SendAck | Error:
    """The answer to a SEND_MESSAGE."""
    if outcome.status is SendStatus.COMMITTED:
        return SendAck(
            rid,
            client_message_id,
            conversation_id,
            outcome.message_id,
            outcome.conversation_seq,
            outcome.committed_at,
        )
    if outcome.status is SendStatus.REFUSED:
        name, detail = outcome.code, outcome.detail
    elif outcome.status is SendStatus.NOT_OWNER:
        name, detail = "SHARD_MOVED", "the conversation's writer is changing"
    else:
        name, detail = "OUTCOME_UNKNOWN", "repeat with the same client_message_id"
    delay = outcome.retry_after_ms or None  # 0 says nothing: take the table's delay
    return answers.error(name, detail, rid, retry_after_ms=delay, client_message_id=client_message_id)


def group_command(frame: GroupFrame, actor: MailboxAddress, new_id: str) -> GroupCommand:
    """The command of a GROUP frame. `new_id` names a group that is created without an id."""
    given = frame.conversation_id
    common: dict[str, Any] = {
        "tenant_id": actor.tenant_id,
        "actor_id": actor.user_id,
        "conversation_id": new_id if given is None else given,
    }
    match frame:
        case GroupCreate():
            users = tuple(frame.members)
            return GroupCommand(GroupOp.CREATE, user_ids=users, fields=_fields(frame), **common)
        case GroupAdd():
            return GroupCommand(GroupOp.ADD, user_ids=tuple(frame.user_ids), **common)
        case GroupRemove():
            return GroupCommand(GroupOp.REMOVE, user_ids=tuple(frame.user_ids), **common)
        case GroupSetRole():
            return GroupCommand(GroupOp.SET_ROLE, user_ids=(frame.user_id,), role=frame.role, **common)
        case GroupUpdate():
            return GroupCommand(GroupOp.UPDATE, fields=_fields(frame), **common)
        case GroupGet():
            after = frame.after_user_id or ""
            return GroupCommand(GroupOp.GET, after_user_id=after, limit=frame.limit, **common)
        case _:
            return GroupCommand(_PLAIN[type(frame)], **common)


def group_answer(rid: int, state: GroupAnswer) -> GroupState:
    """The GROUP_STATE of an answer."""
    head = state.conversation
    return GroupState(
        rid=rid,
        conversation_id=head.conversation_id,
        kind=head.kind,
        name=head.name,
        version=head.version,
        send_policy=head.send_policy,
        join_policy=head.join_policy,
        history_policy=head.history_policy,
        members_active=head.members_active,
        members=[MemberRow(member.user_id, member.role) for member in state.members],
        dismissed=head.dismissed,
        next_user_id=state.next_user_id,
    )


def _fields(frame: GroupCreate | GroupUpdate) -> dict[str, str]:
    values = {name: getattr(frame, name) for name in _SETTABLE}
    return {name: value for name, value in values.items() if value is not None}
