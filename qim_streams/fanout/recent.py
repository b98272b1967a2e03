"""RecentMessages: what was just dispatched, to drop repeats early and to see holes and forgeries.

Bounded memory of this process, empty after a restart: a repeat that is not remembered is dispatched
again and dropped by the mailbox stage, whose memory is exact.

Pure state. Spec: §4, §11.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Generic, TypeVar

from qim_streams.fanout.plan import OutboxMessage

K = TypeVar("K", bytes, tuple[str, str])

MESSAGES_MAX = 65_536
CONVERSATIONS_MAX = 65_536


class Verdict(Enum):
    """What a message is, compared with what was dispatched before it."""

    NEW = "new"
    REPEAT = "repeat"  # the same message again: nothing to do
    FORGED = "forged"  # its message_id was used with other content
    AFTER_HOLE = "after_hole"  # new, but a conversation_seq before it never came
    LATE = "late"  # its conversation is further; not remembered: dispatched again, dropped downstream


class _Generations(Generic[K]):
    """A bounded memory of numbers by key: two dictionaries, the older is dropped when the younger is full."""

    def __init__(self, count_max: int) -> None:
        self._half = max(1, count_max // 2)
        self._young: dict[K, int] = {}
        self._old: dict[K, int] = {}

    def get(self, key: K) -> int | None:
        found = self._young.get(key)
        return self._old.get(key) if found is None else found

    def update(self, values: dict[K, int]) -> None:
        self._young.update(values)
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}


class RecentMessages:
    """`judge` a batch, then `remember` what was dispatched of it."""

    def __init__(self, messages_max: int = MESSAGES_MAX, conversations_max: int = CONVERSATIONS_MAX) -> None:
        self._contents: _Generations[bytes] = _Generations(messages_max)
        self._seqs: _Generations[tuple[str, str]] = _Generations(conversations_max)

    def judge(self, messages: Sequence[OutboxMessage]) -> list[Verdict]:
        """The verdict on each message of a batch, in order; remembers nothing."""
        contents: dict[bytes, int] = {}
        seqs: dict[tuple[str, str], int] = {}
        return [self._judged(one, contents, seqs) for one in messages]

    def _judged(
        self, one: OutboxMessage, contents: dict[bytes, int], seqs: dict[tuple[str, str], int]
    ) -> Verdict:
        message = one.message
        message_id, content = message.message_id, hash(one.outbox.message)
        before = contents.get(message_id)
        if before is None:
            before = self._contents.get(message_id)
        if before is not None:
            return Verdict.REPEAT if before == content else Verdict.FORGED
        conversation, seq = (message.tenant_id, message.conversation_id), message.conversation_seq
        last = seqs.get(conversation)
        if last is None:
            last = self._seqs.get(conversation)
        contents[message_id] = content
        seqs[conversation] = seq if last is None else max(seq, last)
        if last is None or seq == last + 1:
            return Verdict.NEW
        return Verdict.AFTER_HOLE if seq > last else Verdict.LATE

    def remember(self, messages: Sequence[OutboxMessage]) -> None:
        """Take over messages whose dispatches are acknowledged."""
        seqs: dict[tuple[str, str], int] = {}
        for one in messages:
            message = one.message
            conversation = (message.tenant_id, message.conversation_id)
            last = seqs.get(conversation) or self._seqs.get(conversation) or 0
            seqs[conversation] = max(last, message.conversation_seq)
        self._contents.update({one.message.message_id: hash(one.outbox.message) for one in messages})
        self._seqs.update(seqs)
