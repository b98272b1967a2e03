"""Which Outbox partitions a writer serves: leases taken, given up and lost, shared fairly with other writers.

Each round counts the living writers, gives partitions above the fair share up (drained first, so that the
next owner has nothing to relay) and lets the keeper take what is free below it. About every second each
partition that is served is proved whole (`commit.proof`).

Invariants: a partition is served only between its grant and its loss; it is drained before its lease is
released.

Spec: §11.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from qim_streams.commit.writer import ConversationWriter, partition_of_resource, resource_of
from qim_streams.errors import FencedError, InvariantViolation, StoreError
from qim_streams.ownership.keeper import Claimant, LeaseKeeper
from qim_streams.ownership.ports import Grant, LeaseStore
from qim_streams.ownership.shares import Seat

log = logging.getLogger(__name__)

SEAT_NAME = "writers"
HAND_OVER_TIMEOUT_S = 5.0
SETTLE_RETRY_S = 5.0
READY_STEP_S = 0.05
PROVE_EVERY_S = 1.0

Settle = Callable[[int, int], Awaitable[int]]  # (partition, epoch) -> conversations settled
Prove = Callable[[int, int], Awaitable[None]]  # (partition, epoch)


class PartitionOwnership:
    """The leases of one writer. `settle` makes good what the change log lacks of a partition; `prove` marks
    it as whole."""

    def __init__(
        self,
        leases: LeaseStore,
        claimant: Claimant,
        partitions: int,
        *,
        ttl_ms: int,
        renew_ms: int,
        settle: Settle,
        prove: Prove,
    ) -> None:
        self._partitions, self._renew_s = partitions, renew_ms / 1_000
        self._settle, self._prove = settle, prove
        self._writer: ConversationWriter | None = None
        self._settling: set[asyncio.Task[None]] = set()
        self._seat = Seat(leases, claimant, SEAT_NAME, ttl_ms)
        self.keeper = LeaseKeeper(
            leases,
            claimant,
            ttl_ms=ttl_ms,
            renew_ms=renew_ms,
            on_granted=self._granted,
            on_lost=self._lost,
        )

    async def run(self, writer: ConversationWriter) -> None:
        """Own partitions for `writer` until the task is cancelled."""
        self._writer = writer
        self.keeper.want(resource_of(partition) for partition in range(self._partitions))
        tasks: list[asyncio.Task[None]] = []
        try:
            while True:
                await self._share(writer)
                if not tasks:  # not before the first share is known
                    tasks.append(asyncio.create_task(self.keeper.run(), name="lease-keeper"))
                    tasks.append(asyncio.create_task(self._prove_all(writer), name="prover"))
                await asyncio.wait(tasks, timeout=self._renew_s, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _prove_all(self, writer: ConversationWriter) -> None:
        """For ever. InvariantViolation: the store has lost writes, which only a new boot can make good."""
        while True:
            await asyncio.sleep(PROVE_EVERY_S)
            for partition in writer.ready:
                grant = self.keeper.grant_of(resource_of(partition))
                if grant is None or not writer.serves(partition, grant.epoch):
                    continue
                try:
                    await self._prove(partition, grant.epoch)
                except FencedError:
                    self.fenced(partition, grant.epoch)
                except StoreError as error:
                    log.warning("%s: not proved whole now: %s", grant.resource, error)

    async def close(self, writer: ConversationWriter, timeout_s: float) -> None:
        """Drain all partitions and give everything up. `run` has ended."""
        for task in self._settling:
            task.cancel()
        await writer.close(timeout_s)
        await self.keeper.close()
        await self._seat.leave()

    @property
    def stands_by(self) -> bool:
        """See `Seat.stands_by`."""
        return self._seat.stands_by(self.keeper)

    def fenced(self, partition: int, epoch: int) -> None:
        """A write under this epoch was refused."""
        self.keeper.lost(resource_of(partition), epoch)

    async def _share(self, writer: ConversationWriter) -> None:
        surplus = await self._seat.surplus(self.keeper, self._partitions)
        if surplus:
            await writer.drain(map(partition_of_resource, surplus), HAND_OVER_TIMEOUT_S)
            await self.keeper.give_up(surplus)

    def _granted(self, grant: Grant) -> None:
        if self._writer is None:
            return
        self._writer.grant(grant)
        settling = self._settle_until_done(grant, self._writer)
        task = asyncio.create_task(settling, name=f"settle-{grant.resource}")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def _lost(self, resource: str) -> None:
        if self._writer is not None:
            self._writer.revoke(partition_of_resource(resource))

    async def _settle_until_done(self, grant: Grant, writer: ConversationWriter) -> None:
        """Only once the lane has recovered: before that, the rows of a store that forgot its last changes
        would be written behind theirs and hide them from the replay."""
        partition = partition_of_resource(grant.resource)
        while self.keeper.grant_of(grant.resource) == grant:
            if not writer.serves(partition, grant.epoch):
                await asyncio.sleep(READY_STEP_S)
                continue
            try:
                count = await self._settle(partition, grant.epoch)
            except FencedError:
                return
            except (StoreError, InvariantViolation) as error:
                log.error("%s: change log not made good yet: %s", grant.resource, error)
                await asyncio.sleep(SETTLE_RETRY_S)
                continue
            if count:
                log.info("%s: %d conversations written to the change log again", grant.resource, count)
            return
