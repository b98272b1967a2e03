"""Members of a conversation at a message, out of the rows that every member has kept.

Versions and bitmaps are what stages read; they are made for that. After a lost hot tier some of them cannot
be made again: the change log is compacted and holds a member's last row, not the versions in between. The
row says in which intervals of conversation_seq its user was a member, so who gets a message follows from its
number alone. That costs all rows of the conversation, hence it is the way for what is missing, not for every
message.

Invariants: an answer for a message is the same now and later; nobody answers while the tier may lack rows.

What it does not do: know more than the newest 64 intervals of a member (`rules.INTERVALS_MAX`).

Spec: §4, §14.4.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.membership.bitmaps import Seat, by_shard
from qim_streams.membership.ports import Member
from qim_streams.membership.rules import is_visible
from qim_streams.ownership.wholeness import Wholeness

SHOWN_MAX = 8


class MemberRows(Protocol):
    """The part of the membership store that is needed here."""

    async def everyone(self, tenant_id: str, conversation_id: str) -> list[Member]:
        """All members ever, active and left."""


class PastMembers(Protocol):
    """For stages that miss a version or a bitmap."""

    async def require_whole(self, partitions: Collection[int]) -> None:
        """StoreUnavailable (NOT_APPLIED) while the tier may lack something of these Outbox partitions."""

    async def at(self, tenant_id: str, conversation_id: str, seq: int) -> dict[int, list[int]] | None:
        """Ordinals of those who get message `seq`, ascending, by MailboxShard; None: no such conversation."""


class KeptIntervals:
    """`PastMembers` on the rows of the membership store."""

    def __init__(self, rows: MemberRows, wholeness: Wholeness, mailbox_shards: int) -> None:
        self._rows, self._wholeness, self._mailbox_shards = rows, wholeness, mailbox_shards

    async def require_whole(self, partitions: Collection[int]) -> None:
        """See the port."""
        doubtful = await self._wholeness.doubtful(partitions)
        if doubtful:
            shown = ", ".join(f"ob:{partition}" for partition in sorted(doubtful)[:SHOWN_MAX])
            raise StoreUnavailable(
                f"{shown}: the hot tier is being held against the logs", Outcome.NOT_APPLIED
            )

    async def at(self, tenant_id: str, conversation_id: str, seq: int) -> dict[int, list[int]] | None:
        """See the port."""
        everyone = await self._rows.everyone(tenant_id, conversation_id)
        if not everyone:
            return None
        return members_at(tenant_id, everyone, seq, self._mailbox_shards)


def members_at(
    tenant_id: str, everyone: Iterable[Member], seq: int, mailbox_shards: int
) -> dict[int, list[int]]:
    """Ordinals, ascending, of those in whose intervals `seq` lies, by MailboxShard. Pure."""
    seats = [Seat(one.user_id, one.ordinal) for one in everyone if is_visible(one.intervals, seq)]
    grouped = by_shard(tenant_id, seats, mailbox_shards)
    return {shard: sorted(ordinals) for shard, ordinals in grouped.items()}
