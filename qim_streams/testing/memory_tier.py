"""The hot tier in memory: verified fakes of the conversation, membership, ordinal and lease stores.

They keep the same promises as the Redis adapters and pass the same conformance suites; rules come from the
pure modules of the stages. `MemoryHotTier` is one "server": stores made from it see the same data, so a test
can kill a writer and start another on what it left behind.

Faults: `MemoryHotTier.faults` holds what happens to the coming calls, one per write of a partition, first in
first out (see `Fault`).

What they do not do: expire dedup rows, survive the process, or batch.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from qim_streams.commit.ports import CommitRequest, CommitResult, PendingMessage
from qim_streams.commit.rules import ConversationKey, Head, PartitionState, commit_group, confirm
from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.membership.ports import Conversation, Join, Member, MembershipChange, Unsettled
from qim_streams.membership.rules import (
    VERSION_BLOCK,
    chain_of,
    closed,
    fold_map,
    garbage,
    is_checkpoint,
    opened,
)
from qim_streams.ownership.ports import Grant, Holder
from qim_streams.placement import LANE_BITS, lane, lane_of_ordinal, ordinal_of


class Fault(Enum):
    """What happens to a write."""

    NONE = "none"
    REFUSED = "refused"  # not applied, and said so
    LOST_REQUEST = "lost_request"  # not applied, outcome unknown
    LOST_ANSWER = "lost_answer"  # applied, outcome unknown


@dataclass(slots=True)
class _Group:
    """What a conversation has beside the head that commits read."""

    fields: dict[str, str | int] = field(default_factory=dict)
    token: bytes = b""
    oldest: int = 1
    versions: dict[int, tuple[int, dict[int, int]]] = field(default_factory=dict)
    bitmaps: dict[tuple[int, int], bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Lease:
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
        self.groups: dict[ConversationKey, _Group] = {}
        self.unsettled: dict[int, dict[ConversationKey, int]] = {}
        self.ordinals: dict[tuple[str, int], list[str]] = {}
        self.epochs: dict[str, int] = {}
        self.leases: dict[str, _Lease] = {}
        self.faults: deque[Fault] = deque()

    def partition(self, number: int) -> PartitionState:
        """The state of a partition, with the epoch that its lease has now."""
        state = self.partitions.setdefault(number, PartitionState())
        state.epoch = self.epochs.get(f"ob:{number}", 0)
        return state

    def next_fault(self) -> Fault:
        """The fault of this write."""
        return self.faults.popleft() if self.faults else Fault.NONE

    def state_of(self, key: ConversationKey) -> PartitionState:
        """The state of the partition of a conversation."""
        return self.partition(self.partition_of(*key))


def before_write(fault: Fault) -> None:
    """Raise what a write raises that is not applied."""
    if fault is Fault.REFUSED:
        raise StoreUnavailable("memory: refused", Outcome.NOT_APPLIED)
    if fault is Fault.LOST_REQUEST:
        raise StoreUnavailable("memory: the request was lost", Outcome.UNKNOWN)


def after_write(fault: Fault) -> None:
    """Raise what a write raises that was applied."""
    if fault is Fault.LOST_ANSWER:
        raise StoreUnavailable("memory: the answer was lost", Outcome.UNKNOWN)


class MemoryConversationStore:
    """`ConversationStore` in memory."""

    def __init__(self, tier: MemoryHotTier) -> None:
        self.tier = tier

    async def commit(
        self, partition: int, epoch: int, requests: Sequence[CommitRequest], confirmed: Sequence[bytes] = ()
    ) -> list[CommitResult]:
        """See the port."""
        fault = self.tier.next_fault()
        before_write(fault)
        state = self.tier.partition(partition)
        state.fence(f"ob:{partition}", epoch)
        results = commit_group(state, requests, confirmed)
        after_write(fault)
        return results

    async def confirm(self, partition: int, epoch: int, message_ids: Sequence[bytes]) -> None:
        """See the port."""
        fault = self.tier.next_fault()
        before_write(fault)
        state = self.tier.partition(partition)
        state.fence(f"ob:{partition}", epoch)
        confirm(state, message_ids)
        after_write(fault)

    async def pending(self, partition: int, epoch: int, limit: int) -> list[PendingMessage]:
        """See the port."""
        state = self.tier.partition(partition)
        state.fence(f"ob:{partition}", epoch)
        return [
            PendingMessage(tenant, chat, seq, message_id, state.records[tenant, chat][seq])
            for message_id, (tenant, chat, seq) in sorted(state.pending.items())[:limit]
        ]

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """See the port."""
        return [
            self.tier.state_of((tenant, chat)).records.get((tenant, chat), {}).get(seq)
            for tenant, chat, seq in wanted
        ]


class MemoryMembershipStore:
    """`MembershipStore` and `MembershipReader` in memory."""

    def __init__(self, tier: MemoryHotTier) -> None:
        self.tier = tier

    async def conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """See the port."""
        key = (tenant_id, conversation_id)
        head, group = self.tier.state_of(key).heads.get(key), self.tier.groups.get(key)
        return None if head is None or not head.kind or group is None else _conversation(key, head, group)

    async def members(self, tenant_id: str, conversation_id: str, user_ids: Sequence[str]) -> list[Member]:
        """See the port."""
        rows = self._rows(tenant_id, conversation_id)
        return [rows[user] for user in user_ids if user in rows]

    async def page(
        self, tenant_id: str, conversation_id: str, after_user_id: str, limit: int
    ) -> list[Member]:
        """See the port."""
        rows = self._rows(tenant_id, conversation_id)
        active = sorted((user.encode(), user) for user, member in rows.items() if member.active)
        return [rows[user] for raw, user in active if raw > after_user_id.encode()][:limit]

    async def everyone(self, tenant_id: str, conversation_id: str) -> list[Member]:
        """See the port."""
        return list(self._rows(tenant_id, conversation_id).values())

    async def apply(
        self, partition: int, epoch: int, changes: Sequence[MembershipChange]
    ) -> list[Conversation | None]:
        """See the port."""
        fault = self.tier.next_fault()
        before_write(fault)
        self.tier.partition(partition).fence(f"ob:{partition}", epoch)
        heads = [self._apply_one(partition, change) for change in changes]
        after_write(fault)
        return heads

    async def unsettled(self, partition: int, epoch: int, limit: int) -> list[Unsettled]:
        """See the port."""
        self.tier.partition(partition).fence(f"ob:{partition}", epoch)
        rows = sorted(self.tier.unsettled.get(partition, {}).items())[:limit]
        return [Unsettled(tenant, chat, version) for (tenant, chat), version in rows]

    async def settle(self, partition: int, epoch: int, done: Sequence[Unsettled]) -> None:
        """See the port."""
        self.tier.partition(partition).fence(f"ob:{partition}", epoch)
        waiting = self.tier.unsettled.get(partition, {})
        for one in done:
            key = (one.tenant_id, one.conversation_id)
            if waiting.get(key) == one.version:
                del waiting[key]

    async def collect(
        self, partition: int, epoch: int, tenant_id: str, conversation_id: str, before_ms: int
    ) -> int:
        """See the port."""
        self.tier.partition(partition).fence(f"ob:{partition}", epoch)
        group = self.tier.groups[tenant_id, conversation_id]
        forgotten = 0
        while True:
            block = range(group.oldest, (group.oldest // VERSION_BLOCK + 1) * VERSION_BLOCK)
            following = group.versions.get(block.stop)
            if following is None or following[0] >= before_ms:
                return forgotten
            for pair in garbage([group.versions[v][1] for v in block], fold_map([following[1]])):
                del group.bitmaps[pair]
            for version in block:
                del group.versions[version]
            forgotten += len(block)
            group.oldest = block.stop

    async def versions(self, wanted: Sequence[tuple[str, str, int]]) -> list[dict[int, int] | None]:
        """See `MembershipReader`."""
        return [self._map(tenant, chat, version) for tenant, chat, version in wanted]

    async def bitmaps(self, wanted: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        """See `MembershipReader`."""
        groups = self.tier.groups
        return [
            groups[tenant, chat].bitmaps.get((shard, version)) if (tenant, chat) in groups else None
            for tenant, chat, shard, version in wanted
        ]

    def _rows(self, tenant_id: str, conversation_id: str) -> dict[str, Member]:
        key = (tenant_id, conversation_id)
        return self.tier.state_of(key).members.get(key, {})

    def _map(self, tenant: str, chat: str, version: int) -> dict[int, int] | None:
        group = self.tier.groups.get((tenant, chat))
        chain = chain_of(version)
        if group is None or version < 1 or any(number not in group.versions for number in chain):
            return None
        return fold_map(group.versions[number][1] for number in chain)

    def _apply_one(self, partition: int, change: MembershipChange) -> Conversation | None:
        key = (change.tenant_id, change.conversation_id)
        state = self.tier.partition(partition)
        head = state.heads.setdefault(key, Head())
        group = self.tier.groups.setdefault(key, _Group())
        if head.version != change.expected_version:
            return _conversation(key, head, group) if group.token == change.token else None
        rows = state.members.setdefault(key, {})
        _change_rows(rows, change, head.seq)
        head.active += len(change.joins) - len(change.leaves)
        head.version += 1
        group.token = change.token
        group.fields.update(change.head)
        head.kind = str(group.fields["kind"])
        head.send_policy = str(group.fields["send_policy"])
        head.dismissed = bool(group.fields.get("dismissed"))
        self._write_version(key, head.version, change)
        self.tier.unsettled.setdefault(partition, {})[key] = head.version
        return _conversation(key, head, group)

    def _write_version(self, key: ConversationKey, version: int, change: MembershipChange) -> None:
        group = self.tier.groups[key]
        changed = {shard: version if blob else 0 for shard, blob in change.bitmaps.items()}
        if is_checkpoint(version) and version > 1:
            changed = fold_map([self._map(*key, version - 1) or {}, changed])
        group.versions[version] = (change.at_ms, changed)
        group.bitmaps.update({(shard, version): blob for shard, blob in change.bitmaps.items() if blob})


def _change_rows(rows: dict[str, Member], change: MembershipChange, seq: int) -> None:
    for join in change.joins:
        rows[join.user_id] = _joined(join, rows.get(join.user_id), seq)
    for user in change.leaves:
        member = rows[user]
        rows[user] = replace(member, active=False, intervals=closed(member.intervals, seq))
    for user, role in change.roles.items():
        rows[user] = replace(rows[user], role=role)


def _joined(join: Join, before: Member | None, seq: int) -> Member:
    intervals = opened(before.intervals if before else (), seq)
    return Member(join.user_id, join.ordinal, join.role, True, intervals)


def _conversation(key: ConversationKey, head: Head, group: _Group) -> Conversation:
    fields: Mapping[str, str | int] = group.fields
    return Conversation(
        *key,
        kind=head.kind,
        version=head.version,
        seq=head.seq,
        name=str(fields["name"]),
        send_policy=head.send_policy,
        join_policy=str(fields["join_policy"]),
        history_policy=str(fields["history_policy"]),
        members_max=int(fields["members_max"]),
        members_active=head.active,
        created_at=int(fields["created_at"]),
        creator_id=str(fields["creator_id"]),
        dismissed=head.dismissed,
    )


class MemoryOrdinalDirectory:
    """`OrdinalDirectory` in memory."""

    def __init__(self, tier: MemoryHotTier) -> None:
        self.tier = tier

    async def assign(self, tenant_id: str, user_ids: Sequence[str]) -> list[int]:
        """See the port."""
        for user in user_ids:
            users = self.tier.ordinals.setdefault((tenant_id, lane(tenant_id, user)), [])
            if user not in users:
                users.append(user)
        return [ordinal for ordinal in await self.find(tenant_id, user_ids) if ordinal is not None]

    async def find(self, tenant_id: str, user_ids: Sequence[str]) -> list[int | None]:
        """See the port."""
        found: list[int | None] = []
        for user in user_ids:
            users = self.tier.ordinals.get((tenant_id, lane(tenant_id, user)), [])
            known = user in users
            found.append(ordinal_of(users.index(user), lane(tenant_id, user)) if known else None)
        return found

    async def names(self, tenant_id: str, ordinals: Sequence[int]) -> list[str | None]:
        """See the port."""
        names: list[str | None] = []
        for ordinal in ordinals:
            users = self.tier.ordinals.get((tenant_id, lane_of_ordinal(ordinal)), [])
            count = ordinal >> LANE_BITS
            names.append(users[count] if count < len(users) else None)
        return names


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
        self.tier.leases[resource] = _Lease(node, boot, address, self.tier.clock_ms() + ttl_ms)
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

    async def holders(self, resources: list[str]) -> list[Holder | None]:
        """See the port."""
        living = [(resource, self._living(resource)) for resource in resources]
        return [None if lease is None else self._holder(resource, lease) for resource, lease in living]

    def _living(self, resource: str) -> _Lease | None:
        lease = self.tier.leases.get(resource)
        return lease if lease is not None and lease.until_ms > self.tier.clock_ms() else None

    def _is_ours(self, grant: Grant, node: str, boot: int) -> bool:
        lease = self._living(grant.resource)
        return (
            lease is not None
            and (lease.node, lease.boot) == (node, boot)
            and self.tier.epochs.get(grant.resource) == grant.epoch
        )

    def _holder(self, resource: str, lease: _Lease) -> Holder:
        left_ms = lease.until_ms - self.tier.clock_ms()
        return Holder(resource, lease.node, lease.boot, lease.address, self.tier.epochs[resource], left_ms)
