"""The unread oracle: what every user's list must say, computed a second time from plain facts.

Written from the definition alone; it shares no code with the session list::

    floor  = max(join_seq - 1, deleted_to_seq, retention_seq)
    base   = max(floor, read_seq, my_last_sent_seq)
    unread = messages in (base, head] that are not mine, stand, and that I have not deleted one by one

Operations (edits, recalls) have numbers and are no messages. Not a member: nothing is unread. Up to 200 the
count is exact.

Spec: §9. Scenario F5.
"""

from dataclasses import dataclass, field

LIMIT = 200


@dataclass
class Said:
    """A number of a conversation and what has it. `operation`: an edit or a recall."""

    seq: int
    sender: str
    operation: bool = False
    recalled: bool = False


@dataclass
class Marks:
    """What one user did in one conversation."""

    join_seq: int | None = None  # the first message that is for him; None: he is no member
    read_seq: int = 0
    deleted_to_seq: int = 0
    deleted: set[int] = field(default_factory=set)
    muted: bool = False
    hidden_at: int | None = None


@dataclass
class Facts:
    """Everything that happened in one conversation."""

    said: list[Said] = field(default_factory=list)
    marks: dict[str, Marks] = field(default_factory=dict)
    retention_seq: int = 0

    @property
    def head(self) -> int:
        """The last number."""
        return self.said[-1].seq if self.said else 0


def expected_unread(facts: Facts, user: str) -> tuple[int, bool]:
    """(count, exact) for a user who was ever a member."""
    marks = facts.marks[user]
    if marks.join_seq is None:
        return 0, True
    mine = [one.seq for one in facts.said if one.sender == user and not one.operation]
    floor = max(marks.join_seq - 1, marks.deleted_to_seq, facts.retention_seq)
    base = max([floor, marks.read_seq, *mine])
    count = len(
        [
            one
            for one in facts.said
            if one.seq > base and not one.operation and not one.recalled and one.seq not in marks.deleted
        ]
    )
    return min(count, LIMIT), count <= LIMIT


def expected_listed(facts: Facts, user: str) -> bool:
    """Whether a list shows the conversation to somebody who was ever a member."""
    hidden_at = facts.marks[user].hidden_at
    return hidden_at is None or facts.head > hidden_at


def expected_totals(all_facts: dict[str, Facts], user: str) -> tuple[int, int]:
    """(unread of all listed conversations, that of the muted ones among them)."""
    mine = [one for one in all_facts.values() if user in one.marks and expected_listed(one, user)]
    counts = [(expected_unread(one, user)[0], one.marks[user].muted) for one in mine]
    return sum(count for count, _ in counts), sum(count for count, muted in counts if muted)
