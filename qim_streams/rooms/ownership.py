"""Which room partitions a RoomWriter owns: leases taken, given up and lost, shared fairly with others.

Invariants: a partition is served only between its grant and its loss; what it knows is noted before its lease
is released.

Spec: §10, §11.
"""

import asyncio
import logging

from qim_streams.ownership.keeper import Claimant, LeaseKeeper
from qim_streams.ownership.ports import LeaseStore
from qim_streams.ownership.shares import Seat
from qim_streams.rooms.writer import RoomWriter, number_of, resource_of

log = logging.getLogger(__name__)

SEAT_NAME = "rooms"


class RoomOwnership:
    """The leases of one RoomWriter."""

    def __init__(
        self,
        leases: LeaseStore,
        claimant: Claimant,
        partitions: int,
        writer: RoomWriter,
        *,
        ttl_ms: int,
        renew_ms: int,
    ) -> None:
        self._partitions, self._writer, self._renew_s = partitions, writer, renew_ms / 1_000
        self._seat = Seat(leases, claimant, SEAT_NAME, ttl_ms)
        self.keeper = LeaseKeeper(
            leases,
            claimant,
            ttl_ms=ttl_ms,
            renew_ms=renew_ms,
            on_granted=writer.grant,
            on_lost=lambda resource: writer.revoke(number_of(resource)),
        )
        self.keeper.want(map(resource_of, range(partitions)))

    @property
    def stands_by(self) -> bool:
        """See `Seat.stands_by`."""
        return self._seat.stands_by(self.keeper)

    def fenced(self, number: int, epoch: int) -> None:
        """A write under this epoch was refused."""
        self.keeper.lost(resource_of(number), epoch)

    async def run(self) -> None:
        """Own partitions until cancelled. What a partition's task fails with ends it, too."""
        keeping: asyncio.Task[None] | None = None
        try:
            while True:
                await self._give_up(await self._seat.surplus(self.keeper, self._partitions))
                if keeping is None:  # not before the first share is known
                    keeping = asyncio.create_task(self.keeper.run(), name="room-lease-keeper")
                tasks = {keeping, *self._writer.tasks()}
                await asyncio.wait(tasks, timeout=self._renew_s, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done() and not task.cancelled():
                        task.result()
        finally:
            if keeping is not None:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

    async def close(self, timeout_s: float) -> None:
        """Give everything up. `run` has ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._give_up(self.keeper.held)
        except TimeoutError:
            log.warning("room partitions not given up in %.1f s: the next owner reads more", timeout_s)
        await self.keeper.close()
        await self._seat.leave()

    async def _give_up(self, resources: list[str]) -> None:
        for resource in resources:
            await self._writer.release(number_of(resource))
        await self.keeper.give_up(resources)
