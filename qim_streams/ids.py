"""Identifiers: the integers and byte strings that name things, and how the derived ones are made.

Invariants: every derived id is a pure function of its inputs, so a replay writes the same value;
text ids use one restricted alphabet, so no id can smuggle a separator into a key, a topic or a path.
This module allocates nothing (see ``hlc`` for message ids, ``membership`` for user ordinals).

Spec: §2.
"""

import re
from functools import lru_cache
from typing import NewType

from blake3 import blake3

TenantId = NewType("TenantId", str)
UserId = NewType("UserId", str)
DeviceId = NewType("DeviceId", str)
ConversationId = NewType("ConversationId", str)
ClientMessageId = NewType("ClientMessageId", str)

MessageId = NewType("MessageId", bytes)  # 16 bytes, big-endian HLC
DispatchId = NewType("DispatchId", bytes)  # 16 bytes
EventId = NewType("EventId", bytes)  # 16 bytes

ConversationSeq = NewType("ConversationSeq", int)  # from 1
MailboxSeq = NewType("MailboxSeq", int)  # offset in the dispatch partition, from 0; -1 is "nothing yet"
Offset = NewType("Offset", int)
UserOrdinal = NewType("UserOrdinal", int)  # u32, per tenant; the low 6 bits are the user's lane
ShardId = NewType("ShardId", int)
LaneId = NewType("LaneId", int)  # 0..63
Epoch = NewType("Epoch", int)

ID_BYTES = 16
TEXT_ID_MAX = 128
NOTHING_COVERED = MailboxSeq(-1)

EVENT_MESSAGE = 0

_TEXT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@~-]{0,127}\Z").match
has_control = re.compile(r"[\x00-\x1f\x7f]").search
"""Whether a text has a control character: no text of ours that is shown or compared has one."""
_DISPATCH_DOMAIN = b"qim.group-dispatch.v1\0"
_EVENT_DOMAIN = b"qim.event.v1\0"
_MESSAGE_KIND = EVENT_MESSAGE.to_bytes(2, "big")
_DIRECT_DOMAIN = b"qim.direct.v1\0"


def is_text_id(value: object) -> bool:
    """Whether `value` may serve as tenant, user, device, conversation or client message id.

    1 to 128 characters of ``A-Z a-z 0-9 . _ @ ~ -``, the first a letter or digit.
    """
    # Not cached: half of the ids that are asked about are new ones (client_message_id), and those cost four
    # times as much through a cache. Who sees the same ids again and again remembers them himself.
    return isinstance(value, str) and _TEXT_ID(value) is not None


def is_name(value: object, characters_max: int) -> bool:
    """Whether `value` may be a name for people: what a frame can carry, without control characters."""
    if not isinstance(value, str) or len(value) > characters_max or has_control(value):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def dispatch_id(message_id: bytes, target_mailbox_shard: int) -> DispatchId:
    """The id of the one GroupDispatch of a message for a shard. Spec: §2."""
    material = _DISPATCH_DOMAIN + message_id + target_mailbox_shard.to_bytes(4, "big")
    return blake3(material).digest(ID_BYTES)  # type: ignore[return-value]  # calling DispatchId costs a tenth


def event_id(message_id: bytes, user_id: str, kind: int = EVENT_MESSAGE) -> EventId:
    """The id of an event as one user sees it: the same for every replay and every device. Spec: §2."""
    kind_bytes = _MESSAGE_KIND if kind == EVENT_MESSAGE else kind.to_bytes(2, "big")
    material = _EVENT_DOMAIN + message_id + kind_bytes + user_id.encode()
    return blake3(material).digest(ID_BYTES)  # type: ignore[return-value]  # calling EventId costs a tenth


@lru_cache(maxsize=65_536)  # whoever talks, talks again; the ids were checked, hence are short
def direct_conversation_id(tenant_id: str, user_a: str, user_b: str) -> ConversationId:
    """The id of the direct chat of two users, in either order. A user's chat with himself is legal."""
    first, second = sorted((user_a, user_b))
    material = b"\0".join((_DIRECT_DOMAIN, tenant_id.encode(), first.encode(), second.encode()))
    return ConversationId("d." + blake3(material).hexdigest(ID_BYTES))


def is_direct_conversation_id(conversation_id: str) -> bool:
    """Whether the id has the form that only `direct_conversation_id` makes (groups may not use it)."""
    return conversation_id.startswith("d.")
