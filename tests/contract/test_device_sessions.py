"""One suite for `DeviceSessions`: the fake of the gateway tests does what Redis does (T-C1)."""

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.gateway.ports import DeviceKey, DeviceSessions, Login, Newest, Opened
from qim_streams.gateway.redis_devices import RedisDeviceSessions, RedisShardEpochs
from qim_streams.redis_tier import RedisClient
from tests.support.gateway_world import FakeDevices

PHONE, LAPTOP = DeviceKey("acme", "ben", "phone"), DeviceKey("acme", "ben", "laptop")
OTHER = DeviceKey("other", "ben", "phone")
NOW = 1_760_000_000_000


@pytest.fixture(params=["memory", "redis"])
def subject(request: pytest.FixtureRequest, hot_client: RedisClient) -> DeviceSessions:
    return FakeDevices() if request.param == "memory" else RedisDeviceSessions(hot_client)


async def epoch_of(subject: DeviceSessions, device: DeviceKey, now_ms: int) -> int:
    """The epoch of a new session."""
    return (await subject.open(device, now_ms)).epoch


async def epochs_of(subject: DeviceSessions, devices: list[DeviceKey], now_ms: int) -> list[int]:
    """The newest epochs of devices that nobody has ended."""
    found = await subject.touch(devices, now_ms)
    assert not any(one.ended_by for one in found)
    return [one.epoch for one in found]


async def test_epochs_grow_whatever_the_clock_says(subject: DeviceSessions) -> None:
    """A second session of the same millisecond, and one after the clock went back, are newer."""
    epochs = [(await subject.open(PHONE, now)).epoch for now in (NOW, NOW, NOW - 10_000, NOW + 5)]
    assert epochs == [NOW, NOW + 1, NOW + 2, NOW + 5]


async def test_devices_and_tenants_are_apart(subject: DeviceSessions) -> None:
    """Each device has a row of its own; the same ids in another tenant are another user."""
    phone, laptop, other = [await epoch_of(subject, one, NOW) for one in (PHONE, LAPTOP, OTHER)]
    newer = await epoch_of(subject, PHONE, NOW + 1)
    assert await epochs_of(subject, [PHONE, LAPTOP, OTHER], NOW + 2) == [newer, laptop, other]
    assert newer > phone
    assert await subject.touch([DeviceKey("acme", "nobody", "phone")], NOW) == [Newest(0)]
    assert await subject.touch([], NOW) == []


async def test_the_newest_device_ends_the_others_once(subject: DeviceSessions) -> None:
    """`newest`: every other session of the user is over and says by whom; other users' are not touched."""
    newest = Login("newest")
    for one in (PHONE, LAPTOP, OTHER):
        await subject.open(one, NOW)
    pad = DeviceKey("acme", "ben", "pad")
    assert await subject.open(pad, NOW + 1, newest) == Opened(NOW + 1, {"phone": NOW, "laptop": NOW})
    assert await subject.touch([PHONE, pad, OTHER], NOW + 2) == [
        Newest(NOW, "pad"),
        Newest(NOW + 1),
        Newest(NOW),
    ]
    assert await subject.open(PHONE, NOW + 3, newest) == Opened(NOW + 3, {"pad": NOW + 1})
    assert await subject.touch([PHONE, LAPTOP, pad], NOW + 4) == [
        Newest(NOW + 3),
        Newest(NOW, "pad"),
        Newest(NOW + 1, "phone"),
    ]


async def test_one_device_of_each_platform(subject: DeviceSessions) -> None:
    """`platform`: those that state none count as one platform, too."""
    names = {"p1": "ios", "web": "web", "old": "", "p2": "ios", "older": ""}
    devices = {name: DeviceKey("acme", "ben", name) for name in names}
    ended = {}
    for number, (name, platform) in enumerate(names.items()):
        opened = await subject.open(devices[name], NOW + number, Login("platform", platform))
        ended[name] = dict(opened.ended)
    assert ended == {"p1": {}, "web": {}, "old": {}, "p2": {"p1": NOW}, "older": {"old": NOW + 2}}
    found = await subject.touch(list(devices.values()), NOW + 9)
    assert [one.ended_by for one in found] == ["p2", "", "older", "", ""]


async def test_an_ended_session_does_not_go_on_by_itself(subject: DeviceSessions) -> None:
    """I13: whoever resumes is told by whom it was ended; a person who signs on again is let in."""
    newest = Login("newest")
    phone = await subject.open(PHONE, NOW, newest)
    again = await subject.open(PHONE, NOW + 1, newest._replace(resumes=phone.epoch))
    assert again == Opened(NOW + 1), "nobody has ended it"
    laptop = await subject.open(LAPTOP, NOW + 2, newest)
    for _ in range(2):
        refused = await subject.open(PHONE, NOW + 3, newest._replace(resumes=again.epoch))
        assert refused == Opened(0, ended_by="laptop")
    assert await subject.touch([LAPTOP], NOW + 4) == [Newest(laptop.epoch)]
    assert await subject.open(PHONE, NOW + 5, newest) == Opened(NOW + 5, {"laptop": laptop.epoch})
    relaxed = await subject.open(LAPTOP, NOW + 6, Login("all", resumes=laptop.epoch))
    assert relaxed == Opened(NOW + 6), "the rule was lifted meanwhile"


async def test_rows_of_before_platforms_are_read(hot_client: RedisClient) -> None:
    """What an earlier version wrote: no platform, nobody has ended it."""
    sessions = RedisDeviceSessions(hot_client)
    await hot_client.hset("{u:acme:ben}:dev", mapping={"phone": f"{NOW} {NOW}", "laptop": f"{NOW} {NOW}"})
    assert await sessions.touch([PHONE], NOW + 1) == [Newest(NOW)]
    opened = await sessions.open(DeviceKey("acme", "ben", "pad"), NOW + 2, Login("platform"))
    assert opened == Opened(NOW + 2, {"phone": NOW, "laptop": NOW})


async def test_the_device_unseen_for_longest_gives_way(hot_client: RedisClient) -> None:
    """P16: rows per user are bounded; a device that lost its row still gets a larger epoch."""
    sessions = RedisDeviceSessions(hot_client, devices_max=3)
    devices = [DeviceKey("acme", "ben", f"d{number}") for number in range(4)]
    first = [await epoch_of(sessions, device, NOW + number) for number, device in enumerate(devices[:3])]
    await sessions.touch([devices[0]], NOW + 100)
    await sessions.open(devices[3], NOW + 200)
    assert await epochs_of(sessions, devices[:3], NOW + 300) == [first[0], 0, first[2]]
    assert await epoch_of(sessions, devices[1], NOW + 400) > first[1]
    assert await hot_client.hlen("{u:acme:ben}:dev") == 3


async def test_many_at_once(hot_client: RedisClient) -> None:
    """A refresh of more sessions than one pipeline takes, in order, also after the scripts were flushed."""
    sessions = RedisDeviceSessions(hot_client)
    devices = [DeviceKey("acme", f"u{number}", "phone") for number in range(1_203)]
    for device in devices[::100]:
        await sessions.open(device, NOW)
    await hot_client.script_flush()
    epochs = await epochs_of(sessions, devices, NOW + 1)
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
