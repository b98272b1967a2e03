"""The shard map, who holds which lease under which epoch, and how far a split has come.

Reads the log of mappings, the pipeline's logs and the hot tier; writes nothing. What does not answer raises
StoreError: a map that is half known is not shown.

Spec: §11.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from qim_streams.errors import ProtocolError
from qim_streams.mailbox.ports import WatermarkState
from qim_streams.ownership.ports import Holder
from qim_streams.sharding.operation import SplitLogs, SplitStores
from qim_streams.sharding.rules import Placement, Split, Step
from qim_streams.sharding.standing import standing_of
from qim_streams.sync.boundaries import EpochBoundary

BOUNDARIES_SHOWN: Final = 20
STEPS: Final = ("planned", "prepared", "marked", "settled", "done")


@dataclass(frozen=True, slots=True)
class LeaseView:
    """Who holds a resource. `node` null: nobody does."""

    resource: str
    node: str | None
    boot: int | None
    address: str | None
    epoch: int | None
    remaining_ms: int | None


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A MailboxShard. `came_from`: the shards that it was split from, the oldest first."""

    shard: int
    came_from: list[int]
    first_seq: int
    watermark: int
    records: int
    mailboxes: int
    lease: LeaseView


@dataclass(frozen=True, slots=True)
class PairView:
    """Half of the users of `old` go to `new`, whose positions begin at `first`."""

    old: int
    new: int
    first: int


@dataclass(frozen=True, slots=True)
class SplitView:
    """The last split. `step`: planned, prepared, marked, settled or done; of each how much is done."""

    version: int
    step: str
    pairs: list[PairView]
    partitions: int
    partitions_passed: int
    shards: int
    shards_caught_up: int


@dataclass(frozen=True, slots=True)
class ShardMapView:
    """The map for readers, and the last split if there ever was one."""

    mapping_version: int
    revision: int
    shards_at_the_beginning: int
    partitions: int
    shards: list[ShardRow]
    split: SplitView | None


@dataclass(frozen=True, slots=True)
class BoundaryView:
    """A takeover: W as it stood when the epoch was granted."""

    epoch: int
    granted_at_ms: int
    watermark_min: int
    watermark_max: int


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard with all of its lanes as the store has them, and its last takeovers, the newest first."""

    shard: int
    epoch: int
    lanes: list[int]
    lease: LeaseView
    boundaries: list[BoundaryView]


class Watermarks(Protocol):
    """W of shards. StoreUnavailable."""

    async def watermarks(self, shards: Sequence[int]) -> list[WatermarkState]:
        """The persisted watermark of each shard."""


class Boundaries(Protocol):
    """Takeovers of shards. StoreError."""

    async def read(self, shard: int, first: int, last: int) -> list[EpochBoundary | None]:
        """Of the epochs `first` to `last`, both inclusive."""


class ShardMap:
    """Shows the map. `load` reads what stands; `counts`: prefix of leases -> how many resources there are."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Placement]],
        logs: SplitLogs,
        stores: SplitStores,
        watermarks: Watermarks,
        holders: Callable[[list[str]], Awaitable[list[Holder | None]]],
        boundaries: Boundaries,
        counts: dict[str, int],
    ) -> None:
        self._load, self._logs, self._stores, self._watermarks = load, logs, stores, watermarks
        self._holders, self._boundaries, self._counts = holders, boundaries, counts

    async def read(self) -> ShardMapView:
        """The map as of now."""
        placement = await self._load()
        standing = await standing_of(placement, self._logs, self._stores)
        leases = await self._leases([f"s:{one.shard}" for one in standing.shards])
        mapping = placement.mapping
        return ShardMapView(
            placement.version,
            mapping.revision,
            mapping.groups,
            standing.partitions,
            [ShardRow(*one, lease) for one, lease in zip(standing.shards, leases, strict=True)],
            await self._split(mapping.splits[-1]) if mapping.splits else None,
        )

    async def leases(self) -> list[LeaseView]:
        """Every resource that can be leased."""
        return await self._leases(
            [f"{kind}:{n}" for kind, count in self._counts.items() for n in range(count)]
        )

    async def shard(self, shard: int) -> ShardView:
        """One shard. ProtocolError: there is no such one."""
        if not 0 <= shard < self._counts["s"]:
            raise ProtocolError("FIELD_INVALID", f"shard: 0 to {self._counts['s'] - 1}", field="shard")
        (state,) = await self._watermarks.watermarks([shard])
        (lease,) = await self._leases([f"s:{shard}"])
        boundaries = await self._last_boundaries(shard, state.epoch, lease.epoch or 0)
        return ShardView(shard, state.epoch, list(state.lanes), lease, boundaries)

    async def _last_boundaries(self, shard: int, written: int, leased: int) -> list[BoundaryView]:
        """Below the last epoch that wrote, and below the lease's; the newest first.

        In two windows: an epoch is a number of seconds where nothing is known of the one before, so between a
        shard that nobody has written yet and its lease there may be two thousand million of them.
        """
        found: dict[int, BoundaryView] = {}
        for last in filter(None, {written, leased}):
            first = max(1, last - BOUNDARIES_SHOWN + 1)
            for epoch, row in enumerate(await self._boundaries.read(shard, first, last), first):
                if row is not None:
                    found[epoch] = BoundaryView(epoch, row.granted_at_ms, min(row.lanes), max(row.lanes))
        return [found[epoch] for epoch in sorted(found, reverse=True)][:BOUNDARIES_SHOWN]

    async def _leases(self, names: list[str]) -> list[LeaseView]:
        holders = await self._holders(names)
        return [
            LeaseView(name, None, None, None, None, None)
            if one is None
            else LeaseView(name, one.node, one.boot, one.address, one.epoch, one.remaining_ms)
            for name, one in zip(names, holders, strict=True)
        ]

    async def _split(self, split: Split) -> SplitView:
        passed = caught_up = 0
        if split.step >= Step.SETTLED:
            stands = await self._stores.coverage([pair.old for pair in split.pairs])
            passed = len(split.marks)
            caught_up = sum(at >= end for at, end in zip(stands, split.ends, strict=True))
        elif split.marks:
            dispatched = await self._logs.dispatched()
            passed = sum(dispatched[at] >= mark for at, mark in enumerate(split.marks))
        step = STEPS[split.step]
        if split.step is Step.SETTLED and caught_up == len(split.pairs):
            step = STEPS[-1]
        return SplitView(
            split.version,
            step,
            [PairView(pair.old, pair.new, pair.first) for pair in split.pairs],
            len(split.begins),
            passed,
            len(split.pairs),
            caught_up,
        )
