"""The verdict on a played room: what every user received against what the trace alone says.

Invariants: nothing of the pipeline is asked; the acks are used only to know which row a message is.
A message counts as lost when a member did not receive it, duplicated when he saw it twice, reordered
when he saw it after one with a higher conversation_seq, foreign when it was not for him, and wrong when
its seq, sender or body is not what was sent.

Spec: §2, §4, §5 (a member from join to leave gets each message once, in order).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qim_streams.wire.frames import Event

EXAMPLES_MAX = 5


class Sent(NamedTuple):
    """What is known of a row that was acknowledged."""

    row: int
    conversation_seq: int
    sender_id: str
    body: bytes


@dataclass(slots=True)
class Verdict:
    """Counts over the mailboxes of a room, and the first examples of what is not as it should be."""

    mailboxes: int = 0
    expected: int = 0
    delivered: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    foreign: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every mailbox is exactly as expected."""
        return not (self.lost or self.duplicated or self.reordered or self.foreign or self.wrong)

    def add(self, other: "Verdict") -> None:
        """Add the counts of other mailboxes."""
        self.mailboxes += other.mailboxes
        self.expected += other.expected
        self.delivered += other.delivered
        self.lost += other.lost
        self.duplicated += other.duplicated
        self.reordered += other.reordered
        self.foreign += other.foreign
        self.wrong += other.wrong
        self.examples = (self.examples + other.examples)[:EXAMPLES_MAX]

    def note(self, text: str) -> None:
        """Keep an example, if there is room."""
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


def judge(
    user_id: str, expected: Sequence[int], received: Iterable[Event], sent: dict[bytes, Sent]
) -> Verdict:
    """The verdict on one mailbox: `expected` rows ascending, events in the order they were shown.

    `sent` maps the message_id of every acknowledged row; an event of another message is foreign.
    """
    verdict = Verdict(mailboxes=1, expected=len(expected))
    wanted = set(expected)
    seen: Counter[int] = Counter()
    last_seq = 0
    for event in received:
        message = event.message
        what = sent.get(message.message_id)
        if what is None or what.row not in wanted:
            verdict.foreign += 1
            verdict.note(f"{user_id} got {message.conversation_id} #{message.conversation_seq}: not for him")
            continue
        seen[what.row] += 1
        if seen[what.row] > 1:
            verdict.duplicated += 1
            verdict.note(f"{user_id} got row {what.row} {seen[what.row]} times")
        elif message.conversation_seq <= last_seq:
            verdict.reordered += 1
            verdict.note(f"{user_id} got row {what.row} (#{message.conversation_seq}) after #{last_seq}")
        last_seq = max(last_seq, message.conversation_seq)
        if (message.conversation_seq, message.sender_id, message.body) != what[1:]:
            verdict.wrong += 1
            verdict.note(f"{user_id} got row {what.row} with another seq, sender or body")
    verdict.delivered = len(seen)
    missing = wanted - seen.keys()
    verdict.lost = len(missing)
    if missing:
        verdict.note(f"{user_id} lacks {len(missing)} rows, the first is {min(missing)}")
    return verdict
