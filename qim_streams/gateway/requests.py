"""From frames to requests for writers, and from their answers to frames. Pure.

Spec: §3.
"""

from typing import Any

from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.errors import ProtocolError
from qim_streams.ids import direct_conversation_id
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.membership.commands import GroupState as GroupAnswer
from qim_streams.records import KIND_EDIT, KIND_MESSAGE, KIND_RECALL
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire import answers
from qim_streams.wire.codes import TABLE
from qim_streams.wire.frames import Error, SendAck, SendMessage
from qim_streams.wire.frames_changes import EditMessage, RecallMessage
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
_TARGET = "conversation_seq"
_OF_THE_TARGET = frozenset(row.name for row in TABLE if 412 <= row.code <= 417)  # refused because of it
SendFrame = SendMessage | EditMessage | RecallMessage
_SETTABLE = ("name", "send_policy", "join_policy", "history_policy")


def send_request(frame: SendFrame, sender: MailboxAddress, body_bytes_max: int) -> SendRequest:
    """The request of a send, an edit or a recall; ProtocolError BODY_TOO_LARGE or FIELD_INVALID."""
    body, to_user_id, conversation_id = b"", None, frame.conversation_id
    kind, target_seq = KIND_MESSAGE, 0
    if isinstance(frame, SendMessage):
        body, to_user_id = frame.body, frame.to_user_id
        if (conversation_id is None) == (to_user_id is None):
            detail = "give conversation_id or to_user_id"
            raise ProtocolError("FIELD_INVALID", detail, field="conversation_id")
        if to_user_id is not None:
            conversation_id = direct_conversation_id(sender.tenant_id, sender.user_id, to_user_id)
    elif isinstance(frame, EditMessage):
        body, kind, target_seq = frame.body, KIND_EDIT, frame.conversation_seq
    else:
        kind, target_seq = KIND_RECALL, frame.conversation_seq
    if len(body) > body_bytes_max:
        detail = f"{len(body)} bytes, the limit is {body_bytes_max}"
        raise ProtocolError("BODY_TOO_LARGE", detail, field="body")
    assert conversation_id is not None
    return SendRequest(
        sender.tenant_id,
        conversation_id,
        sender.user_id,
        sender.ordinal,
        sender.device_id,
        frame.client_message_id,
        body,
        to_user_id,
        kind,
        target_seq,
    )


def send_answer(
    rid: int, client_message_id: str, conversation_id: str, outcome: SendOutcome
) -> SendAck | Error:
    """The answer to a send, an edit or a recall."""
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
    field = _TARGET if name in _OF_THE_TARGET else None
    return answers.error(
        name, detail, rid, field=field, retry_after_ms=delay, client_message_id=client_message_id
    )


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
