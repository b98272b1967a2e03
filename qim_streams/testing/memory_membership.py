"""Membership in memory: verified fakes of the membership store, its reader and the ordinal directory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qim_streams.commit.rules import ConversationKey, Head, PartitionState
from qim_streams.membership.ports import (
    AppliedChange,
    Conversation,
    Join,
    Member,
    MembershipChange,
    RestoredVersion,
    Unsettled,
)
from qim_streams.membership.rules import (
    UNKNOWN_AT_MS,
    VERSION_BLOCK,
    chain_of,
    closed,
    fold_map,
    garbage,
    is_checkpoint,
    opened,
)
from qim_streams.placement import LANE_BITS, lane, lane_of_ordinal, ordinal_of
from qim_streams.testing.memory_tier import (
    MemoryCalls,
    MemoryGroup,
    MemoryHotTier,
)

_FIELDS = (
    "kind", "name", "send_policy", "join_policy", "history_policy", "members_max", "created_at",
    "creator_id", "dismissed",
)  # fmt: skip


class MemoryMembershipStore:
    """`MembershipStore` and `MembershipReader` in memory."""

    def __init__(self, tier: MemoryHotTier, calls: MemoryCalls | None = None) -> None:
        self.tier, self._calls = tier, calls or MemoryCalls(tier)

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
    ) -> list[AppliedChange | None]:
        """See the port."""
        with self._calls.numbered(partition, epoch):
            return [self._apply_one(partition, change) for change in changes]

    async def unsettled(self, partition: int, epoch: int, limit: int) -> list[Unsettled]:
        """See the port."""
        self.tier.partition(partition).fence(f"ob:{partition}", epoch)
        rows = sorted(self.tier.unsettled.get(partition, {}).items())[:limit]
        return [Unsettled(tenant, chat, version) for (tenant, chat), version in rows]

    async def settle(self, partition: int, epoch: int, done: Sequence[Unsettled], offset: int) -> None:
        """See the port."""
        if not done:
            return
        with self._calls.numbered(partition, epoch):
            waiting = self.tier.unsettled.get(partition, {})
            for one in done:
                key = (one.tenant_id, one.conversation_id)
                if waiting.get(key) == one.version:
                    del waiting[key]
            self._cover(partition, offset)

    async def logged(self, partition: int, epoch: int) -> int:
        """See the port."""
        self.tier.partition(partition).fence(f"ob:{partition}", epoch)
        return self.tier.logged.get(partition, -1)

    async def restore(
        self, partition: int, epoch: int, versions: Sequence[RestoredVersion], offset: int
    ) -> int:
        """See the port."""
        with self._calls.numbered(partition, epoch) as state:
            missing = [made for made in versions if self._restore_one(state, made)]
            self._cover(partition, offset)
        return len(missing)

    def _cover(self, partition: int, offset: int) -> None:
        self.tier.logged[partition] = max(offset, self.tier.logged.get(partition, -1))

    def _restore_one(self, state: PartitionState, made: RestoredVersion) -> bool:
        key = (made.head.tenant_id, made.head.conversation_id)
        head = state.heads.setdefault(key, Head())
        if head.version >= made.head.version:
            return False
        group = self.tier.groups.setdefault(key, MemoryGroup())
        state.members.setdefault(key, {}).update({m.user_id: m for m in made.members})
        group.token = b""
        group.fields.update({name: getattr(made.head, name) for name in _FIELDS})
        group.versions.update(
            {
                number: (made.at_ms if number == made.head.version else UNKNOWN_AT_MS, dict(rows))
                for number, rows in made.maps.items()
            }
        )
        group.bitmaps.update({(s, made.head.version): blob for s, blob in made.bitmaps.items() if blob})
        head.kind, head.send_policy = made.head.kind, made.head.send_policy
        head.dismissed, head.active = made.head.dismissed, made.head.members_active
        head.version = made.head.version
        if not made.logged:
            self.tier.unsettled.setdefault(self.tier.partition_of(*key), {})[key] = head.version
        return True

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
        if group.versions[version][0] == UNKNOWN_AT_MS:
            return None
        return fold_map(group.versions[number][1] for number in chain)

    def _apply_one(self, partition: int, change: MembershipChange) -> AppliedChange | None:
        key = (change.tenant_id, change.conversation_id)
        state = self.tier.partition(partition)
        head = state.heads.setdefault(key, Head())
        group = self.tier.groups.setdefault(key, MemoryGroup())
        if head.version != change.expected_version:
            return self._outcome(state, key, change) if group.token == change.token else None
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
        return self._outcome(state, key, change)

    def _outcome(
        self, state: PartitionState, key: ConversationKey, change: MembershipChange
    ) -> AppliedChange:
        users = dict.fromkeys([*(join.user_id for join in change.joins), *change.leaves, *change.roles])
        rows = state.members[key]
        head = _conversation(key, state.heads[key], self.tier.groups[key])
        return AppliedChange(head, tuple(rows[user] for user in users))

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


def _conversation(key: ConversationKey, head: Head, group: MemoryGroup) -> Conversation:
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
            counts = self._counts(tenant_id, lane(tenant_id, user))
            counts.setdefault(user, max(counts.values(), default=-1) + 1)
        return [ordinal for ordinal in await self.find(tenant_id, user_ids) if ordinal is not None]

    async def find(self, tenant_id: str, user_ids: Sequence[str]) -> list[int | None]:
        """See the port."""
        found: list[int | None] = []
        for user in user_ids:
            count = self.tier.ordinals.get((tenant_id, lane(tenant_id, user)), {}).get(user)
            found.append(None if count is None else ordinal_of(count, lane(tenant_id, user)))
        return found

    async def names(self, tenant_id: str, ordinals: Sequence[int]) -> list[str | None]:
        """See the port."""
        names: list[str | None] = []
        for ordinal in ordinals:
            counts = self.tier.ordinals.get((tenant_id, lane_of_ordinal(ordinal)), {})
            users = {count: user for user, count in counts.items()}
            names.append(users.get(ordinal >> LANE_BITS))
        return names

    async def restore(self, tenant_id: str, seats: Sequence[tuple[str, int]]) -> int:
        """See the port."""
        missing = 0
        for user, ordinal in seats:
            counts = self._counts(tenant_id, lane_of_ordinal(ordinal))
            missing += counts.get(user) != ordinal >> LANE_BITS
            counts[user] = ordinal >> LANE_BITS
        return missing

    def forget(self) -> None:
        """Nothing is remembered here."""

    def _counts(self, tenant_id: str, lane_id: int) -> dict[str, int]:
        return self.tier.ordinals.setdefault((tenant_id, lane_id), {})
