"""Keeping leases: acquire what is wanted, renew in time, say at once what is lost.

The keeper wants a set of resources and holds at most `hold_max` of them. Each round renews what is held,
then asks for what is wanted and missing. A lease counts as lost when the store says so, when a write was
fenced (`lost`), or when no renewal succeeded for a whole `ttl_ms`: the local clock is used only to give up
early, never to keep going, since every write is fenced in the store anyway.

Invariants: `on_granted` is called once per grant, `on_lost` once for every grant that ended without
`give_up` or `close`; both are plain calls on the event loop. An error of the store never ends the keeper.

Spec: §11.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from qim_streams.errors import StoreError
from qim_streams.ownership.ports import Grant, Holder, LeaseStore

log = logging.getLogger(__name__)

POLLS_PER_RENEWAL = 6  # a free resource is noticed this many times faster than leases are renewed
RELEASE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who asks for leases: stable node name, boot number, and where peers reach the holder."""

    node: str
    boot: int
    address: str


@dataclass(slots=True)
class _Held:
    grant: Grant
    good_until_s: float


class LeaseKeeper:
    """Leases of one process. Call `round` yourself, or let `run` do it until its task is cancelled."""

    def __init__(
        self,
        store: LeaseStore,
        claimant: Claimant,
        *,
        ttl_ms: int,
        renew_ms: int,
        on_granted: Callable[[Grant], object],
        on_lost: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._store, self._claimant = store, claimant
        self._ttl_ms, self._renew_s = ttl_ms, renew_ms / 1_000
        self._on_granted, self._on_lost = on_granted, on_lost
        self._clock, self._rng = clock, rng or random.Random()
        self._held: dict[str, _Held] = {}
        self._wanted: tuple[str, ...] = ()
        self._next_renewal_s = 0.0
        self.hold_max = 1 << 30

    @property
    def held(self) -> list[str]:
        """Resources that are ours as far as we know."""
        return list(self._held)

    def grant_of(self, resource: str) -> Grant | None:
        """Our grant of a resource, None when it is not ours."""
        held = self._held.get(resource)
        return held.grant if held else None

    def want(self, resources: Iterable[str]) -> None:
        """What to acquire and keep from now on. Held resources that are not wanted stay until given up."""
        self._wanted = tuple(resources)

    async def run(self) -> None:
        """Rounds for ever."""
        while True:
            await self.round()
            await asyncio.sleep(self._renew_s / POLLS_PER_RENEWAL)

    async def round(self) -> None:
        """Renew if it is time, drop what ran out, acquire what is missing."""
        if self._clock() >= self._next_renewal_s:
            await self._renew()
        for resource, held in list(self._held.items()):
            if self._clock() >= held.good_until_s:
                self._drop(resource, "not renewed for a whole ttl")
        await self._acquire()

    def lost(self, resource: str, epoch: int) -> None:
        """A write with this epoch was fenced: somebody else owns the resource."""
        held = self._held.get(resource)
        if held is not None and held.grant.epoch == epoch:
            self._drop(resource, f"epoch {epoch} was fenced")

    async def give_up(self, resources: Sequence[str]) -> None:
        """Release leases of ours, for others to take at once. An unreachable store lets them expire."""
        grants = [self._held.pop(resource).grant for resource in resources if resource in self._held]
        if not grants:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._store.release(grants, self._claimant.node, self._claimant.boot)
        except (StoreError, TimeoutError) as error:
            log.warning("leases %s not released, they expire: %s", [g.resource for g in grants], error)

    async def close(self) -> None:
        """Give up everything. The caller has stopped `run` and whatever writes under the leases."""
        self._wanted = ()
        await self.give_up(self.held)

    async def _renew(self) -> None:
        grants = [held.grant for held in self._held.values()]
        asked_s = self._clock()
        try:
            answers = await self._store.renew(grants, self._claimant.node, self._claimant.boot, self._ttl_ms)
        except StoreError as error:
            log.warning("leases not renewed: %s", error)
            return
        self._next_renewal_s = asked_s + self._renew_s
        for grant, ours in zip(grants, answers, strict=True):
            held = self._held.get(grant.resource)
            if held is None or held.grant != grant:
                continue  # given up or fenced while the store was asked
            if ours:
                held.good_until_s = asked_s + self._ttl_ms / 1_000
            else:
                self._drop(grant.resource, "the store says that it is not ours")

    async def _acquire(self) -> None:
        missing = [resource for resource in self._wanted if resource not in self._held]
        if not missing or len(self._held) >= self.hold_max:
            return
        self._rng.shuffle(missing)  # so that several claimants do not all ask in one order
        try:
            holders = await self._store.holders(missing)
        except StoreError as error:
            log.warning("leases not looked up: %s", error)
            return
        # What the boot before this one held comes first: it is ours at once, and whatever counts on its lease
        # (devices that seem to be online) need not wait for its end. What others hold comes last.
        node = self._claimant.node
        order = {one.resource: 0 if one.node == node else 2 for one in holders if one is not None}
        missing.sort(key=lambda resource: order.get(resource, 1))
        for resource in missing:
            if len(self._held) >= self.hold_max:
                return
            asked_s = self._clock()
            one = self._claimant
            try:
                answer = await self._store.acquire(resource, one.node, one.boot, one.address, self._ttl_ms)
            except StoreError as error:
                log.warning("lease %s not acquired: %s", resource, error)
                return
            if isinstance(answer, Grant):
                self._held[resource] = _Held(answer, asked_s + self._ttl_ms / 1_000)
                log.info(
                    "lease %s granted to %s boot %d, epoch %d", resource, one.node, one.boot, answer.epoch
                )
                self._on_granted(answer)
            else:
                self._refused(answer)

    def _refused(self, holder: Holder) -> None:
        one = self._claimant
        if holder.node == one.node and holder.boot > one.boot:
            log.error(
                "lease %s is held by boot %d of this node and we are boot %d: was the state directory wiped, "
                "or does another machine use the node id %s? Waiting for it to expire",
                holder.resource,
                holder.boot,
                one.boot,
                one.node,
            )

    def _drop(self, resource: str, why: str) -> None:
        held = self._held.pop(resource)
        log.warning("lease %s lost (epoch %d): %s", resource, held.grant.epoch, why)
        self._on_lost(resource)
