"""States of users and heads of conversations in memory: the verified fakes of the session list's ports.

Rows of users are those of a `MemoryProjection`, heads and records those of a `MemoryHotTier`.

Spec: §9.
"""

from collections.abc import Callable, Sequence

from qim_streams.errors import StoreUnavailable
from qim_streams.hlc import millis_of
from qim_streams.placement import lane_of_ordinal
from qim_streams.sessions import keys
from qim_streams.sessions.memory_projection import MemoryProjection
from qim_streams.sessions.ports import (
    Candidate,
    CandidatePage,
    DirtyState,
    HeadQuery,
    HeadView,
    Replaced,
    SessionUser,
    StateChange,
)
from qim_streams.sessions.rules import ListPlace
from qim_streams.testing.memory_history import MemoryHistoryStore
from qim_streams.testing.memory_tier import MemoryHotTier

_User = tuple[str, int]


class MemoryUserStates:
    """`UserStateStore`, `ChangeOrders`, `DirtyStates`; `unavailable`: every call fails as a lost store's."""

    def __init__(self, projection: MemoryProjection, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.projection, self._now_ms = projection, now_ms
        self.stored: dict[_User, dict[str, bytes]] = {}
        self.pins: dict[_User, dict[str, int]] = {}
        self.dirty: dict[tuple[str, int], dict[str, int]] = {}
        self.noted: dict[tuple[str, int], int] = {}
        self.restored: set[_User] = set()
        self.orders: dict[_User, int] = {}
        self.unavailable = False

    def lose(self) -> None:
        """Everything is gone: an empty store."""
        for part in (self.stored, self.pins, self.dirty, self.noted, self.restored, self.orders):
            part.clear()

    def _of(self, user: SessionUser) -> _User:
        if self.unavailable:
            raise StoreUnavailable("memory: user states are unavailable")
        return user.tenant_id, user.ordinal

    async def page(self, user: SessionUser, before: ListPlace | None, limit: int) -> CandidatePage:
        """See the port."""
        key = self._of(user)
        rows, wide = self.projection.rows.get(key, {}), self.projection.wide.get(key, set())
        stored, pins = self.stored.get(key, {}), self.pins.get(key, {})

        def candidate(name: str) -> Candidate:
            return Candidate(name, rows.get(name, 0), stored.get(name))

        ordered = sorted(((at, name) for name, at in rows.items() if name not in wide), reverse=True)
        after = [name for at, name in ordered if before is None or (at, name) < before]
        pinned = sorted(((at, name) for name, at in pins.items()), reverse=True)
        return CandidatePage(
            key in self.restored,
            len(rows),
            [candidate(name) for _, name in pinned],
            [candidate(name) for name in sorted(wide)],
            [candidate(name) for name in after[:limit]],
            self.orders.get(key, 0),
        )

    async def load(
        self, user: SessionUser, conversation_ids: Sequence[str]
    ) -> tuple[bool, list[bytes | None]]:
        """See the port."""
        key = self._of(user)
        stored = self.stored.get(key, {})
        return key in self.restored, [stored.get(name) for name in conversation_ids]

    async def replace(self, user: SessionUser, changes: Sequence[StateChange]) -> Replaced:
        """See the port."""
        key = self._of(user)
        done = [self._replace(key, one) for one in changes]
        return Replaced(done, await self.next_order(user) if any(done) else 0)

    def _replace(self, key: _User, one: StateChange) -> bool:
        stored = self.stored.setdefault(key, {})
        if stored.get(one.conversation_id) != one.expected:
            return False
        stored[one.conversation_id] = one.state
        self._pin(key, one)
        lane = (key[0], lane_of_ordinal(key[1]))
        self.dirty.setdefault(lane, {})[keys.dirty_member(key[1], one.conversation_id)] = one.version
        self.noted[lane] = self._now_ms()
        return True

    def _pin(self, key: _User, one: StateChange) -> None:
        pins = self.pins.setdefault(key, {})
        pins.pop(one.conversation_id, None)
        if one.pinned_at:
            pins[one.conversation_id] = one.pinned_at

    async def restore(self, user: SessionUser, states: Sequence[StateChange]) -> None:
        """See the port."""
        key = self._of(user)
        stored = self.stored.setdefault(key, {})
        for one in states:
            if one.conversation_id not in stored:
                stored[one.conversation_id] = one.state
                self._pin(key, one)
        self.restored.add(key)

    async def activities(self, user: SessionUser, conversation_ids: Sequence[str]) -> list[int]:
        """See the port."""
        rows = self.projection.rows.get(self._of(user), {})
        return [rows.get(name, 0) for name in conversation_ids]

    async def next_order(self, user: SessionUser) -> int:
        """See the port."""
        key = self._of(user)
        self.orders[key] = max(self._now_ms(), self.orders.get(key, 0) + 1)
        return self.orders[key]

    async def last_order(self, user: SessionUser) -> int:
        """See the port."""
        return self.orders.get(self._of(user), 0)

    async def read_seqs(self, wanted: Sequence[tuple[SessionUser, str]]) -> list[bytes | None]:
        """See the port."""
        return [self.stored.get(self._of(user), {}).get(name) for user, name in wanted]

    async def lanes(self) -> list[tuple[str, int]]:
        """See the port."""
        return sorted(self.noted)

    async def take(self, lane: tuple[str, int], limit: int) -> list[DirtyState]:
        """See the port."""
        waiting = sorted((version, member) for member, version in self.dirty.get(lane, {}).items())
        found = []
        for version, member in waiting[:limit]:
            ordinal, _, name = member.partition(":")
            state = self.stored.get((lane[0], int(ordinal)), {}).get(name)
            found.append(DirtyState(int(ordinal), name, version, state))
        return found

    async def settle(self, lane: tuple[str, int], done: Sequence[DirtyState]) -> None:
        """See the port."""
        waiting = self.dirty.get(lane, {})
        for one in done:
            member = keys.dirty_member(one.ordinal, one.conversation_id)
            if waiting.get(member) == one.version:
                del waiting[member]

    async def forget_lane(self, lane: tuple[str, int], before_ms: int) -> None:
        """See the port."""
        if self.noted.get(lane, before_ms) < before_ms:
            del self.noted[lane]


class MemoryConversationHeads:
    """`ConversationHeads` over the conversations of a `MemoryHotTier`; at most `records_max` records each."""

    def __init__(self, tier: MemoryHotTier, records_max: int = 8) -> None:
        self._tier, self._history, self._records_max = tier, MemoryHistoryStore(tier), records_max
        self.unavailable = False

    async def heads(self, tenant_id: str, user_id: str, wanted: Sequence[HeadQuery]) -> list[HeadView | None]:
        """See the port."""
        if self.unavailable:
            raise StoreUnavailable("memory: the hot tier is unavailable")
        return [await self._head(tenant_id, user_id, one) for one in wanted]

    async def of_users(
        self, tenant_id: str, wanted: Sequence[tuple[str, HeadQuery]]
    ) -> list[HeadView | None]:
        """See the port."""
        if self.unavailable:
            raise StoreUnavailable("memory: the hot tier is unavailable")
        return [await self._head(tenant_id, user_id, one) for user_id, one in wanted]

    async def _head(self, tenant_id: str, user_id: str, one: HeadQuery) -> HeadView | None:
        key = (tenant_id, one.conversation_id)
        view = await self._history.view(*key, user_id)
        if view is None:
            return None
        state, fields = self._tier.state_of(key), self._tier.groups[key].fields
        head, high = state.heads[key], view.allocated_seq
        if high <= one.skip_to:
            return None
        last_id = head.last_id if head.seq else b""
        known = (high, last_id) == (one.known_seq, one.known_id)
        low = max(1, high - self._records_max + 1, min(high, one.above_seq + 1))
        records = state.records.get(key, {})
        members = state.members.get(key, {})
        peers = [one for name, one in members.items() if name != user_id and head.kind == "direct"]
        return HeadView(
            head.kind,
            str(fields.get("name", "")),
            peers[0].user_id if peers else None,
            peers[0].ordinal if peers else None,
            head.dismissed,
            view.history_policy,
            high,
            view.committed_seq,
            millis_of(head.last_id) if head.seq else 0,
            view.member,
            [records.get(seq) for seq in range(high, low - 1, -1)] if high and not known else [],
            last_id,
            known,
        )
