"""RecentMessages: what was just dispatched, to drop repeats early and to see holes and forgeries.

Bounded memory of this process, empty after a restart: a repeat that is not remembered is dispatched
again and dropped by the mailbox stage, whose memory is exact.

Pure state. Spec: §4, §11.
"""

from collections.abc import Sequence
from enum import Enum

from qim_streams.fanout.plan import OutboxMessage
from qim_streams.lru import LruMap

MESSAGES_MAX = 65_536
CONVERSATIONS_MAX = 65_536


class Verdict(Enum):
    """What a message is, compared with what was dispatched before it."""

    NEW = "new"
    REPEAT = "repeat"  # the same message again: nothing to do
    FORGED = "forged"  # its message_id was used with other content
    AFTER_HOLE = "after_hole"  # new, but a conversation_seq before it never came
    LATE = "late"  # its conversation is further; not remembered: dispatched again, dropped downstream


class RecentMessages:
    """`judge` a batch, then `remember` what was dispatched of it."""

    def __init__(self, messages_max: int = MESSAGES_MAX, conversations_max: int = CONVERSATIONS_MAX) -> None:
        self._contents: LruMap[bytes, int] = LruMap(messages_max, messages_max)
        self._seqs: LruMap[tuple[str, str], int] = LruMap(conversations_max, conversations_max)

    def judge(self, messages: Sequence[OutboxMessage]) -> list[Verdict]:
        """The verdict on each message of a batch, in order; remembers nothing."""
        contents: dict[bytes, int] = {}
        seqs: dict[tuple[str, str], int] = {}
        return [self._judged(one, contents, seqs) for one in messages]

    def _judged(
        self, one: OutboxMessage, contents: dict[bytes, int], seqs: dict[tuple[str, str], int]
    ) -> Verdict:
        message_id, content = one.message.message_id, hash(one.outbox.message)
        before = contents.get(message_id)
        if before is None:
            before = self._contents.get(message_id)
        if before is not None:
            return Verdict.REPEAT if before == content else Verdict.FORGED
        conversation, seq = one.conversation, one.message.conversation_seq
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
        for one in messages:
            self._contents.put(one.message.message_id, hash(one.outbox.message))
            last = self._seqs.get(one.conversation)
            seq = one.message.conversation_seq
            self._seqs.put(one.conversation, seq if last is None else max(seq, last))
