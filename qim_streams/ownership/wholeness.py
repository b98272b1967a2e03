"""Whether the hot tier holds everything of an Outbox partition that it ever acknowledged.

A Redis that was emptied, cut back or replaced by a replica that lags does not know what it lost. The owner
of a partition does: it holds the tier against Outbox and membership log before it serves, and from then on
each of its calls proves that the one before is still there. What it has proved it writes down beside the
data, for this run of the server: ``{ob:p}:whole``. A loss takes the mark away or leaves an older run's.

Readers that would take "it is not there" for an answer ask this first: without the mark, what is missing may
be on its way back, and the answer is "later".

Invariants: a partition that is not named as doubtful had everything at the moment of the answer.

Spec: §14.4.
"""

from collections.abc import Collection
from typing import Protocol


class Wholeness(Protocol):
    """Asked when something is missing, and before something is numbered for the first time."""

    async def doubtful(self, partitions: Collection[int]) -> set[int]:
        """Those of `partitions` whose data may not be all there. StoreUnavailable: ask again."""


class Undoubted:
    """A `Wholeness` for a tier that forgets nothing."""

    async def doubtful(self, partitions: Collection[int]) -> set[int]:
        """None of them."""
        return set()
