"""The hot tier in memory: one "server", and the verified fakes of the conversation and lease stores on it.

Fakes keep the same promises as the Redis adapters and pass the same conformance suites; rules come from the
pure modules of the stages. Stores made from one `MemoryHotTier` (here and in
`memory_membership`) see the same data, so a test can kill a writer and start another on what it left behind.

Faults: `MemoryHotTier.faults` holds what happens to the coming calls, one per numbered call, first in first
out (see `Fault`). `remember` and `roll_back` play a restart that lost the last writes.

What they do not do: expire dedup rows, survive the process, or batch.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from qim_streams.commit.ports import (
    NOTHING_CONFIRMED,
    CommitRequest,
    CommitResult,
    Confirmed,
    Covered,
    PendingMessage,
)
from qim_streams.commit.rules import (
    ConversationKey,
    Head,
    PartitionState,
    commit_group,
    confirm,
    restore,
)
from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.ownership.ports import Grant, Holder
from qim_streams.records import MessageRecord


class Fault(Enum):
    """What happens to a write."""

    NONE = "none"
    REFUSED = "refused"  # not applied, and said so
    LOST_REQUEST = "lost_request"  # not applied, outcome unknown
    LOST_ANSWER = "lost_answer"  # applied, outcome unknown


@dataclass(slots=True)
class MemoryGroup:
    """What a conversation has beside the head that commits read."""

    fields: dict[str, str | int] = field(default_factory=dict)
    token: bytes = b""
    oldest: int = 1
    versions: dict[int, tuple[int, dict[int, int]]] = field(default_factory=dict)
    bitmaps: dict[tuple[int, int], bytes] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryLease:
    """A lease as the server holds it."""

    node: str
    boot: int
    address: str
    until_ms: int


class MemoryHotTier:
    """One server. `partition_of(tenant, conversation)` as in the product; `clock_ms` drives leases."""

    def __init__(
        self, partition_of: Callable[[str, str], int], clock_ms: Callable[[], int] = lambda: 0
    ) -> None:
        self.partition_of, self.clock_ms = partition_of, clock_ms
        self.partitions: dict[int, PartitionState] = {}
        self.groups: dict[ConversationKey, MemoryGroup] = {}
        self.unsettled: dict[int, dict[ConversationKey, int]] = {}
        self.logged: dict[int, int] = {}  # partition -> offset of the change log that was settled
        self.ordinals: dict[tuple[str, int], dict[str, int]] = {}  # (tenant, lane) -> user -> count
        self.epochs: dict[str, int] = {}
        self.leases: dict[str, MemoryLease] = {}
        self.faults: deque[Fault] = deque()

    def partition(self, number: int) -> PartitionState:
        """The state of a partition, with the epoch that its lease has now."""
        state = self.partitions.setdefault(number, PartitionState())
        state.epoch = self.epochs.get(f"ob:{number}", 0)
        return state

    def next_fault(self) -> Fault:
        """The fault of this write."""
        return self.faults.popleft() if self.faults else Fault.NONE

    def remember(self) -> object:
        """What is on disk now, for `roll_back`."""
        return copy.deepcopy((self.partitions, self.groups, self.unsettled, self.logged))

    def roll_back(self, remembered: Any) -> None:
        """Forget what was written since. Leases, epochs and ordinals are kept: another test's matter."""
        self.partitions, self.groups, self.unsettled, self.logged = copy.deepcopy(remembered)

    def state_of(self, key: ConversationKey) -> PartitionState:
        """The state of the partition of a conversation."""
        return self.partition(self.partition_of(*key))


class MemoryCalls:
    """The numbered calls of one process, as `commit.calls.PartitionCalls` makes them."""

    def __init__(self, tier: MemoryHotTier) -> None:
        self._tier = tier
        self._numbers: dict[tuple[int, int], list[int]] = {}  # (partition, epoch) -> applied, issued

    @contextmanager
    def numbered(self, partition: int, epoch: int) -> Iterator[PartitionState]:
        """The state to change in one step; the tier's next fault meets the call."""
        numbers = self._numbers.setdefault((partition, epoch), [0, 0])
        numbers[1] += 1
        mine, fault = numbers[1], self._tier.next_fault()
        if fault is Fault.REFUSED:
            raise StoreUnavailable("memory: refused", Outcome.NOT_APPLIED)
        if fault is Fault.LOST_REQUEST:
            raise StoreUnavailable("memory: the request was lost", Outcome.UNKNOWN)
        state = self._tier.partition(partition)
        state.fence(f"ob:{partition}", epoch)
        state.number(epoch, numbers[0], mine)
        yield state
        if fault is Fault.LOST_ANSWER:
            raise StoreUnavailable("memory: the answer was lost", Outcome.UNKNOWN)
        numbers[0] = mine


class MemoryConversationStore:
    """`ConversationStore` in memory."""

    def __init__(self, tier: MemoryHotTier, calls: MemoryCalls | None = None) -> None:
        self.tier, self._calls = tier, calls or MemoryCalls(tier)

    async def commit(
        self,
        partition: int,
        epoch: int,
        requests: Sequence[CommitRequest],
        confirmed: Confirmed = NOTHING_CONFIRMED,
    ) -> list[CommitResult]:
        """See the port."""
        with self._calls.numbered(partition, epoch) as state:
            return commit_group(state, requests, confirmed)

    async def confirm(self, partition: int, epoch: int, confirmed: Confirmed) -> None:
        """See the port."""
        if not confirmed.message_ids:
            return
        with self._calls.numbered(partition, epoch) as state:
            confirm(state, confirmed)

    async def pending(self, partition: int, epoch: int, limit: int) -> list[PendingMessage]:
        """See the port."""
        state = self.tier.partition(partition)
        state.fence(f"ob:{partition}", epoch)
        return [
            PendingMessage(tenant, chat, seq, message_id, state.records[tenant, chat][seq])
            for message_id, (tenant, chat, seq) in sorted(state.pending.items())[:limit]
        ]

    async def covered(self, partition: int, epoch: int) -> Covered:
        """See the port."""
        state = self.tier.partition(partition)
        state.fence(f"ob:{partition}", epoch)
        return state.covered

    async def restore(
        self, partition: int, epoch: int, messages: Sequence[MessageRecord], covered: Covered
    ) -> int:
        """See the port."""
        with self._calls.numbered(partition, epoch) as state:
            return restore(state, messages, covered)

    async def leave_out(self, partition: int, epoch: int, last: Sequence[tuple[str, str, int]]) -> None:
        """See the port."""
        with self._calls.numbered(partition, epoch) as state:
            for tenant, chat, seq in last:
                head = state.heads.setdefault((tenant, chat), Head())
                head.seq = max(head.seq, seq)

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """See the port."""
        return [
            self.tier.state_of((tenant, chat)).records.get((tenant, chat), {}).get(seq)
            for tenant, chat, seq in wanted
        ]


class MemoryLeaseStore:
    """`LeaseStore` in memory; time is the tier's `clock_ms`."""

    def __init__(self, tier: MemoryHotTier) -> None:
        self.tier = tier

    async def acquire(self, resource: str, node: str, boot: int, address: str, ttl_ms: int) -> Grant | Holder:
        """See the port."""
        lease = self._living(resource)
        ours = lease is not None and (lease.node, lease.boot) == (node, boot)
        if lease is not None and not ours and not (lease.node == node and lease.boot < boot):
            return self._holder(resource, lease)
        if not ours:
            self.tier.epochs[resource] = self.tier.epochs.get(resource, 0) + 1
        self.tier.leases[resource] = MemoryLease(node, boot, address, self.tier.clock_ms() + ttl_ms)
        return Grant(resource, self.tier.epochs[resource])

    async def renew(self, grants: list[Grant], node: str, boot: int, ttl_ms: int) -> list[bool]:
        """See the port."""
        ours = [self._is_ours(grant, node, boot) for grant in grants]
        for grant, kept in zip(grants, ours, strict=True):
            if kept:
                self.tier.leases[grant.resource].until_ms = self.tier.clock_ms() + ttl_ms
        return ours

    async def release(self, grants: list[Grant], node: str, boot: int) -> None:
        """See the port."""
        for grant in grants:
            if self._is_ours(grant, node, boot):
                del self.tier.leases[grant.resource]

    async def raise_epoch(self, grant: Grant, node: str, boot: int, above: int) -> Grant | None:
        """See the port."""
        if not self._is_ours(grant, node, boot):
            return None
        self.tier.epochs[grant.resource] = max(grant.epoch, above) + 1
        return Grant(grant.resource, self.tier.epochs[grant.resource])

    async def holders(self, resources: list[str]) -> list[Holder | None]:
        """See the port."""
        living = [(resource, self._living(resource)) for resource in resources]
        return [None if lease is None else self._holder(resource, lease) for resource, lease in living]

    def _living(self, resource: str) -> MemoryLease | None:
        lease = self.tier.leases.get(resource)
        return lease if lease is not None and lease.until_ms > self.tier.clock_ms() else None

    def _is_ours(self, grant: Grant, node: str, boot: int) -> bool:
        lease = self._living(grant.resource)
        return (
            lease is not None
            and (lease.node, lease.boot) == (node, boot)
            and self.tier.epochs.get(grant.resource) == grant.epoch
        )

    def _holder(self, resource: str, lease: MemoryLease) -> Holder:
        left_ms = lease.until_ms - self.tier.clock_ms()
        return Holder(resource, lease.node, lease.boot, lease.address, self.tier.epochs[resource], left_ms)
