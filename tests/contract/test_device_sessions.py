"""One suite for `DeviceSessions`: the fake of the gateway tests does what Redis does (T-C1)."""

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.gateway.ports import DeviceKey, DeviceSessions
from qim_streams.gateway.redis_devices import RedisDeviceSessions, RedisShardEpochs
from qim_streams.redis_tier import RedisClient
from tests.support.gateway_world import FakeDevices

PHONE, LAPTOP = DeviceKey("acme", "ben", "phone"), DeviceKey("acme", "ben", "laptop")
OTHER = DeviceKey("other", "ben", "phone")
NOW = 1_760_000_000_000


@pytest.fixture(params=["memory", "redis"])
def subject(request: pytest.FixtureRequest, hot_client: RedisClient) -> DeviceSessions:
    return FakeDevices() if request.param == "memory" else RedisDeviceSessions(hot_client)


async def test_epochs_grow_whatever_the_clock_says(subject: DeviceSessions) -> None:
    """A second session of the same millisecond, and one after the clock went back, are newer."""
    epochs = [await subject.open(PHONE, now) for now in (NOW, NOW, NOW - 10_000, NOW + 5)]
    assert epochs == [NOW, NOW + 1, NOW + 2, NOW + 5]


async def test_devices_and_tenants_are_apart(subject: DeviceSessions) -> None:
    """Each device has a row of its own; the same ids in another tenant are another user."""
    phone, laptop, other = [await subject.open(one, NOW) for one in (PHONE, LAPTOP, OTHER)]
    newer = await subject.open(PHONE, NOW + 1)
    assert await subject.touch([PHONE, LAPTOP, OTHER], NOW + 2) == [newer, laptop, other]
    assert newer > phone
    assert await subject.touch([DeviceKey("acme", "nobody", "phone")], NOW) == [0]
    assert await subject.touch([], NOW) == []


async def test_the_device_unseen_for_longest_gives_way(hot_client: RedisClient) -> None:
    """P16: rows per user are bounded; a device that lost its row still gets a larger epoch."""
    sessions = RedisDeviceSessions(hot_client, devices_max=3)
    devices = [DeviceKey("acme", "ben", f"d{number}") for number in range(4)]
    first = [await sessions.open(device, NOW + number) for number, device in enumerate(devices[:3])]
    await sessions.touch([devices[0]], NOW + 100)
    await sessions.open(devices[3], NOW + 200)
    assert await sessions.touch(devices[:3], NOW + 300) == [first[0], 0, first[2]]
    assert await sessions.open(devices[1], NOW + 400) > first[1]
    assert await hot_client.hlen("{u:acme:ben}:dev") == 3


async def test_many_at_once(hot_client: RedisClient) -> None:
    """A refresh of more sessions than one pipeline takes, in order, also after the scripts were flushed."""
    sessions = RedisDeviceSessions(hot_client)
    devices = [DeviceKey("acme", f"u{number}", "phone") for number in range(1_203)]
    for device in devices[::100]:
        await sessions.open(device, NOW)
    await hot_client.script_flush()
    epochs = await sessions.touch(devices, NOW + 1)
    assert [bool(epoch) for epoch in epochs] == [number % 100 == 0 for number in range(1_203)]


async def test_shard_epochs(hot_client: RedisClient) -> None:
    """What the lease store wrote, 0 before there was an owner, an error for anything else."""
    epochs = RedisShardEpochs(hot_client)
    assert await epochs.current(5) == 0
    await hot_client.set("{s:5}:epoch", 12)
    assert await epochs.current(5) == 12
    await hot_client.set("{s:5}:epoch", "x")
    with pytest.raises(StoreUnavailable):
        await epochs.current(5)
