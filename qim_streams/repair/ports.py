"""What the repair reads of the hot tier itself.

Spec: §14.4.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class HotMark(NamedTuple):
    """How far the hot tier knows Outbox and change log of a partition (-1: nothing), and whether it is proved
    whole for this run of the server; `accepted` as in `commit.lost_range.Acceptance`."""

    tail: int
    change_tail: int
    proved: bool
    accepted: int


class HotMarks(Protocol):
    """Marks of Outbox partitions."""

    async def read(self, partitions: Sequence[int]) -> list[HotMark]:
        """One mark each. StoreUnavailable when the hot tier does not answer."""

    async def accept(self, partition: int, begin: int) -> None:
        """Everything of the partition below Outbox offset `begin` may be lost."""
