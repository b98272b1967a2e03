"""The common body: the part of an event that is the same for every recipient, encoded once.

It is the msgpack map of the field ``message`` of an event. The mailbox stage makes it, it travels as
bytes, and the gateway puts it into frames without reading it.

Spec: §6.
"""

import msgpack

from qim_streams.ids import ID_BYTES
from qim_streams.mentions import BODY_KEY, field_of
from qim_streams.operations.rules import target_seq_of
from qim_streams.records import KIND_MESSAGE, STATE_RECALLED, MessageRecord

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_TARGET: bytes = _pack("target_seq")
_ID_KEY: bytes = _pack("message_id") + _pack(bytes(ID_BYTES))[:2]  # the first key, and the head of its value
_ID_AT = 1 + len(_ID_KEY)


def common_body(message: MessageRecord) -> bytes:
    """The common body of a message."""
    data: bytes = _pack(
        {
            "message_id": message.message_id,
            "conversation_id": message.conversation_id,
            "conversation_seq": message.conversation_seq,
            "sender_id": message.sender_id,
            "kind": message.kind,
            "state": message.state,
            "committed_at": message.committed_at,
            "body": message.body,
        }
    )
    return _with_more(message, data) if message.extra else data


def _with_more(message: MessageRecord, data: bytes) -> bytes:
    """The same with the fields that few messages have: the target of an edit or recall, mentions."""
    more: dict[str, object] = {}
    if message.kind != KIND_MESSAGE and (target_seq := target_seq_of(message)) is not None:
        more["target_seq"] = target_seq
    named = field_of(message)
    if named and message.state != STATE_RECALLED:
        more[BODY_KEY] = named
    # The header of a map with fewer than 16 fields is one byte that counts them.
    tail: bytes = _pack(more)[1:]
    return bytes([data[0] + len(more)]) + data[1:] + tail


def target_in_body(body: bytes) -> int | None:
    """The number of the message that a common body edits or recalls; None for a plain message.

    Nearly no body has the field, and to see that costs next to nothing.
    """
    if _TARGET not in body:
        return None
    found = msgpack.unpackb(body, raw=False, max_map_len=64).get("target_seq")
    return found if isinstance(found, int) else None  # else the text stands in the body of the message


def message_id_in_body(body: bytes) -> bytes | None:
    """The message_id of a common body: its first field, and the rest is not read; None: none there."""
    if body[1:_ID_AT] != _ID_KEY:
        return None
    found = body[_ID_AT : _ID_AT + ID_BYTES]
    return found if len(found) == ID_BYTES else None
