"""T-R2 for whatever follows a log into Redis, on a server that dies and forgets the end of its file.

A position elsewhere, or in a process that lives on, must not say that something is there which went with it.
Redis and its loss are real. `docs/decisions/0026-positions-elsewhere.md` has the list of such positions.
"""

import pytest

from qim_streams.errors import InvariantViolation
from qim_streams.notification.redis_queue import RedisTaskQueue
from qim_streams.rooms.redis_store import RedisRoomStore
from qim_streams.rooms.rules import RoomHead
from qim_streams.sessions.projection_records import SessionRow, slot_of
from qim_streams.sessions.redis_projection import RedisProjection
from tests.support.forgetful_redis import ForgetfulRedis
from tests.support.waiting import eventually
from tests.unit.notification.world import AGE_MAX_MS, CLAIM_MS, GRACE_MS, Batch, NotificationWorld, Record

pytestmark = pytest.mark.integration


async def test_notifications_that_were_acknowledged_come_again(forgetful: ForgetfulRedis) -> None:
    """H10: the log's acknowledged tasks are gone with the position; the next process reads them again."""
    world = NotificationWorld()
    bounds = {"waiting_max": 10_000, "claim_ms": CLAIM_MS, "kept_ms": 2 * AGE_MAX_MS}
    queue = RedisTaskQueue(forgetful.client, list(world.providers), **bounds)
    world.queue = queue  # type: ignore[assignment]
    await world.device()
    tasks = [world.message() for _ in range(4)]
    async with world.running() as service:
        await world.offer(service, tasks[0])
        forgetful.mark()
        await world.offer(service, tasks[1], tasks[2])
        await forgetful.forget()
        with pytest.raises(AssertionError, match="lost its last writes"):  # what ends a process, here
            await service.compare()
        with pytest.raises(InvariantViolation):
            await world.offer(service, tasks[3])
    assert await queue.position(0) == 1
    async with world.running() as service:
        rows = [Record(one.key, one.encode(), 1 + at) for at, one in enumerate(tasks[1:])]
        await service.handle([Batch(0, rows)])
        await service.compare()
        world.now_ms += GRACE_MS + 100
        for lane in world.lanes:
            lane.wake()
        seen = world.providers["apns"].seen
        await eventually(lambda: len(seen) >= len(tasks), 60, "everybody to be told")
    told = sorted(one.message_id for one in world.providers["apns"].seen)
    assert told == [one.message_id for one in tasks]


async def test_a_checkpoint_of_rooms_that_fell_back_is_told(forgetful: ForgetfulRedis) -> None:
    """The numbers went with the position, so nothing is noted above it."""
    store = RedisRoomStore(forgetful.client)
    await forgetful.client.set("{rm:1}:epoch", 7)
    await store.create(1, 7, "t", "r", RoomHead("a room", "open", "ann", 1))
    await store.checkpoint(1, 7, 0, 10, {("t", "r"): 4})
    forgetful.mark()
    await store.checkpoint(1, 7, 10, 20, {("t", "r"): 9})
    await forgetful.forget()
    assert await store.checkpoint(1, 7, 20, 30, {}) == 10
    stored = await store.load(1, "t", "r")
    assert stored is not None
    assert (stored.room_seq, await store.position(1)) == (4, 10)


async def test_a_tenant_that_was_forgotten_is_noted_again(forgetful: ForgetfulRedis) -> None:
    """Whoever looks for registrations finds slots by it; the projection had noted it, and lives on."""
    projection = RedisProjection(forgetful.client)
    life = await projection.life()
    forgetful.mark()
    row = SessionRow(0, "team", 5, 1)
    await projection.write({slot_of("acme", 0): [row]})
    await forgetful.forget()
    assert await projection.life() != life
    await projection.write({slot_of("acme", 0): [row]})
    assert await projection.tenants() == ["acme"]
