"""Mentions: whom a message names, as its MessageRecord carries it. Pure.

A message that mentions somebody has, behind its revision, a second extra field of bytes: one flag byte
(1: everybody) and the named users, each after a NUL. It belongs to the message as sent: an edit keeps it,
and it is part of what must be equal in a repeat. A message that mentions nobody has no such field.

Spec: §6 (mention_type), §9.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgpack

from qim_streams import limits
from qim_streams.errors import RecordError
from qim_streams.ids import is_text_id
from qim_streams.records import KIND_MESSAGE, STATE_RECALLED, MessageRecord

EVERYBODY = b"\x01"  # first byte of the field
MENTION_NONE, MENTION_USER, MENTION_ALL = 0, 1, 2
BODY_KEY = "mentions"  # in a common body
_KEY_BYTES: bytes = msgpack.packb(BODY_KEY)


class Mentions(NamedTuple):
    """Whom a message names."""

    users: tuple[str, ...] = ()
    everybody: bool = False

    def encode(self) -> bytes:
        """The field's bytes; empty for nobody."""
        if not self.users and not self.everybody:
            return b""
        named = "".join(f"\0{one}" for one in self.users)
        return (EVERYBODY if self.everybody else b"\x00") + named.encode()

    def type_for(self, user_id: str) -> int:
        """How a user is mentioned; by name goes before with everybody."""
        if user_id in self.users:
            return MENTION_USER
        return MENTION_ALL if self.everybody else MENTION_NONE


NOBODY = Mentions()


def mentions(user_ids: Iterable[str], everybody: bool) -> Mentions:
    """Whom a sender names: each user once, in order."""
    return Mentions(tuple(dict.fromkeys(user_ids)), everybody)


def decode_mentions(data: bytes) -> Mentions:
    """The mentions of a field's bytes; RecordError for anything that `encode` does not make."""
    if not data:
        return NOBODY
    users = tuple(data[2:].decode("ascii", "replace").split("\0")) if len(data) > 1 else ()
    known = Mentions(users, data[:1] == EVERYBODY)
    if len(users) > limits.MENTIONS_MAX or not all(map(is_text_id, users)) or known.encode() != data:
        raise RecordError(f"mentions: {len(data)} bytes that name nobody well")
    return known


def field_of(message: MessageRecord) -> bytes:
    """The bytes of a message's mentions, empty for none; nothing is checked."""
    extra = message.extra
    if message.kind != KIND_MESSAGE or len(extra) < 2 or not isinstance(extra[1], bytes):
        return b""
    return extra[1]


def mentions_of(message: MessageRecord) -> Mentions:
    """Whom a message names; a recalled one, and one with a damaged field, nobody."""
    if message.state == STATE_RECALLED:
        return NOBODY
    try:
        return decode_mentions(field_of(message))
    except RecordError:
        return NOBODY  # the message is whole but for this: it is shown, and names nobody


def may_name(common_body: bytes) -> bool:
    """Whether a common body may name somebody: nearly none does, and this costs next to nothing."""
    return _KEY_BYTES in common_body


def type_in_body(common_body: bytes, user_id: str) -> int:
    """The mention_type of an event for a user, read off its common body."""
    if not may_name(common_body):
        return MENTION_NONE
    data = msgpack.unpackb(common_body, raw=False, max_map_len=64).get(BODY_KEY)
    if not isinstance(data, bytes):
        return MENTION_NONE  # the text stands in the body of the message
    try:
        return decode_mentions(data).type_for(user_id)
    except RecordError:
        return MENTION_NONE
