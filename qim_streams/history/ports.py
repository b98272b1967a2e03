"""Ports of history: the hot tier's side of a conversation, and ranges of the archive.

Spec: §5, §8, §14.8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from qim_streams.archive.ports import ArchivedMessage
from qim_streams.membership.ports import Member

ROWS_MAX = 1_000  # numbers in one call of `rows`


@dataclass(frozen=True, slots=True)
class ConversationView:
    """A conversation as one user meets it, read in one atomic step.

    `allocated_seq`: the last number given out. `committed_seq`: the last message that is known to be in
    the Outbox; what lies above is RESERVED, may still vanish with the hot tier and is shown to nobody.
    Both 0 for none. `member` is None for somebody who never was one.
    """

    allocated_seq: int
    committed_seq: int
    history_policy: str
    member: Member | None


class HotRows(NamedTuple):
    """MessageRecord bytes in the order asked for (None: not in the hot tier), and the last number given
    out at the very moment of the read."""

    allocated_seq: int
    rows: list[bytes | None]


class HistoryStore(Protocol):
    """The hot tier as history reads it. Nothing is ever written. StoreError: read again later."""

    async def view(self, tenant_id: str, conversation_id: str, user_id: str) -> ConversationView | None:
        """See `ConversationView`; None when there is no such conversation."""

    async def rows(self, tenant_id: str, conversation_id: str, spans: Sequence[tuple[int, int]]) -> HotRows:
        """The records of `spans` (both ends inclusive, together at most `ROWS_MAX` numbers).

        In one atomic step with the last number given out (0: none).
        """


class Deletions(Protocol):
    """What users have deleted for themselves."""

    async def of_user(
        self, tenant_id: str, user_id: str, ordinal: int, conversation_id: str
    ) -> tuple[int, frozenset[int]]:
        """(everything up to here, single numbers above it). StoreError: ask again later."""


class ArchiveRanges(Protocol):
    """What history needs of an `ArchiveReader`.

    A message that was archived before the call is found: the hot tier, which is trimmed of nothing else,
    is read first.
    """

    async def range(
        self, tenant_id: str, conversation_id: str, after_seq: int, up_to_seq: int, limit: int
    ) -> list[ArchivedMessage]:
        """after_seq < seq <= up_to_seq, ascending, at most `limit`. StoreError: read again later."""

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where the archive has none."""
