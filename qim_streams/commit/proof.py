"""Proof: what the owner of a partition writes down once it knows that the hot tier lacks nothing.

Given after the partition was held against the logs, and again and again while it is served: each proof is a
numbered call, which a store that has lost an acknowledged one refuses. So a loss is noticed within the time
between two proofs even where nobody sends, and readers are told (`ownership.wholeness`).

Spec: §14.4.
"""

from typing import Protocol


class Proof(Protocol):
    """Marks partitions as whole."""

    async def prove(self, partition: int, epoch: int) -> None:
        """The partition has everything, for this run of the server.

        FencedError, StoreUnavailable as any write; InvariantViolation: the store has lost writes.
        """
