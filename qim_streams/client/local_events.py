"""Events that no mailbox entry brought: the device's own message at its ack, a message of history.

Both carry the event_id that the mailbox entry has, so whichever comes first is the one that is shown.
`mailbox_seq` is -1: their place in the mailbox is not known.

Spec: §2 (event_id), §3 (5), §8 (3).
"""

from qim_streams.ids import event_id
from qim_streams.operations.rules import STATE_OF
from qim_streams.records import (
    KIND_MESSAGE,
    OPERATION_FLAGS,
    RECIPIENT_FLAGS,
    SENDER_FLAGS,
    STATE_NORMAL,
)
from qim_streams.wire.frames import Event, Message, SendAck

NOT_FROM_MAILBOX = -1


def own_event(
    ack: SendAck, user_id: str, body: bytes, kind: int = KIND_MESSAGE, target_seq: int | None = None
) -> Event:
    """The event of a message, edit or recall that this device sent, as its ack describes it."""
    message = Message(
        ack.message_id,
        ack.conversation_id,
        ack.conversation_seq,
        user_id,
        kind,
        STATE_NORMAL if kind == KIND_MESSAGE else STATE_OF[kind],
        ack.committed_at,
        body,
        target_seq,
    )
    return history_event(message, user_id)._replace(client_message_id=ack.client_message_id)


def history_event(message: Message, user_id: str) -> Event:
    """The event that `user_id` would have got for a message when it was new."""
    flags = SENDER_FLAGS if message.sender_id == user_id else RECIPIENT_FLAGS
    if message.kind != KIND_MESSAGE:
        flags = OPERATION_FLAGS
    return Event(NOT_FROM_MAILBOX, 0, event_id(message.message_id, user_id, message.kind), flags, 0, message)
