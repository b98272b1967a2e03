"""Fair shares: how many resources each of several equal workers should hold.

Every worker holds one seat of a fixed row of lease resources (``{seat name}:0`` ...); taken seats are the
living workers. A worker above its share gives resources up, one below it takes what is free. Shares differ
by one at most, and the lower seats have the larger ones: rounding up for everyone would leave the last
workers with nothing (six resources and four workers: 2, 2, 2 and none).

Invariants: shares of the living workers together cover all resources; a worker without a seat (more
workers than seats) gets as much as the first. A share is 1 at least: who is one too many takes what becomes
free, and nobody gives its last resource up for another.

Spec: §11.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from qim_streams.errors import StoreError
from qim_streams.ownership.keeper import Claimant, LeaseKeeper
from qim_streams.ownership.ports import Grant, Holder, LeaseStore

log = logging.getLogger(__name__)

SEATS = 64


def fair_share(resources: int, workers: int, rank: int) -> int:
    """The most that the `rank`-th (from 0) of `workers` (at least 1) should hold; at least 1."""
    even, left = divmod(resources, max(1, workers))
    return max(1, even + (rank < left))


@dataclass(slots=True)
class Seat:
    """This worker's place in the row `name`."""

    store: LeaseStore
    claimant: Claimant
    name: str
    ttl_ms: int
    _grant: Grant | None = None
    _spare: bool = False  # more workers live than there are resources, as of the last `surplus`

    async def living(self) -> tuple[int, int]:
        """How many workers live now, this one included, and how many of those sit before it (none without
        a seat); takes or renews the seat. StoreError."""
        seats = [f"{self.name}:{number}" for number in range(SEATS)]
        one = self.claimant
        if self._grant is not None:
            renewed = await self.store.renew([self._grant], one.node, one.boot, self.ttl_ms)
            if not renewed[0]:
                self._grant = None
        holders = await self.store.holders(seats)
        if self._grant is None:
            # A restart finds the seat of the boot before it and takes it back.
            mine = [h.resource for h in holders if h is not None and h.node == one.node]
            free = [seat for seat, holder in zip(seats, holders, strict=True) if holder is None]
            for seat in (*mine, *free)[:3]:
                answer = await self.store.acquire(seat, one.node, one.boot, one.address, self.ttl_ms)
                if isinstance(answer, Grant):
                    self._grant = answer
                    break
        others = {h.node for h in holders if h is not None} - {one.node}
        return len(others) + 1, self._before(seats, holders)

    def _before(self, seats: Sequence[str], holders: Sequence[Holder | None]) -> int:
        if self._grant is None:
            return 0
        mine, one = seats.index(self._grant.resource), self.claimant
        return len({h.node for h in holders[:mine] if h is not None} - {one.node})

    async def surplus(self, keeper: LeaseKeeper, resources: int) -> list[str]:
        """What `keeper` holds above this worker's fair share of `resources`, to be given up; it takes no
        more than that from now on. Nothing while the others cannot be counted."""
        try:
            living, before = await self.living()
        except StoreError as error:
            log.warning("living %s not counted: %s", self.name, error)
            return []
        share = fair_share(resources, living, before)
        keeper.hold_max, self._spare = share, living > resources
        above = sorted(keeper.held)[share:]
        if above:
            log.info("giving up %s: the fair share is %d", ", ".join(above), share)
        return above

    def stands_by(self, keeper: LeaseKeeper) -> bool:
        """Whether `keeper` holds nothing because there are more workers than resources."""
        return self._spare and not keeper.held

    async def leave(self) -> None:
        """Give the seat up."""
        grant, self._grant = self._grant, None
        if grant is None:
            return
        try:
            await self.store.release([grant], self.claimant.node, self.claimant.boot)
        except StoreError:
            return  # it expires: the others wait a ttl before they take over the share
