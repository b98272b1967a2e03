"""RecentMessages: what was just dispatched, to drop repeats early and to see holes and forgeries.

Bounded memory of this process, empty after a restart: a repeat that is not remembered is dispatched
again and dropped by the mailbox stage, whose memory is exact.

Pure state. Spec: §4, §11.
"""

from collections.abc import Iterable, Sequence
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

    def among(self, keys: Iterable[K]) -> dict[K, int]:
        """The numbers of those of `keys` that are known."""
        young, old = self._young, self._old
        return {key: young[key] if key in young else old[key] for key in keys if key in young or key in old}

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
        contents = self._contents.among([one.message.message_id for one in messages])
        conversations = [one.conversation for one in messages]
        seqs = self._seqs.among(conversations)
        verdicts = []
        for one, conversation in zip(messages, conversations, strict=True):
            message, content = one.message, hash(one.outbox.message)
            before = contents.get(message.message_id)
            if before is not None:
                verdicts.append(Verdict.REPEAT if before == content else Verdict.FORGED)
                continue
            contents[message.message_id] = content
            seq, last = message.conversation_seq, seqs.get(conversation)
            if last is not None and seq <= last:
                verdicts.append(Verdict.LATE)
                continue
            seqs[conversation] = seq
            verdicts.append(Verdict.NEW if last is None or seq == last + 1 else Verdict.AFTER_HOLE)
        return verdicts

    def remember(self, messages: Sequence[OutboxMessage]) -> None:
        """Take over messages whose dispatches are acknowledged."""
        conversations = [one.conversation for one in messages]
        seqs = self._seqs.among(conversations)
        for one, conversation in zip(messages, conversations, strict=True):
            seqs[conversation] = max(seqs.get(conversation, 0), one.message.conversation_seq)
        self._contents.update({one.message.message_id: hash(one.outbox.message) for one in messages})
        self._seqs.update(seqs)
