"""Events as an application gets them: from records of the logs to JSON. Pure.

Every event has an `id` that is the same whenever it is told, a `type`, the tenant, and an `order_key`:
events of equal key come in order. A body that is UTF-8 text is given as `body`, any other as `body_base64`.

Spec: §3 (messages), §4 (membership), §6 (presence, results of notifications).
"""

import base64
from typing import Any, NamedTuple

from qim_streams.errors import RecordError
from qim_streams.log_ports import LogRecord
from qim_streams.membership.ports import Conversation
from qim_streams.membership.rows import decode_log_row
from qim_streams.mentions import mentions_of
from qim_streams.notification.records import decode_result
from qim_streams.operations.rules import operation_of
from qim_streams.records import KIND_EDIT, KIND_RECALL, decode_message, decode_outbox, decode_presence

_KINDS = {KIND_EDIT: "edit", KIND_RECALL: "recall"}


class Event(NamedTuple):
    """An event. `fields`: what is told beside id, type and tenant."""

    id: str
    type: str
    tenant: str
    order_key: str
    fields: dict[str, Any]

    def told(self) -> dict[str, Any]:
        """The JSON object."""
        return {"id": self.id, "type": self.type, "tenant_id": self.tenant, **self.fields}


def body_fields(body: bytes) -> dict[str, str]:
    """A body in JSON."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def message_event(record: LogRecord) -> Event:
    """The event of an Outbox record; RecordError when it is none (a tombstone, malformed bytes)."""
    if record.value is None:
        raise RecordError("OutboxRecord: a tombstone")
    message = decode_message(decode_outbox(record.value).message)
    fields: dict[str, Any] = {
        "conversation_id": message.conversation_id,
        "conversation_seq": message.conversation_seq,
        "message_id": message.message_id.hex(),
        "client_message_id": message.client_message_id,
        "sender_id": message.sender_id,
        "sender_device_id": message.sender_device_id,
        "committed_at_ms": message.committed_at,
        "kind": _KINDS.get(message.kind, "message"),
    }
    operation = operation_of(message)
    if operation is not None:
        fields["target_conversation_seq"] = operation.target_seq
    if message.kind != KIND_RECALL:
        fields |= body_fields(message.body)
    named = mentions_of(message)
    if named.users or named.everybody:
        fields["mentions"] = {"users": list(named.users), "everybody": named.everybody}
    key = f"{message.tenant_id}\0{message.conversation_id}"
    return Event(message.message_id.hex(), "message.committed", message.tenant_id, key, fields)


def membership_event(record: LogRecord) -> Event | None:
    """The event of a change log row of the membership topic; None for a tombstone; RecordError."""
    if record.value is None or record.key is None:
        return None
    version, row = decode_log_row(record.key, record.value)
    tenant_id, conversation_id = record.key.decode("utf-8").split("\0")[:2]
    fields: dict[str, Any] = {"conversation_id": conversation_id, "membership_version": version}
    if isinstance(row, Conversation):
        what = "conversation"
        fields["conversation"] = {
            "kind": row.kind, "name": row.name, "members_active": row.members_active,
            "creator_id": row.creator_id, "dismissed": row.dismissed,
        }  # fmt: skip
    else:
        what = f"member:{row.user_id}"
        fields["member"] = {"user_id": row.user_id, "role": row.role, "active": row.active}
    key = f"{tenant_id}\0{conversation_id}"
    return Event(f"{conversation_id}:{version}:{what}", "membership.changed", tenant_id, key, fields)


def presence_event(record: LogRecord) -> Event | None:
    """The event of a record of the presence topic: a device came (or is still there) or went; RecordError."""
    if record.key is None:
        return None
    parts = record.key.decode("utf-8", "replace").split("\0")
    if len(parts) != 3:
        raise RecordError("presence: the key is not tenant NUL user NUL device")
    tenant_id, user_id, device_id = parts
    fields: dict[str, Any] = {"user_id": user_id, "device_id": device_id, "online": record.value is not None}
    what = f"gone@{record.offset}"
    if record.value is not None:
        presence = decode_presence(record.value)
        fields["at_ms"] = presence.at_ms
        what = f"{presence.connection_id:x}:{presence.session_epoch}"
    key = f"{tenant_id}\0{user_id}"
    return Event(f"{user_id}:{device_id}:{what}", "presence.changed", tenant_id, key, fields)


def push_result_event(record: LogRecord) -> Event | None:
    """The event of a record of the results' topic: what became of a notification; None for a tombstone;
    RecordError.

    One outcome of one notification is one event, however often it was written.
    """
    if record.value is None:
        return None
    result = decode_result(record.value)
    notification_id = result.notification_id.hex()
    fields: dict[str, Any] = {
        "notification_id": notification_id,
        "user_id": result.user_id,
        "device_id": result.device_id,
        "conversation_id": result.conversation_id,
        "conversation_seq": result.conversation_seq,
        "message_id": result.message_id.hex(),
        "provider": result.provider,
        "outcome": result.outcome,
        "reason": result.reason,
        "committed_at_ms": result.committed_at,
        "at_ms": result.at,
    }
    key = f"{result.tenant_id}\0{result.user_id}"
    return Event(f"{notification_id}:{result.outcome}", "push.result", result.tenant_id, key, fields)
