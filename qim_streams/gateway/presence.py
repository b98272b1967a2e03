"""Presence: tells the mailbox stage which devices can be pushed to, and where.

Announcements wait in one map per device, where a later one replaces an earlier one, and are appended in
batches by one task: what was said about a device last is what the log says last.

A tombstone carries no session_epoch, so it would also take down a newer session of the same device on
another gateway. It is written only if the device's newest session_epoch is still the one that ended; the
moment between that look and the append is repaired by the newer session's next refresh.

Invariants: presence is best effort; losing it costs latency and never an entry.

Spec: §6.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from qim_streams import failpoints
from qim_streams.errors import StoreError
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.gateway.ports import DeviceKey, DeviceSessions
from qim_streams.log_ports import LogAppender, Outgoing
from qim_streams.placement import mailbox_shard
from qim_streams.records import Presence, record_key

log = logging.getLogger(__name__)

APPEND_MAX: Final = 2_000  # devices in one append
RETRY_S: Final = 1.0


class Said(Enum):
    """What is to be said about a device."""

    ONLINE = "online"
    ANEW = "anew"  # first offline, so that the mailbox stage answers with PresenceReady again
    GONE = "gone"


class Notice(NamedTuple):
    """One thing to say. `ordinal`, `connection_shard` and `connection_id` count for ONLINE and ANEW.

    `shard`: the MailboxShard whose owner is told; -1: the one that the user began in.
    """

    said: Said
    session_epoch: int
    ordinal: int = 0
    connection_shard: int = 0
    connection_id: int = 0
    shard: int = -1


class PresenceLog:
    """Writes ``qim.presence.v1``. `run` is its task."""

    def __init__(
        self,
        log_appender: LogAppender,
        devices: DeviceSessions,
        *,
        topic: str,
        mailbox_shards: int,
        now_ms: Callable[[], int],
        counters: GatewayCounters,
    ) -> None:
        self._log, self._devices = log_appender, devices
        self._topic, self._shards = topic, mailbox_shards
        self._now_ms, self._counters = now_ms, counters
        self.heard: Callable[[Sequence[tuple[DeviceKey, Notice]]], object] = lambda notices: None
        self._waiting: dict[tuple[DeviceKey, int], Notice] = {}  # by device and shard
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def say(self, device: DeviceKey, notice: Notice) -> None:
        """Say something about a device; replaces what waits of the same device and shard, unless newer."""
        waiting = self._waiting.get((device, notice.shard))
        if waiting is not None:
            if waiting.session_epoch > notice.session_epoch:
                return
            if waiting.said is Said.ANEW and notice.said is Said.ONLINE:
                notice = notice._replace(said=Said.ANEW)
        self._waiting[device, notice.shard] = notice
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Append what was said, for ever. Failures are counted; refreshes say it again."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._append_some()
            self._idle.set()

    async def flushed(self, timeout_s: float) -> bool:
        """Wait until everything said was appended; False when that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _append_some(self) -> None:
        some = list(self._waiting)[:APPEND_MAX]
        notices = [(key[0], self._waiting.pop(key)) for key in some]
        try:
            true = await self._still_true(notices)
            self.heard(true)  # for people, who are told whatever becomes of the log
            records = [record for device, notice in true for record in self._records(device, notice)]
            if records:
                await self._log.append(records)
                failpoints.hit("gateway.presence_appended")
            self._counters.presence_appended += len(records)
        except StoreError as error:
            self._counters.presence_failed += len(notices)
            log.warning("%d presence notices were not written: %s", len(notices), error)
            await asyncio.sleep(RETRY_S)

    async def _still_true(
        self, notices: Sequence[tuple[DeviceKey, Notice]]
    ) -> list[tuple[DeviceKey, Notice]]:
        """`notices` without tombstones for devices that have a newer session somewhere."""
        gone = [device for device, notice in notices if notice.said is Said.GONE]
        if not gone:
            return list(notices)
        newest = dict(zip(gone, await self._devices.touch(gone, self._now_ms()), strict=True))
        return [
            (device, notice)
            for device, notice in notices
            if notice.said is not Said.GONE or newest[device].epoch <= notice.session_epoch
        ]

    def _records(self, device: DeviceKey, notice: Notice) -> list[Outgoing]:
        partition = notice.shard
        if partition < 0:
            partition = mailbox_shard(device.tenant_id, device.user_id, self._shards)
        key = record_key(*device)
        tombstone = Outgoing(self._topic, partition, key, None)
        if notice.said is Said.GONE:
            return [tombstone]
        value = Presence(
            device.tenant_id,
            device.user_id,
            notice.ordinal,
            device.device_id,
            notice.connection_shard,
            notice.connection_id,
            notice.session_epoch,
            self._now_ms(),
        )
        online = Outgoing(self._topic, partition, key, value.encode())
        return [tombstone, online] if notice.said is Said.ANEW else [online]
