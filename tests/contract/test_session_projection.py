"""One suite for every session projection store: the fake is held to what Redis does (T-C1).

Spec: §9, §14.5, §14.6.
"""

from collections.abc import Sequence

import pytest

from qim_streams.errors import RecordError
from qim_streams.redis_tier import RedisClient
from qim_streams.sessions.memory_projection import MemoryProjection
from qim_streams.sessions.projection_ports import Advance, CoverOf
from qim_streams.sessions.projection_records import (
    Checkpoint,
    Cover,
    Registration,
    SessionRow,
    Slot,
    slot_of,
)
from qim_streams.sessions.redis_projection import ROWS_PER_CALL, RedisProjection, user_key

TENANT, SHARD = "acme", 3
TOP = 2**48 - 1  # the greatest activity there is


class Subject:
    """A store under test, and what it holds of a user."""

    def __init__(self, client: RedisClient | None) -> None:
        self.client = client
        self.store = MemoryProjection() if client is None else RedisProjection(client)

    async def rows(self, ordinal: int, tenant: str = TENANT) -> dict[str, int]:
        """conversation -> activity."""
        if isinstance(self.store, MemoryProjection):
            return dict(self.store.rows.get((tenant, ordinal), {}))
        assert self.client is not None
        found = await self.client.zrange(user_key(tenant, ordinal, "convs"), 0, -1, withscores=True)
        return {name.decode(): int(score) for name, score in found}

    async def wide(self, ordinal: int) -> set[str]:
        """The wide conversations."""
        if isinstance(self.store, MemoryProjection):
            return set(self.store.wide.get((TENANT, ordinal), set()))
        assert self.client is not None
        return {name.decode() for name in await self.client.smembers(user_key(TENANT, ordinal, "wide"))}

    async def queue(self, *ordinals: int) -> set[Registration]:
        """What waits in the slots of these users."""
        slots = {slot_of(TENANT, ordinal) for ordinal in ordinals}
        return set(await self.store.pending(sorted(slots), 1_000))


@pytest.fixture(params=["memory", "redis"])
async def subject(request: pytest.FixtureRequest, hot_client: RedisClient) -> Subject:
    return Subject(hot_client if request.param == "redis" else None)


def grouped(rows: Sequence[SessionRow], tenant: str = TENANT) -> dict[Slot, list[SessionRow]]:
    found: dict[Slot, list[SessionRow]] = {}
    for row in rows:
        found.setdefault(slot_of(tenant, row.ordinal), []).append(row)
    return found


async def test_a_row_only_grows(subject: Subject) -> None:
    """ZADD GT: a straggler, a repeat and the greatest activity there can be."""
    for activity in (500, 400, 500, TOP, 1):
        await subject.store.write(grouped([SessionRow(65, "c1", activity, 7)]))
    assert await subject.rows(65) == {"c1": TOP}


async def test_what_is_new_to_a_user_is_registered_once(subject: Subject) -> None:
    """The first message of a conversation: row and registration are one step, a replay adds nothing."""
    rows = [SessionRow(65, "c1", 500, 7), SessionRow(1, "c1", 500, 7), SessionRow(65, "c2", 600, 1)]
    assert await subject.store.write(grouped(rows)) == 3
    assert await subject.store.write(grouped(rows)) == 0
    assert await subject.store.write(grouped([SessionRow(65, "c1", 900, 9)])) == 0
    expected = {Registration(TENANT, row.ordinal, row.conversation_id, row.first_seq, row.activity, False)
                for row in rows}  # fmt: skip
    assert await subject.queue(65, 1) == expected
    assert await subject.store.tenants() == [TENANT]


async def test_settled_registrations_do_not_come_back(subject: Subject) -> None:
    await subject.store.write(grouped([SessionRow(65, "c1", 5, 1), SessionRow(65, "c2", 5, 1)]))
    done = [one for one in await subject.queue(65) if one.conversation_id == "c1"]
    await subject.store.settle(done)
    await subject.store.settle(done)
    await subject.store.settle([])
    assert {one.conversation_id for one in await subject.queue(65)} == {"c2"}
    assert await subject.store.write(grouped([SessionRow(65, "c1", 6, 2)])) == 0


async def test_wide_and_narrow_rows_side_by_side(subject: Subject) -> None:
    rows = [SessionRow(65, "big", 500, 7, True), SessionRow(65, "c1", 400, 1)]
    assert await subject.store.write(grouped(rows)) == 2
    assert await subject.rows(65) == {"big": 500, "c1": 400}
    assert await subject.wide(65) == {"big"}
    assert {one.conversation_id for one in await subject.queue(65) if one.wide} == {"big"}


async def test_many_rows_of_many_slots(subject: Subject) -> None:
    """More rows of a slot than a call takes, more slots than one."""
    rows = [SessionRow(64 * number, "c1", 5, 1) for number in range(ROWS_PER_CALL + 3)]
    rows += [SessionRow(number, "c2", 6, 1) for number in range(64)]
    assert await subject.store.write(grouped(rows)) == len(rows)
    assert await subject.rows(64 * (ROWS_PER_CALL + 2)) == {"c1": 5}
    assert await subject.rows(63) == {"c2": 6}
    assert await subject.store.write({}) == 0


async def test_tenants_are_apart(subject: Subject) -> None:
    """I16: the same ordinal of another tenant is another user."""
    await subject.store.write(
        grouped([SessionRow(65, "c1", 5, 1)]) | grouped([SessionRow(65, "c1", 9, 1)], "b")
    )
    assert (await subject.rows(65), await subject.rows(65, "b")) == ({"c1": 5}, {"c1": 9})
    assert await subject.store.tenants() == [TENANT, "b"]


async def test_an_epoch_begins_by_compare_and_set(subject: Subject) -> None:
    store, first, second = subject.store, Checkpoint(0, -1, 9), Checkpoint(7, 4, 9)
    assert await store.checkpoints([SHARD, 4]) == [None, None]
    assert await store.begin(SHARD, None, first) == first
    assert await store.begin(SHARD, None, second) == first
    assert await store.begin(SHARD, second, second) == first
    assert await store.begin(SHARD, first, second) == second
    assert await store.checkpoints([SHARD, 4]) == [second, None]
    assert await store.checkpoints([]) == []


async def test_a_checkpoint_moves_by_compare_and_set(subject: Subject) -> None:
    store = subject.store
    await store.begin(SHARD, None, Checkpoint(7, -1, 9))
    life = await store.life()
    moves = [Advance(SHARD, 7, -1, 4, life), Advance(99, 7, -1, 4, life)]
    assert await store.advance(moves) == [Checkpoint(7, 4, 9), None]
    for wrong in ((7, -1, 8), (6, 4, 8), (8, 4, 8)):
        assert await store.advance([Advance(SHARD, *wrong, life)]) == [Checkpoint(7, 4, 9)]
    top = 2**53 - 1
    assert await store.advance([Advance(SHARD, 7, 4, top, life)]) == [Checkpoint(7, top, 9)]
    assert await store.advance([]) == []


async def test_a_checkpoint_covers_rows_of_this_life_only(subject: Subject) -> None:
    """T-R2: a store that was started again may have lost rows and kept the checkpoint before them."""
    store = subject.store
    await store.begin(SHARD, None, Checkpoint(7, -1, 9))
    life = await store.life()
    assert life
    assert await store.life() == life
    assert await store.advance([Advance(SHARD, 7, -1, 4, "another")]) == [None]
    assert await store.checkpoints([SHARD]) == [Checkpoint(7, -1, 9)]
    assert await store.advance([Advance(SHARD, 7, -1, 4, life)]) == [Checkpoint(7, 4, 9)]


async def test_covers_are_kept_per_shard_and_tenant(subject: Subject) -> None:
    store, of = subject.store, CoverOf(SHARD, TENANT, "big")
    await store.cover(of, Cover(7, 12))
    await store.cover(CoverOf(4, TENANT, "big"), Cover(0, 1))
    wanted = [of, CoverOf(4, TENANT, "big"), CoverOf(SHARD, "b", "big")]
    assert await store.covers(wanted) == [Cover(7, 12), Cover(0, 1), None]
    assert await store.covers([]) == []


async def test_who_was_rebuilt(subject: Subject) -> None:
    store = subject.store
    assert (await store.rebuilt_in(TENANT, 65), await store.has_rows(TENANT, 65)) == (None, False)
    await store.note_rebuilt(TENANT, 65, 7)
    await store.write(grouped([SessionRow(65, "c1", 5, 1)]))
    assert (await store.rebuilt_in(TENANT, 65), await store.has_rows(TENANT, 65)) == (7, True)
    assert (await store.rebuilt_in(TENANT, 1), await store.has_rows(TENANT, 1)) == (None, False)


async def test_a_server_that_forgot_its_scripts_is_told_again(hot_client: RedisClient) -> None:
    store = RedisProjection(hot_client)
    await store.write(grouped([SessionRow(65, "c1", 5, 1)]))
    await hot_client.script_flush()
    assert await store.write(grouped([SessionRow(65, "c1", 9, 1), SessionRow(1, "c1", 9, 1)])) == 1


async def test_a_damaged_registration_is_said_to_be_one(hot_client: RedisClient) -> None:
    await hot_client.hset("{q:acme:1}:reg", "65:c1", "no")
    with pytest.raises(RecordError, match="Registration"):
        await RedisProjection(hot_client).pending([(TENANT, 1)], 10)
