"""The common body: the part of an event that is the same for every recipient, encoded once.

It is the msgpack map of the field ``message`` of an event. The mailbox stage makes it, it travels as
bytes, and the gateway puts it into frames without reading it.

Spec: §6.
"""

import msgpack

from qim_streams.operations.rules import target_seq_of
from qim_streams.records import KIND_MESSAGE, MessageRecord

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def common_body(message: MessageRecord) -> bytes:
    """The common body of a message."""
    fields: dict[str, object] = {
        "message_id": message.message_id,
        "conversation_id": message.conversation_id,
        "conversation_seq": message.conversation_seq,
        "sender_id": message.sender_id,
        "kind": message.kind,
        "state": message.state,
        "committed_at": message.committed_at,
        "body": message.body,
    }
    if message.kind != KIND_MESSAGE and (target_seq := target_seq_of(message)) is not None:
        fields["target_seq"] = target_seq
    return bytes(_pack(fields))
