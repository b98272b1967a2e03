"""Registered devices, whole: what the store lost is put back from the device log before anybody believes it.

A device that is missing may have been removed, or the store may be a new one; one that is there may be the
registration before the last one, which a store lost with its last second. So after every reading the mark of
wholeness is asked for, which belongs to one run of the server; without it the whole log is read and put back
first. Removals that come meanwhile are in the log behind what was read: it is read on until nothing more
comes.

What it does not do: undo a removal that an old copy of the store has forgotten once its tombstone has left
the log.

Spec: §6, §14.4.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

from qim_streams.errors import RecordError
from qim_streams.notification.ports import DeviceRow, DeviceStore
from qim_streams.notification.records import SETTINGS_NAME, decode_device, decode_settings

log = logging.getLogger(__name__)

AT_ONCE: Final = 256
ROUNDS_MAX: Final = 20


class DeviceLog(Protocol):
    """The device log, from outside of any consumer group. StoreUnavailable: read again later."""

    async def begin(self, partition: int) -> int:
        """The first offset that the partition still has."""

    def read(self, partition: int, start: int) -> AsyncIterator[list[tuple[int, bytes, bytes]]]:
        """Batches of (offset, key, value) from `start` to the end as of this call; a tombstone is empty."""


class WholeDevices:
    """Reads of a `DeviceStore` that are whole."""

    def __init__(self, store: DeviceStore, device_log: DeviceLog, partitions: int) -> None:
        self._store, self._log, self._partitions = store, device_log, partitions
        self._turn = asyncio.Lock()

    async def load(self, wanted: Sequence[tuple[str, str, str]]) -> list[DeviceRow]:
        """See `DeviceStore.load`. StoreUnavailable also while the log does not answer."""
        rows = await self._store.load(wanted)
        return await self._store.load(wanted) if await self.ensure() else rows

    async def ensure(self) -> bool:
        """Put back what is missing, if the store is not whole; whether it was not."""
        async with self._turn:
            if await self._store.is_whole():
                return False
            count = 0
            for partition in range(self._partitions):
                count += await self._restore(partition)
            await self._store.mark_whole()
        log.info("%d registered devices were held against the log", count)
        return True

    async def _restore(self, partition: int) -> int:
        position, count = await self._log.begin(partition), 0
        for _ in range(ROUNDS_MAX):
            last: dict[bytes, bytes] = {}
            async for batch in self._log.read(partition, position):
                for offset, key, value in batch:
                    last[key] = value
                    position = offset + 1
            if not last:
                break
            rows = list(last.items())
            for start in range(0, len(rows), AT_ONCE):
                await asyncio.gather(*(self._put(*row) for row in rows[start : start + AT_ONCE]))
            count += len(rows)
        return count

    async def _put(self, key: bytes, value: bytes) -> None:
        try:
            tenant, user, name = key.decode().split("\0")
            if not value:
                await self._store.remove(tenant, user, name)
            elif name == SETTINGS_NAME:
                await self._store.put_settings(decode_settings(value))
            else:
                device = decode_device(value)
                await self._store.put(device)
                if device.token:
                    await self._store.claim_token(device)
        except (ValueError, RecordError) as error:
            log.error("device log: a record is passed over: %s", type(error).__name__)
