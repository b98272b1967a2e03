"""Registered devices that a store lost, or lost a change of, come back from their log. T-R2."""

from collections.abc import AsyncIterator

from qim_streams.notification.records import PushDevice
from qim_streams.notification.registry import PushDevices
from qim_streams.notification.restoring import WholeDevices
from qim_streams.testing.memory_push import KeptLog, MemoryPushDevices

PHONE = PushDevice("acme", "ben", 64, "phone", "apns", "", "first", 0)
WANTED = [("acme", "ben", "phone")]


class DeviceLog:
    """What was appended, as its readers see it; all in one partition."""

    def __init__(self, kept: KeptLog) -> None:
        self._kept = kept

    async def begin(self, partition: int) -> int:
        """See the port."""
        return 0

    async def read(self, partition: int, start: int) -> AsyncIterator[list[tuple[int, bytes, bytes]]]:
        """See the port."""
        rows = [(at, one.key or b"", one.value or b"") for at, one in enumerate(self._kept.records)]
        if rows[start:]:
            yield rows[start:]


def world() -> tuple[MemoryPushDevices, PushDevices, WholeDevices]:
    store, log = MemoryPushDevices(), KeptLog()
    registry = PushDevices(store, log, providers=["apns"], mailbox_shards=1, now_ms=lambda: 1_000)
    return store, registry, WholeDevices(store, DeviceLog(log), 1)


async def test_a_registration_that_fell_back_is_not_believed() -> None:
    """The store has the one before: it is there, and its token is an old one."""
    store, registry, whole = world()
    before = await registry.register(PHONE)
    after = await registry.register(PHONE._replace(token="second"))
    store.rows["acme", "ben"] = {"phone": before}
    store.whole = False  # another run of the server
    assert [row.device for row in await whole.load(WANTED)] == [after]
    assert store.whole


async def test_a_device_that_was_removed_stays_removed() -> None:
    store, registry, whole = world()
    before = await registry.register(PHONE)
    await registry.unregister("acme", "ben", "phone")
    store.rows["acme", "ben"] = {"phone": before}
    store.whole = False
    assert [row.device for row in await whole.load(WANTED)] == [None]


async def test_a_store_that_lost_nothing_is_not_held_against_the_log() -> None:
    _, registry, whole = world()
    kept = await registry.register(PHONE)
    assert not await whole.ensure()
    assert [row.device for row in await whole.load(WANTED)] == [kept]
