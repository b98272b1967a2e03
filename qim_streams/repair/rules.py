"""What stands where after a loss, and what that means. Pure.

Spec: §11, §14.4.
"""

from dataclasses import dataclass
from enum import Enum

NOTHING = -1


class Standing(Enum):
    """Of a partition or shard."""

    WHOLE = "whole"
    UNPROVED = "unproved"  # nobody has held it against the logs since the server was started or emptied
    BEHIND = "behind"  # it is known to lack something that the logs have
    LOST = "lost"  # what it lacks is gone from the log, and the archive does not prove it


@dataclass(frozen=True, slots=True)
class OutboxStanding:
    """An Outbox partition. Offsets are inclusive but for `begin` (first kept) and the two ends (exclusive).

    `tail` and `change_tail`: how far the hot tier knows Outbox and membership change log, -1 for nothing.
    """

    partition: int
    begin: int
    end: int
    tail: int
    change_end: int
    change_tail: int
    archived: int
    proved: bool
    accepted: int = NOTHING

    @property
    def standing(self) -> Standing:
        """A proof outweighs the numbers: what is confirmed a moment later is not missing."""
        if self.proved:
            return Standing.WHOLE
        if self.lost_records and self.accepted < self.begin:
            return Standing.LOST
        if self.records_behind or self.changes_behind:
            return Standing.BEHIND
        return Standing.UNPROVED

    @property
    def records_behind(self) -> int:
        """Outbox records that the hot tier may lack and the log has."""
        return max(0, self.end - 1 - max(self.tail, self.begin - 1))

    @property
    def changes_behind(self) -> int:
        """Rows of the change log that the hot tier may lack."""
        return max(0, self.change_end - 1 - self.change_tail)

    @property
    def lost_records(self) -> int:
        """Records that neither hot tier, Outbox nor archive are known to have."""
        return max(0, self.begin - 1 - max(self.tail, self.archived))


@dataclass(frozen=True, slots=True)
class ShardStanding:
    """A MailboxShard: W of its lowest lane, how far it has been (`promised`: by its owner's word, `paged`: by
    its progress table), the end of its dispatch partition (exclusive), and whether somebody owns it."""

    shard: int
    watermark: int
    promised: int
    paged: int
    end: int
    owned: bool

    @property
    def goal(self) -> int:
        """How far W has to come to be where it was; never beyond the log."""
        return min(max(self.promised, self.paged), self.end - 1)

    @property
    def standing(self) -> Standing:
        """Whole once W is where it was. A store without an owner's word is behind as well."""
        return Standing.WHOLE if self.watermark >= self.goal else Standing.BEHIND


@dataclass(frozen=True, slots=True)
class RepairStatus:
    """Everything. `writers`: how many are alive."""

    outbox: list[OutboxStanding]
    shards: list[ShardStanding]
    writers: int

    @property
    def is_whole(self) -> bool:
        """Nothing to repair."""
        standings = [one.standing for one in self.outbox] + [one.standing for one in self.shards]
        return all(standing is Standing.WHOLE for standing in standings)
