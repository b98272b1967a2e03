"""Presence: what waits is merged per device, tombstones never hit a newer session, order holds (I1, I5)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from qim_streams.errors import LogAppendError
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.gateway.ports import DeviceKey
from qim_streams.gateway.presence import Notice, PresenceLog, Said
from qim_streams.gateway.registry import Registry
from qim_streams.log_ports import Outgoing
from qim_streams.placement import mailbox_shard
from qim_streams.records import decode_presence
from tests.support.gateway_world import FakeDevices, PresenceRecords

BEN, ANN = DeviceKey("acme", "ben", "phone"), DeviceKey("acme", "ann", "phone")


class Broken(PresenceRecords):
    """A log that fails the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 1

    async def append(self, records: Sequence[Outgoing]) -> list[int]:
        if self.failures:
            self.failures -= 1
            raise LogAppendError("away")
        return await super().append(records)


@asynccontextmanager
async def running(records: PresenceRecords, devices: FakeDevices) -> AsyncIterator[PresenceLog]:
    log = PresenceLog(
        records, devices, topic="p", mailbox_shards=4, now_ms=lambda: 5, counters=GatewayCounters()
    )
    task = asyncio.create_task(log.run())
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def said(records: PresenceRecords) -> list[tuple[str, int | None]]:
    return [
        (
            (one.key or b"").decode().split("\0")[1],
            None if one.value is None else decode_presence(one.value).session_epoch,
        )
        for one in records.records
    ]


async def test_records_go_to_the_partition_of_the_shard() -> None:
    """Key and partition are the device's, the value names connection and epoch."""
    records = PresenceRecords()
    async with running(records, FakeDevices()) as log:
        log.say(BEN, Notice(Said.ONLINE, 7, ordinal=66, connection_shard=2, connection_id=99))
        assert await log.flushed(5)
    (one,) = records.records
    assert one.value is not None
    assert (one.partition, one.key) == (mailbox_shard("acme", "ben", 4), b"acme\0ben\0phone")
    assert decode_presence(one.value) == ("acme", "ben", 66, "phone", 2, 99, 7, 5)


async def test_the_last_word_about_a_device_counts() -> None:
    """What waits is replaced by what comes later, never by an older session."""
    records = PresenceRecords()
    async with running(records, FakeDevices()) as log:
        log.say(BEN, Notice(Said.ONLINE, 7))
        log.say(BEN, Notice(Said.GONE, 7))
        log.say(BEN, Notice(Said.ONLINE, 8))
        log.say(BEN, Notice(Said.GONE, 7))
        log.say(ANN, Notice(Said.ONLINE, 3))
        assert await log.flushed(5)
    assert said(records) == [("ben", 8), ("ann", 3)]


async def test_anew_is_a_tombstone_first() -> None:
    """A repeated announcement does not swallow the wish to be announced anew."""
    records = PresenceRecords()
    async with running(records, FakeDevices()) as log:
        log.say(BEN, Notice(Said.ANEW, 7))
        log.say(BEN, Notice(Said.ONLINE, 7))
        assert await log.flushed(5)
    assert said(records) == [("ben", None), ("ben", 7)]


async def test_no_tombstone_for_a_device_that_is_elsewhere() -> None:
    """A newer session of the device lives on another gateway: its presence stays."""
    records, devices = PresenceRecords(), FakeDevices()
    devices.epochs = {BEN: 9, ANN: 3}
    async with running(records, devices) as log:
        log.say(BEN, Notice(Said.GONE, 7))
        log.say(ANN, Notice(Said.GONE, 3))
        assert await log.flushed(5)
    assert said(records) == [("ann", None)]


async def test_failures_are_counted_and_the_task_goes_on(monkeypatch: object) -> None:
    """A log or store that is away costs presence, not the gateway."""
    import qim_streams.gateway.presence as module

    monkeypatch.setattr(module, "RETRY_S", 0.01)  # type: ignore[attr-defined]
    records, devices = Broken(), FakeDevices()
    async with running(records, devices) as log:
        log.say(BEN, Notice(Said.ONLINE, 7))
        assert await log.flushed(5)
        devices.broken = True
        log.say(BEN, Notice(Said.GONE, 7))
        assert await log.flushed(5)
        devices.broken = False
        log.say(BEN, Notice(Said.ONLINE, 8))
        assert await log.flushed(5)
    assert said(records) == [("ben", 8)]


class Session:
    """What a registry holds."""

    def __init__(self, device: DeviceKey, session_epoch: int) -> None:
        self.device, self.session_epoch, self.connection_id = device, session_epoch, 0


def test_the_registry_keeps_the_newest_session_of_a_device() -> None:
    """A later AUTH replaces; one that was overtaken is turned away."""
    registry: Registry[Session] = Registry()
    old, new, late = Session(BEN, 5), Session(BEN, 7), Session(BEN, 6)
    assert registry.add(old) is None
    assert registry.add(new) is old
    assert registry.add(late) is late
    assert (registry.get(new.connection_id), registry.get(old.connection_id)) == (new, None)
    assert not registry.remove(old)
    assert registry.remove(new)
    assert (len(registry), registry.take_ended([new.connection_id])) == (0, [(BEN, 7)])
    assert registry.take_ended([new.connection_id]) == []


def test_a_new_lease_renames_every_connection() -> None:
    """I5: ids carry the epoch; those of the older epoch find nobody."""
    registry: Registry[Session] = Registry()
    sessions = [Session(BEN, 5), Session(ANN, 6)]
    for one in sessions:
        registry.add(one)
    before = [one.connection_id for one in sessions]
    assert registry.rebase(2, 9) == sessions
    assert {one.connection_id >> 32 for one in sessions} == {9}
    assert [registry.get(one) for one in before] == [None, None]
    assert [registry.get(one.connection_id) for one in sessions] == sessions
    assert registry.has_shard
    registry.unbase()
    assert not registry.has_shard
