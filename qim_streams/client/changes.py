"""Edits and recalls as a device applies them: pure rules, the same for every store.

An operation carries the state and body that its target has by it, or by a later one (the server shows it
so). It is a delivery of its own and changes the kept message.

Invariants: a recall is final; of several edits the one with the highest conversation_seq stands; the order
in which operations and target arrive, and how often, makes no difference.

Spec: §8.
"""

from collections.abc import Iterable, Sequence

from qim_streams.client.deliveries import Delivery, MessageEdited, MessageRecalled
from qim_streams.records import KIND_EDIT, KIND_MESSAGE, KIND_RECALL, STATE_RECALLED
from qim_streams.wire.frames import Event, Message


def is_operation(message: Message) -> bool:
    """Whether a message is an edit or recall that names its target."""
    return message.kind in (KIND_EDIT, KIND_RECALL) and message.target_seq is not None


def targets_of(events: Iterable[Event]) -> list[tuple[str, int]]:
    """(conversation, seq) of the messages whose state may change when `events` are kept, once each."""
    found: dict[tuple[str, int], None] = {}
    for event in events:
        message = event.message
        seq = message.target_seq if is_operation(message) else message.conversation_seq
        if seq is not None:
            found[message.conversation_id, seq] = None
    return list(found)


def changed(message: Message, operations: Sequence[Message]) -> Message:
    """A kept message after the operations on it that are kept; the same object when nothing changes it."""
    if message.kind != KIND_MESSAGE or message.state == STATE_RECALLED or not operations:
        return message
    last = max(operations, key=lambda one: (one.state == STATE_RECALLED, one.conversation_seq))
    if (last.state, last.body) == (message.state, message.body):
        return message
    return message._replace(state=last.state, body=last.body)


def as_delivery(event: Event) -> Delivery:
    """What the application gets for an event: edits and recalls are told as what they are."""
    message = event.message
    if message.kind == KIND_MESSAGE or not is_operation(message):
        return event
    assert message.target_seq is not None
    place = message.conversation_id, message.target_seq, message.sender_id, message.committed_at
    if message.state == STATE_RECALLED:
        return MessageRecalled(*place, event)
    return MessageEdited(*place, event, message.body)
