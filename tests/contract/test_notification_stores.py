"""Registered devices and the queue of notifications: one suite on Redis and on the fakes."""

import pytest

from qim_streams.errors import InvariantViolation
from qim_streams.notification.ports import DeviceStore, Done, Later, NewTask, TaskQueue
from qim_streams.notification.records import PushDevice, PushSettings
from qim_streams.notification.redis_devices import WHOLE_KEY, RedisPushDevices
from qim_streams.notification.redis_queue import TASKS_PER_CALL, RedisTaskQueue
from qim_streams.redis_tier import RedisClient
from qim_streams.testing.memory_push import MemoryPushDevices, MemoryTaskQueue

BOTH = pytest.mark.parametrize("kind", ["memory", "redis"])
CLAIM_MS, KEPT_MS, WAITING_MAX = 1_000, 10_000, 2_000


def device(name: str, version: int = 1, token: str = "tok") -> PushDevice:
    return PushDevice("acme", "ben", 64, name, "apns", "", token, version)


@pytest.fixture
def devices(kind: str, hot_client: RedisClient) -> DeviceStore:
    return RedisPushDevices(hot_client, 3) if kind == "redis" else MemoryPushDevices(3)


@pytest.fixture
def queue(kind: str, hot_client: RedisClient) -> TaskQueue:
    bounds = {"waiting_max": WAITING_MAX, "claim_ms": CLAIM_MS, "kept_ms": KEPT_MS}
    if kind == "redis":
        return RedisTaskQueue(hot_client, ["apns", "fcm"], **bounds)
    return MemoryTaskQueue(**bounds)


def task(number: int, due: int = 0, provider: str = "apns") -> NewTask:
    return NewTask(number.to_bytes(16, "big"), provider, due, b"task %d" % number)


@BOTH
async def test_the_newest_registration_stands(devices: DeviceStore) -> None:
    await devices.put(device("phone", 5))
    await devices.put(device("phone", 4, "older"))
    (row,) = await devices.load([("acme", "ben", "phone")])
    assert row.device == device("phone", 5)
    assert await devices.devices("acme", "ben") == [device("phone", 5)]
    await devices.remove("acme", "ben", "phone")
    assert [one.device for one in await devices.load([("acme", "ben", "phone")])] == [None]


@BOTH
async def test_the_oldest_gives_way_and_settings_are_no_device(devices: DeviceStore) -> None:
    settings = PushSettings("acme", "ben", 60, 120, "UTC", True, 7)
    assert await devices.settings("acme", "ben") is None
    await devices.put_settings(settings)
    assert await devices.settings("acme", "ben") == settings
    assert await devices.settings("acme", "cleo") is None
    assert await devices.devices("acme", "ben") == []
    assert [await devices.put(device(f"d{number}", number)) for number in (2, 1, 3)] == [None] * 3
    assert await devices.put(device("d4", 4)) == "d1"
    await devices.put_settings(settings._replace(version=6, quiet_from_min=0))
    (row,) = await devices.load([("acme", "ben", "d4")])
    assert (row.device, row.settings) == (device("d4", 4), settings)
    assert len(await devices.devices("acme", "ben")) == 3


@BOTH
async def test_only_the_version_that_was_refused_is_buried(devices: DeviceStore) -> None:
    await devices.put(device("phone", 5))
    assert not await devices.bury(device("phone", 4), "Unregistered")
    assert await devices.bury(device("phone", 5), "Unregistered")
    (row,) = await devices.load([("acme", "ben", "phone")])
    assert row.device is not None
    assert (row.device.dead, row.device.token) == ("Unregistered", "")
    await devices.put(device("phone", 6))
    assert not await devices.bury(device("phone", 5), "Unregistered")


@BOTH
async def test_a_token_has_one_owner(devices: DeviceStore) -> None:
    assert await devices.claim_token(device("phone")) is None
    assert await devices.claim_token(device("phone")) is None
    assert await devices.claim_token(device("other")) == ("acme", "ben", "phone")
    assert await devices.claim_token(device("third", token="another")) is None


async def test_wholeness_ends_with_the_run_of_the_server(hot_client: RedisClient) -> None:
    store = RedisPushDevices(hot_client)
    assert not await store.is_whole()
    await store.mark_whole()
    assert await store.is_whole()
    await hot_client.set(WHOLE_KEY, "another run")
    assert not await store.is_whole()


async def test_a_session_is_read_beside_the_device(hot_client: RedisClient) -> None:
    await hot_client.hset("{u:acme:ben}:dev", "phone", "1234 5678")
    (row,) = await RedisPushDevices(hot_client).load([("acme", "ben", "phone")])
    assert (row.device, row.session_epoch, row.ended) == (None, 1234, False)
    await hot_client.hset("{u:acme:ben}:dev", "phone", "1234 5678 ios tablet")
    (row,) = await RedisPushDevices(hot_client).load([("acme", "ben", "phone")])
    assert row.ended


@BOTH
async def test_a_task_is_queued_once(queue: TaskQueue) -> None:
    """H1: while it waits, and after it is over for as long as it is remembered."""
    assert await queue.accept(2, [task(1), task(2)], 7, 100) == (2, 0, 0)
    assert await queue.accept(2, [task(1), task(2), task(3)], 8, 100) == (1, 2, 0)
    assert (await queue.position(2), await queue.position(1)) == (8, 0)
    taken = await queue.take([2], "apns", 100, 10)
    done = [Done(one.slot, one.task_id, "apns", True) for one in taken.tasks]
    await queue.settle(done, [], 100)
    assert await queue.accept(2, [task(1)], 9, 100 + KEPT_MS - 1) == (0, 1, 0)
    assert await queue.accept(2, [task(1)], 9, 100 + KEPT_MS + 1) == (1, 0, 0)


@BOTH
async def test_the_position_never_goes_back(queue: TaskQueue) -> None:
    await queue.accept(0, [], 9, 1)
    await queue.accept(0, [], 5, 1)
    assert await queue.position(0) == 9


@BOTH
async def test_a_queue_that_fell_back_takes_nothing(queue: TaskQueue) -> None:
    """T-R2: it lost its last writes, and tasks with them; whoever comes from its position goes on."""
    await queue.accept(0, [task(1)], 5, 1)
    with pytest.raises(InvariantViolation):
        await queue.accept(0, [task(2)], 9, 1, 8)
    assert (await queue.position(0), await queue.waiting([0], "apns")) == (5, 1)
    assert await queue.accept(0, [task(2)], 9, 1, 5) == (1, 0, 0)
    assert await queue.accept(0, [task(3)], 10, 1, 7) == (1, 0, 0)  # another worker was faster
    assert await queue.accept(1, [task(4)], 10, 1, 7) == (1, 0, 0)  # everything was lost: go on


@BOTH
async def test_a_claimed_task_is_nobody_elses_until_the_claim_ends(queue: TaskQueue) -> None:
    await queue.accept(0, [task(1, due=50)], 1, 0)
    assert (await queue.take([0], "apns", 49, 10)) == ([], 50)
    (mine,) = (await queue.take([0], "apns", 50, 10)).tasks
    assert (mine.task, mine.attempts, mine.interrupted) == (b"task 1", 0, False)
    assert await queue.take([0], "apns", 50 + CLAIM_MS - 1, 10) == ([], 50 + CLAIM_MS)
    assert not (await queue.take([0], "fcm", 9_999, 10)).tasks
    await queue.begin([mine])
    (again,) = (await queue.take([0], "apns", 50 + CLAIM_MS, 10)).tasks
    assert again.interrupted  # nobody knows how the attempt ended
    await queue.settle([], [Later(0, again.task_id, "apns", 5_000, True)], 2_000)
    (third,) = (await queue.take([0], "apns", 5_000, 10)).tasks
    assert (third.attempts, third.interrupted) == (1, False)


@BOTH
async def test_what_is_over_stays_over(queue: TaskQueue) -> None:
    """Somebody whose claim had ended says "later" of a task that another one has sent."""
    await queue.accept(0, [task(1)], 1, 0)
    (mine,) = (await queue.take([0], "apns", 0, 10)).tasks
    await queue.settle([Done(0, mine.task_id, "apns", True)], [], 0)
    await queue.settle([], [Later(0, mine.task_id, "apns", 0, True)], 0)
    assert await queue.take([0], "apns", 9_999, 10) == ([], None)
    assert await queue.waiting([0], "apns") == 0


@BOTH
async def test_the_bound_holds_for_each_provider(queue: TaskQueue) -> None:
    many = [task(number) for number in range(WAITING_MAX + 5)]
    assert len(many) > 2 * TASKS_PER_CALL  # in several calls
    assert await queue.accept(0, many, 9, 0) == (WAITING_MAX, 0, 5)
    assert await queue.position(0) == 9
    assert await queue.accept(0, [task(99_999, provider="fcm")], 10, 0) == (1, 0, 0)
    assert await queue.waiting([0, 1], "apns") == WAITING_MAX
    taken = await queue.take([0, 1], "apns", 0, 10)
    assert len(taken.tasks) == 5
