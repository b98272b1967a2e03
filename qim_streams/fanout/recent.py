"""RecentMessages: what was just dispatched, to drop repeats early and to see holes and forgeries.

Bounded memory of this process, empty after a restart: a repeat that is not remembered is dispatched
again and dropped by the mailbox stage, whose memory is exact.

Pure state. Spec: §4, §11.
"""

from collections.abc import Sequence
from enum import Enum

from qim_streams.fanout.plan import OutboxMessage
from qim_streams.generations import Generations

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
        self._contents: Generations[bytes] = Generations(messages_max)  # message_id -> hash of its bytes
        self._seqs: Generations[bytes] = Generations(conversations_max)  # conversation's key -> last seq

    def judge(self, messages: Sequence[OutboxMessage]) -> list[Verdict]:
        """The verdict on each message of a batch, in order; remembers nothing."""
        contents: dict[bytes, int] = {}
        seqs: dict[bytes, int] = {}
        verdicts = []
        for _, _, key, outbox, message in messages:
            message_id, content = message.message_id, hash(outbox.message)
            before = contents.get(message_id) or self._contents.get(message_id)
            if before is not None:
                verdicts.append(Verdict.REPEAT if before == content else Verdict.FORGED)
                continue
            contents[message_id] = content
            seq, last = message.conversation_seq, seqs.get(key) or self._seqs.get(key)
            if last is not None and seq <= last:
                verdicts.append(Verdict.LATE)
                continue
            seqs[key] = seq
            verdicts.append(Verdict.NEW if last is None or seq == last + 1 else Verdict.AFTER_HOLE)
        return verdicts

    def remember(self, messages: Sequence[OutboxMessage]) -> None:
        """Take over messages whose dispatches are acknowledged."""
        seqs: dict[bytes, int] = {}
        for _, _, key, _, message in messages:
            last = seqs.get(key) or self._seqs.get(key) or 0
            seqs[key] = max(last, message.conversation_seq)
        self._contents.update({one.message.message_id: hash(one.outbox.message) for one in messages})
        self._seqs.update(seqs)
