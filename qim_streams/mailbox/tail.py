"""What may follow the mailboxes of a shard: it is fed every record once W covers it, in order.

Spec: §9 (the mailbox-tail compactor).
"""

from collections.abc import Sequence
from typing import Protocol

from qim_streams.mailbox.members import Addressed


class Tail(Protocol):
    """Fed by the mailbox stage. Nothing that it does or fails to do holds the stage."""

    def begin(self, shard: int, start: int) -> None:
        """The shard is served from here on; its records come from offset `start`."""

    def feed(self, shard: int, records: Sequence[Addressed]) -> None:
        """Records of a batch that W covers; some may come again after a restart or a retry."""

    async def release(self, shards: frozenset[int]) -> None:
        """The shards leave: what was fed is made durable now, or comes again elsewhere."""


class NoTail:
    """Nothing follows."""

    def begin(self, shard: int, start: int) -> None:
        """See `Tail`."""

    def feed(self, shard: int, records: Sequence[Addressed]) -> None:
        """See `Tail`."""

    async def release(self, shards: frozenset[int]) -> None:
        """See `Tail`."""
