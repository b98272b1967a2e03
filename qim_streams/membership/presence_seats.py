"""Ordinals of users who are online, put back out of the presence log.

A user who was never a member of anything is in no change log, yet a session reads a mailbox under his
ordinal. While he is online the presence log has it. Whoever is in neither log has no session and no mailbox:
he may get another number.

Spec: §2, §6, §14.4.
"""

import logging
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from qim_streams.errors import RecordError
from qim_streams.membership.ports import OrdinalDirectory
from qim_streams.ownership.wholeness import Wholeness
from qim_streams.records import decode_presence

log = logging.getLogger(__name__)


class PresenceReader(Protocol):
    """Reads the presence log from outside of any consumer group."""

    def read(self, partition: int, start: int) -> AsyncIterator[list[tuple[int, bytes, bytes]]]:
        """Batches of (offset, key, value) from `start` (inclusive) to the end as of this call."""


class ServerWholeness(Wholeness, Protocol):
    """A `Wholeness` that knows which run of the server this is."""

    async def run(self) -> str:
        """Its id. StoreUnavailable when it does not answer."""


class OnlineSeats:
    """What each Outbox partition's owner reads of the presence log: every n-th partition of it."""

    def __init__(
        self,
        reader: PresenceReader,
        directory: OrdinalDirectory,
        wholeness: ServerWholeness,
        *,
        presence_partitions: int,
        outbox_partitions: int,
    ) -> None:
        self._reader, self._directory, self._wholeness = reader, directory, wholeness
        self._presence_partitions, self._outbox_partitions = presence_partitions, outbox_partitions
        self._done: dict[int, str] = {}  # partition -> the run of the server for which it was read here

    async def run(self, partition: int) -> int:
        """Put back what may be missing; how many were. StoreUnavailable: call again.

        Nothing is read where the partition is proved for this run of the server: then nothing was lost.
        """
        self._directory.forget()
        run = await self._wholeness.run()
        if self._done.get(partition) == run or not await self._wholeness.doubtful({partition}):
            return 0
        mine = range(partition, self._presence_partitions, self._outbox_partitions)
        missing = 0
        for tenant, seats in (await self._online(mine)).items():
            missing += await self._directory.restore(tenant, list(seats.items()))
        self._done[partition] = run
        if missing:
            log.error(
                "ob:%d: the hot tier had lost %d ordinals of users online; restored", partition, missing
            )
        return missing

    async def _online(self, partitions: Iterable[int]) -> dict[str, dict[str, int]]:
        """Ordinals by tenant and user."""
        found: dict[str, dict[str, int]] = {}
        for partition in partitions:
            async for batch in self._reader.read(partition, 0):
                for offset, _, value in batch:
                    if not value:
                        continue  # a tombstone: the session has ended
                    try:
                        presence = decode_presence(value)
                    except RecordError as error:
                        log.error("presence[%d]: record %d cannot be read: %s", partition, offset, error)
                        continue
                    found.setdefault(presence.tenant_id, {})[presence.user_id] = presence.ordinal
        return found
