"""The port of lease stores.

A lease is granted to a stable node name plus a boot number. Every grant of a resource to another
(node, boot) raises its epoch by one, for ever: an epoch is never given out twice. A newer boot of the
same node takes its lease back at once, because the node's local lock proves that the old process died.

Spec: §11.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease held by us. `epoch` goes into every write."""

    resource: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a resource, as of the call. `address` is where peers reach it (host:port or a number)."""

    resource: str
    node: str
    boot: int
    address: str
    epoch: int
    remaining_ms: int


class LeaseStore(Protocol):
    """Leases by compare-and-set. StoreError when the store does not answer; repeating a call is safe.

    Resources: ``ob:<partition>``, ``s:<shard>``, ``cs:<connection shard>``, ``writers:<seat>``,
    ``rm:<room partition>``, ``rooms:<seat>``.
    """

    async def acquire(self, resource: str, node: str, boot: int, address: str, ttl_ms: int) -> Grant | Holder:
        """The grant, or who holds the resource now. Granting again to the same (node, boot) renews it.

        The epoch is raised unless the lease was still ours. After an unknown outcome a repeat answers
        with the epoch that stands.
        """

    async def renew(self, grants: list[Grant], node: str, boot: int, ttl_ms: int) -> list[bool]:
        """Which of the grants are still ours; those are extended to `ttl_ms` from now."""

    async def release(self, grants: list[Grant], node: str, boot: int) -> None:
        """Give up what is still ours. The epoch stays where it is."""

    async def raise_epoch(self, grant: Grant, node: str, boot: int, above: int) -> Grant | None:
        """A grant of ours under an epoch above `above`, in place of `grant`; None when it is not ours now.

        For a store that came back from so old a copy that it gives epochs out again that a log has seen.
        """

    async def holders(self, resources: list[str]) -> list[Holder | None]:
        """Who holds each resource, None where nobody does."""
