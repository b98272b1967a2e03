"""The shards that this worker serves: their leases, and what it knows of each.

A shard is served under a lease `s:<k>`; the epoch of the grant goes into every write. The lease is
taken when the partition is assigned, waiting for an old node's lease to end, renewed in the background,
and given up when the partition is gone. A lease found lost ends the process: another node has, or
will have, the shard, and only a restart sorts out what is ours.

A rebalance releases every partition and assigns most of them again to the same worker. Their leases are
kept for that moment (parked), so that the epoch, which clients see, is not raised for nothing; those
that did not come back are given up as soon as the new assignment is known, or after `PARK_S`.

The same background task compares W in the store with what we moved it to: a store that lost its last
writes (a power loss) is noticed even when no message comes, and the restart replays them.

Spec: §11, §14.6.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from qim_streams.errors import StoreError, StoreUnavailable
from qim_streams.mailbox import metrics
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.open_lanes import OpenLanes
from qim_streams.mailbox.ports import MailboxStore
from qim_streams.mailbox.watermark import Marks
from qim_streams.ownership.ports import Grant, LeaseStore

log = logging.getLogger(__name__)

_WAIT_MAX_S = 0.5
PARK_S = 3.0  # a rebalance takes about a heartbeat
_SETTLE_S = 0.2  # after the first partition of a new assignment asked for its lease

Die = Callable[[str], NoReturn]


class LeaseTerms(NamedTuple):
    """Who we are to the lease store, and for how long a grant lasts."""

    node: str
    boot: int
    address: str
    ttl_ms: int
    renew_ms: int


@dataclass(slots=True)
class Shard:
    """What we know of a shard that we serve. All offsets are inclusive, -1 = nothing."""

    shard: int
    epoch: int
    coverage: int  # W as we moved it in the store, in the lowest lane
    floor: int  # what tables say is done: pages and W are durable up to here
    pushed_through: int  # recipients of everything up to here were looked up
    buried_through: int  # poison up to here was set aside
    noted_through: int = -1  # everything up to here is done; durable with the next checkpoint
    owed_through: int = -1  # replayed after a loss: what cannot be replayed up to here is lost to its readers
    unsure: bool = False  # the outcome of the last store call is unknown: read W back
    tabled: Marks = rule.NOTHING  # W as the table holds it
    open: OpenLanes | None = None  # while lanes stand apart; all below are then known by it
    held_since_s: float | None = None  # monotonic time from which a batch could not be done
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)  # while lanes stand apart
    pushing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def stands(self) -> Marks:
        """W as we moved it in the store."""
        return self.coverage if self.open is None else self.open.stands

    @property
    def told(self) -> Marks:
        """Lane by lane: recipients of everything up to here were looked up."""
        return self.pushed_through if self.open is None else self.open.pushed

    @property
    def done_through(self) -> int:
        """Everything up to here was noted and is durable in every lane."""
        return self.noted_through if self.open is None else min(self.noted_through, self.open.through)

    @property
    def caught_up(self) -> bool:
        """Whether readers see everything that they were ever promised."""
        return self.coverage >= self.floor


def resource(shard: int) -> str:
    """The lease's name."""
    return f"s:{shard}"


class ShardLeases:
    """Leases of the shards of one worker, and the task that watches over them."""

    def __init__(
        self,
        leases: LeaseStore,
        store: MailboxStore,
        terms: LeaseTerms,
        die: Die,
        epoch_floor: Callable[[int], int] = lambda shard: 0,
    ) -> None:
        """`epoch_floor`: the highest epoch of a shard that a log has seen; nobody else gets it again."""
        self._leases, self._store, self._terms, self.die = leases, store, terms, die
        self._epoch_floor = epoch_floor
        self._ours: dict[int, int] = {}  # the last epoch of each shard that was granted to this process
        self._grants: dict[int, Grant] = {}
        self.served: dict[int, Shard] = {}
        self._parked: set[int] = set()
        self._lock = asyncio.Lock()
        self._giving_up: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def acquire(self, shard: int) -> int:
        """The epoch under which we may write to `shard`; waits while another node holds the lease."""
        terms, told = self._terms, False
        self._parked.discard(shard)
        if self._parked:
            self._give_up_parked(_SETTLE_S)
        while True:
            async with self._lock:  # not while the same lease is on its way back
                answer = await self._leases.acquire(
                    resource(shard), terms.node, terms.boot, terms.address, terms.ttl_ms
                )
            grant = await self._above(shard, answer) if isinstance(answer, Grant) else None
            if grant is not None:
                answer = self._grants[shard] = grant
                self._ours[shard] = grant.epoch
                self._watch()
                return answer.epoch
            if isinstance(answer, Grant):
                continue  # it was taken from us while its epoch was raised
            if not told:
                log.info(
                    "shard %d: node %s holds the lease for %d ms more",
                    shard,
                    answer.node,
                    answer.remaining_ms,
                )
                told = True
            await asyncio.sleep(min(_WAIT_MAX_S, max(0.01, answer.remaining_ms / 1000)))

    async def _above(self, shard: int, grant: Grant) -> Grant | None:
        """`grant`, under an epoch that no log has seen from anybody else; None when it is not ours any more.

        A lease store that came back from an old copy counts on from there.
        """
        floor, terms = self._epoch_floor(shard), self._terms
        if floor < grant.epoch or (floor == grant.epoch and self._ours.get(shard) == floor):
            return grant
        metrics.ALARMS.labels("epoch_fell_back").inc()
        log.error("P1 shard %d: epoch %d was given, the log knows %d: going above", shard, grant.epoch, floor)
        return await self._leases.raise_epoch(grant, terms.node, terms.boot, floor)

    def release(self, shards: frozenset[int]) -> None:
        """Stop serving `shards`. Their leases are parked for the assignment that may follow."""
        for shard in shards:
            self.served.pop(shard, None)
        self._parked.update(shard for shard in shards if shard in self._grants)
        if self._parked:
            self._give_up_parked(PARK_S)

    def _give_up_parked(self, after_s: float) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._giving_up = asyncio.get_running_loop().create_task(
            self._give_up(after_s), name="shard-leases-end"
        )

    async def _give_up(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        parked, self._parked = self._parked, set()
        await self._drop(parked)

    async def _drop(self, shards: Iterable[int]) -> None:
        """Give up the leases of `shards`; a store that cannot be reached lets them run out."""
        grants = [self._grants.pop(shard) for shard in shards if shard in self._grants]
        if not grants:
            return
        try:
            async with self._lock:
                await self._leases.release(grants, self._terms.node, self._terms.boot)
        except StoreError as error:
            log.warning("%d leases could not be given up, they end by themselves: %s", len(grants), error)

    async def close(self) -> None:
        """Stop watching and give everything up."""
        for task in (self._task, self._giving_up):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self.served.clear()
        await self._drop(list(self._grants))

    def _watch(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="shard-leases")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._terms.renew_ms / 1000)
            try:
                await self.renew()
                await self.compare()
            except StoreUnavailable as error:
                # Every write carries the epoch: going on without the lease risks nothing but idleness.
                log.warning("leases are not renewed: %s", error)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody watches the leases any more
                self.die(f"watching the leases failed: {type(error).__name__}: {error}")

    async def renew(self) -> None:
        """Extend all leases; one that is not ours any more ends the process."""
        grants = list(self._grants.values())
        if not grants:
            return
        kept = await self._leases.renew(grants, self._terms.node, self._terms.boot, self._terms.ttl_ms)
        for grant, ours in zip(grants, kept, strict=True):
            shard = int(grant.resource.removeprefix("s:"))
            if ours or self._grants.get(shard) != grant:
                continue
            if shard not in self._parked:
                self.die(f"the lease of {grant.resource} was lost (epoch {grant.epoch})")
            self._parked.discard(shard)
            del self._grants[shard]

    async def compare(self) -> None:
        """Hold W in the store against what we moved it to; a store that fell back ends the process."""
        before = {shard: state.stands for shard, state in self.served.items()}
        if not before:
            return
        states = await self._store.watermarks(list(before))
        for (shard, was), state in zip(before.items(), states, strict=True):
            stands = rule.marks(state.lanes)
            if rule.is_below(stands, was) and shard in self.served:
                metrics.ALARMS.labels("store_fell_back").inc()
                self.die(f"shard {shard}: W was {was} and is {stands} in the store")

    async def give_up(self, shard: int) -> None:
        """Let go of one shard's lease at once, so that another worker need not wait for it to end."""
        await self._drop([shard])
