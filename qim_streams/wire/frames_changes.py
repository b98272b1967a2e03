"""The frames that change messages which were sent before. They are part of the tables in ``frames``.

Spec: §8.
"""

from typing import Annotated, NamedTuple

from qim_streams.codec import RECORD_BYTES_MAX
from qim_streams.wire.frames_group import Conversation, Rid
from qim_streams.wire.kinds import Bytes, Int, TextId

_ID = TextId()
_BODY = Bytes(RECORD_BYTES_MAX)


class EditMessage(NamedTuple):
    """Give a message another body. Answered like a send; becomes a message of kind 1 of its own."""

    rid: Rid
    client_message_id: Annotated[str, _ID, "of the edit: unique per sender; a retry repeats it"]
    conversation_id: Conversation
    conversation_seq: Annotated[int, Int(1), "the message to change: one that you sent, not too long ago"]
    body: Annotated[bytes, _BODY, "its new body"]


class RecallMessage(NamedTuple):
    """Take a message back: for everybody, for ever. Answered like a send; becomes a message of kind 2."""

    rid: Rid
    client_message_id: Annotated[str, _ID, "of the recall: unique per sender; a retry repeats it"]
    conversation_id: Conversation
    conversation_seq: Annotated[
        int, Int(1), "the message to recall: your own, not too long ago, or as owner or admin anybody's"
    ]
