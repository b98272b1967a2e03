"""Messages at the ends of conversations, kept for as long as the conversation still ends there.

A tail belongs to (last number, last message id): whatever changes a message gets a number of its own in the
same step, so as long as both are the same, the messages are (`ports.HeadView`). It is asked for with every
read of a head, never believed without one. All users of a conversation share it.

Invariants: a tail is never changed, only replaced; it has no gaps: it ends before the first number that was
not in the hot tier.

Spec: §9.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from qim_streams.hlc import millis_of
from qim_streams.lru import LruMap
from qim_streams.records import KIND_MESSAGE
from qim_streams.sessions.ports import HeadQuery, HeadView
from qim_streams.sessions.rules import TailMessage
from qim_streams.sessions.tails import readable

TAILS_MAX: Final = 50_000
BYTES_MAX: Final = 32 * 1024 * 1024  # of previews and what surrounds them, in one process
MESSAGE_BYTES: Final = 400  # of memory, beside the preview
LENGTH_MAX: Final = 256  # of a tail
_new = tuple.__new__
AT_HAND: Final = 8  # messages that a read of a head brings (`redis_heads.RECORDS_MAX`)


class Tail(NamedTuple):
    """The newest messages of a conversation, descending from `seq`; None: that number has no message."""

    seq: int
    last_id: bytes
    messages: tuple[TailMessage | None, ...]


def activity_in(head: HeadView, tail: Tail) -> int:
    """The time of the newest plain message, ms: edits and recalls have numbers, and move nothing.

    Where the tail holds nothing else, that of the oldest operation in it: no less than the right one.
    """
    at = head.activity
    for message in tail.messages:
        if message is not None:
            at = min(at, millis_of(message.message_id))
            if message.kind == KIND_MESSAGE:
                break
    return at


class KnownTails:
    """Tails by conversation, the most recently used ones."""

    def __init__(self) -> None:
        self._kept: LruMap[tuple[str, str], Tail] = LruMap(TAILS_MAX, BYTES_MAX)

    def get(self, tenant_id: str, conversation_id: str) -> Tail | None:
        """What is known of a conversation."""
        return self._kept.get((tenant_id, conversation_id))

    def query(self, tenant_id: str, one: HeadQuery) -> tuple[HeadQuery, Tail | None]:
        """The query with what is known, if it is enough for it; and that tail."""
        name, above_seq, _, _, skip_to, seen = one
        tail = self._kept.get((tenant_id, name))
        if tail is None or len(tail.messages) < min(AT_HAND, tail.seq - above_seq, tail.seq):
            return one, None
        return _new(HeadQuery, (name, above_seq, tail.seq, tail.last_id, skip_to, seen)), tail

    def of_head(self, tenant_id: str, conversation_id: str, head: HeadView, known: Tail | None) -> Tail:
        """The tail that belongs to a head; `known` is the one that it was asked with."""
        if head.unchanged and known is not None:
            return known
        messages = []
        for record in head.records:
            if record is None:
                break
            messages.append(readable(record))
        tail = Tail(head.allocated_seq, head.last_id, tuple(messages))
        self._put(tenant_id, conversation_id, tail)
        return tail

    def longer(
        self, tenant_id: str, conversation_id: str, tail: Tail, more: Sequence[TailMessage | None]
    ) -> Tail:
        """Keep a tail with `more` behind it, which was read after its head; the tail as it is kept now."""
        if None in more or len(tail.messages) + len(more) > LENGTH_MAX:
            return tail
        longer = tail._replace(messages=(*tail.messages, *more))
        self._put(tenant_id, conversation_id, longer)
        return longer

    def _put(self, tenant_id: str, conversation_id: str, tail: Tail) -> None:
        size = sum([MESSAGE_BYTES + len(one.body) for one in tail.messages if one is not None])
        self._kept.put((tenant_id, conversation_id), tail, MESSAGE_BYTES + size)
