"""A session projection in memory: the verified fake of `RedisProjection`, and of what may happen to it.

Spec: §9.
"""

from collections.abc import Mapping, Sequence

from qim_streams.sessions.projection_ports import Advance, CoverOf
from qim_streams.sessions.projection_records import (
    Checkpoint,
    Cover,
    Registration,
    SessionRow,
    Slot,
    slot_of,
)

_User = tuple[str, int]


class MemoryProjection:
    """`ProjectionStore`, `RegistrationQueue` and `Rebuilds` in memory."""

    def __init__(self) -> None:
        self.rows: dict[_User, dict[str, int]] = {}
        self.wide: dict[_User, set[str]] = {}
        self.queue: dict[Slot, dict[str, Registration]] = {}
        self.built: dict[_User, int] = {}
        self.stands: dict[int, Checkpoint] = {}
        self.covered: dict[CoverOf, Cover] = {}
        self.known_tenants: set[str] = set()
        self.lives = 1

    def lose(self) -> None:
        """Everything is gone: an empty store."""
        for part in (self.rows, self.wide, self.queue, self.built, self.stands, self.covered):
            part.clear()
        self.known_tenants.clear()

    async def write(self, rows: Mapping[Slot, Sequence[SessionRow]]) -> int:
        """See `ProjectionStore.write`."""
        return sum(self._put(tenant, row) for (tenant, _), found in rows.items() for row in found)

    def _put(self, tenant_id: str, row: SessionRow) -> bool:
        self.known_tenants.add(tenant_id)
        user, conversation = (tenant_id, row.ordinal), row.conversation_id
        held = self.rows.setdefault(user, {})
        is_new = conversation not in held
        held[conversation] = max(row.activity, held.get(conversation, row.activity))
        if row.wide:
            self.wide.setdefault(user, set()).add(conversation)
        if is_new:
            new = Registration(tenant_id, row.ordinal, conversation, row.first_seq, row.activity, row.wide)
            self.queue.setdefault(slot_of(tenant_id, row.ordinal), {}).setdefault(new.field, new)
        return is_new

    async def checkpoints(self, shards: Sequence[int]) -> list[Checkpoint | None]:
        """See `ProjectionStore.checkpoints`."""
        return [self.stands.get(shard) for shard in shards]

    async def begin(self, shard: int, expected: Checkpoint | None, new: Checkpoint) -> Checkpoint:
        """See `ProjectionStore.begin`."""
        if self.stands.get(shard) == expected:
            self.stands[shard] = new
        return self.stands[shard]

    async def life(self) -> str:
        """See `ProjectionStore.life`."""
        return str(self.lives)

    async def advance(self, moves: Sequence[Advance]) -> list[Checkpoint | None]:
        """See `ProjectionStore.advance`."""
        lived = [move for move in moves if move.life == str(self.lives)]
        for shard, epoch, expected, observed, _ in lived:
            stands = self.stands.get(shard)
            if stands is not None and (stands.epoch, stands.offset) == (epoch, expected):
                self.stands[shard] = stands._replace(offset=observed)
        return [self.stands.get(move.shard) if move in lived else None for move in moves]

    async def covers(self, wanted: Sequence[CoverOf]) -> list[Cover | None]:
        """See `ProjectionStore.covers`."""
        return [self.covered.get(of) for of in wanted]

    async def cover(self, of: CoverOf, cover: Cover) -> None:
        """See `ProjectionStore.cover`."""
        self.covered[of] = cover

    async def tenants(self) -> list[str]:
        """See `RegistrationQueue.tenants`."""
        return sorted(self.known_tenants)

    async def pending(self, slots: Sequence[Slot], limit: int) -> list[Registration]:
        """See `RegistrationQueue.pending`."""
        return [one for slot in slots for one in list(self.queue.get(slot, {}).values())[:limit]]

    async def settle(self, done: Sequence[Registration]) -> None:
        """See `RegistrationQueue.settle`."""
        for one in done:
            self.queue.get(slot_of(one.tenant_id, one.ordinal), {}).pop(one.field, None)

    async def has_rows(self, tenant_id: str, ordinal: int) -> bool:
        """See `Rebuilds.has_rows`."""
        return bool(self.rows.get((tenant_id, ordinal)))

    async def rebuilt_in(self, tenant_id: str, ordinal: int) -> int | None:
        """See `Rebuilds.rebuilt_in`."""
        return self.built.get((tenant_id, ordinal))

    async def note_rebuilt(self, tenant_id: str, ordinal: int, epoch: int) -> None:
        """See `Rebuilds.note_rebuilt`."""
        self.built[tenant_id, ordinal] = epoch
