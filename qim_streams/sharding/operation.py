"""SplitOperation: the steps of a split, each safe to repeat, by anybody, after any kill.

What has been done is in the logs and nowhere else, so a run begins with looking and goes on from there:

1. *plan*: the pairs, written down. Until the next step is, it can be abandoned.
2. *prepare*: that it is done. From here on everybody can learn the next version.
3. *mark*: a marker in every Outbox partition. What lies behind it is dispatched by the next version; one that
   is there already is found, a second one changes nothing.
4. *note the marks*: that all have one, and where.
5. *settle*: once the pages of fan-out are behind all marks, all records of the old version are in the
   dispatch log; where the old shards end then is the ShardSplitBoundary. Readers change over with it.
6. *wait* until the old shards' W has reached their ends. Nobody depends on anyone waiting.

Invariants: a step is written down only after what it says is true; of two runs at once the first to write a
step wins, and the other one goes on from what stands. There is no way back once markers may be in the
Outbox: such a split is finished.

What it does not do: move entries. They stay where they are until retention removes them.

Spec: §11.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from qim_streams import failpoints
from qim_streams.errors import ConfigError, InvariantViolation, Outcome, StoreError, StoreUnavailable
from qim_streams.sharding import rules
from qim_streams.sharding.follower import LOOK_S, Mappings
from qim_streams.sharding.mapping_log import encode, key_of
from qim_streams.sharding.ports import MappingLog
from qim_streams.sharding.rules import Placement, ShardMapping, Split, Step

log = logging.getLogger(__name__)

POLL_S: Final = 0.02  # between two looks at what others have yet to do
HEARD_S: Final = 1.5 * LOOK_S  # until gateways have heard of a split, and look for its end all the time
RECORDS_SURE: Final = 200  # a shard: with that many, none is without
TRIES_MAX: Final = 20  # of writing a step while others write, too


class SplitLogs(Protocol):
    """The logs of the pipeline, as a split needs them. StoreUnavailable when they do not answer."""

    async def outbox_ends(self) -> list[int]:
        """The end (next offset) of every Outbox partition."""

    async def dispatch_ends(self) -> list[int]:
        """The end of every dispatch partition."""

    async def dispatched(self) -> list[int]:
        """The last offset of every Outbox partition up to which fan-out has dispatched for certain."""

    async def find_markers(self, starts: Sequence[int], version: int) -> list[int | None]:
        """Per Outbox partition the offset of the first marker of a version from its start on, or None."""

    async def append_marker(self, partition: int, version: int) -> int:
        """Append one and return its offset."""


class SplitStores(Protocol):
    """What the hot tier says."""

    async def coverage(self, shards: Sequence[int]) -> list[int]:
        """W of each shard in its lowest lane."""

    async def unserved(self, shards: Sequence[int]) -> list[int]:
        """Those that nobody has leased."""

    async def sizes(self, shards: Sequence[int]) -> list[int]:
        """How many mailboxes with entries each shard has."""


class Standing(NamedTuple):
    """A split that is under way or done, for people."""

    version: int
    step: str
    detail: str
    done: bool


Tell = Callable[[Standing], object]


def _check_count(placement: Placement, ends: Sequence[int]) -> None:
    """ConfigError when the log contradicts the number of shards that this process was told.

    The first split writes that number down for everybody; a wrong one would stop every role. From then on
    it is known, and a shard whose users are quiet may well be empty.
    """
    if placement.mapping.splits:
        return
    shards = placement.shards
    beyond = [one for one, end in enumerate(ends) if end and one >= shards]
    empty = [one for one, end in enumerate(ends[:shards]) if not end]
    if beyond or (empty and sum(ends) > RECORDS_SURE * shards):
        what = f"{beyond[0]} has records" if beyond else f"{empty[0]} never had a record"
        raise ConfigError(
            f"mailbox_shards: this command was told of {shards} shards, but dispatch partition {what}: set "
            "QIM_MAILBOX_SHARDS to what the gateways and workers have"
        )


class SplitOperation:
    """See the module text."""

    def __init__(
        self,
        mappings: Mappings,
        mapping_log: MappingLog,
        logs: SplitLogs,
        stores: SplitStores,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._mappings, self._log = mappings, mapping_log
        self._logs, self._stores, self._sleep = logs, stores, sleep

    async def plan(self, olds: Sequence[int]) -> ShardMapping:
        """What a split of `olds` would be; nothing is written. ConfigError says why it is not possible."""
        placement = await self._mappings.load()
        ends = await self._logs.dispatch_ends()
        _check_count(placement, ends)
        begins = await self._logs.outbox_ends()
        mapping = rules.plan(placement.mapping, olds, dict(enumerate(ends)), begins, len(ends))
        unserved = await self._stores.unserved([pair.new for pair in mapping.splits[-1].pairs])
        if unserved:
            shown = ", ".join(map(str, unserved[:8]))
            raise StoreUnavailable(
                f"shards {shown}: no mailbox worker has leased them; their users would wait",
                Outcome.NOT_APPLIED,
            )
        return mapping

    async def begin(self, olds: Sequence[int]) -> Split:
        """Begin a split of `olds`. The one that stands afterwards is returned, if somebody was faster."""
        mapping = await self.plan(olds)
        await self._write(mapping)
        failpoints.hit("shard.planned")
        splits = self._mappings.current.mapping.splits
        if not splits:
            raise InvariantViolation("a split was written and is not in the log of mappings")
        return splits[-1]

    async def run(self, tell: Tell) -> Standing | None:
        """Finish what is under way and return how it stands; None when nothing was ever split.

        StoreError when a log or store does not answer; run it again.
        """
        told: Standing | None = None
        mapping = (await self._mappings.load()).mapping
        while mapping.splits:
            stands = await self._advance(mapping)
            if stands != told:
                told = stands
                tell(stands)
            if stands.done:
                return stands
            if self._mappings.current.mapping.revision == mapping.revision:
                await self._sleep(POLL_S)  # on others; after a step of ours the next one follows at once
                await self._mappings.load()
            mapping = self._mappings.current.mapping
        return None

    async def abort(self) -> Split:
        """Abandon the split that was planned and not prepared; it is returned. ConfigError: there is none."""
        mapping = (await self._mappings.load()).mapping
        split = mapping.under_way
        if split is None:
            raise ConfigError("no split is under way: there is nothing to abort")
        if split.step is Step.PLANNED:
            await self._write(rules.abandoned(mapping))
            split = self._mappings.current.mapping.splits[split.version - 1]
        if split.pairs:
            raise ConfigError(
                f"the split to mapping version {split.version} is {split.step.name.lower()}: the log may "
                "hold its markers, and it can only be finished, by `qim shard split`"
            )
        return split

    async def _advance(self, mapping: ShardMapping) -> Standing:
        split = mapping.splits[-1]
        if split.step is Step.PLANNED:
            await self._write(rules.prepared(mapping))
            failpoints.hit("shard.prepared")
            return Standing(split.version, "prepared", f"{len(split.begins)} Outbox partitions", done=False)
        if split.step is Step.PREPARED:
            return await self._mark(mapping, split)
        if split.step is Step.MARKED:
            return await self._settle(mapping, split)
        return await self._wait(Placement(mapping), split)

    async def _mark(self, mapping: ShardMapping, split: Split) -> Standing:
        found = await self._logs.find_markers(split.begins, split.version)
        if all(one is None for one in found):
            await self._sleep(HEARD_S)
        # All at once: whoever moves hears nothing from the first marker on until readers change over.
        marks = await asyncio.gather(*(self._mark_one(one, split, at) for one, at in enumerate(found)))
        failpoints.hit("shard.all_marked")
        await self._write(rules.marked(mapping, marks))
        failpoints.hit("shard.marks_noted")
        return Standing(split.version, "marked", f"{len(marks)} Outbox partitions", done=False)

    async def _mark_one(self, partition: int, split: Split, found: int | None) -> int:
        if found is not None:
            return found
        offset = await self._logs.append_marker(partition, split.version)
        failpoints.hit("shard.marked_some")
        return offset

    async def _settle(self, mapping: ShardMapping, split: Split) -> Standing:
        dispatched = await self._logs.dispatched()
        behind = [at for at, mark in enumerate(split.marks) if dispatched[at] < mark]
        if behind:
            shown = ", ".join(map(str, behind[:8]))
            return Standing(split.version, "dispatching", f"fan-out has yet to pass ob:{shown}", done=False)
        ends = await self._logs.dispatch_ends()
        failpoints.hit("shard.ends_read")
        await self._write(rules.settled(mapping, dict(enumerate(ends))))
        failpoints.hit("shard.settled")
        return Standing(split.version, "settled", "readers change over", done=False)

    async def _wait(self, placement: Placement, split: Split) -> Standing:
        if not split.pairs:
            return Standing(split.version, "abandoned", "nobody was moved", done=True)
        stands = await self._stores.coverage([pair.old for pair in split.pairs])
        behind = [
            pair.old
            for pair, end, at in zip(split.pairs, split.ends, stands, strict=True)
            if at < end and end > placement.last_of(pair.old, 0)  # one without records has nothing to reach
        ]
        if behind:
            detail = f"{len(behind)} old shards have yet to reach their ends"
            return Standing(split.version, "catching up", detail, done=False)
        return Standing(split.version, "done", f"{len(split.pairs)} new shards", done=True)

    async def _write(self, mapping: ShardMapping) -> None:
        """Append a revision; afterwards what stands is known, ours or another's."""
        for _ in range(TRIES_MAX):
            try:
                await self._log.append(key_of(mapping), encode(mapping))
            except StoreError as error:
                log.warning("a step may not have been written, looking: %s", error)
            if (await self._mappings.load()).mapping.revision >= mapping.revision:
                return
            await self._sleep(POLL_S)
        raise StoreUnavailable("the log of mappings does not take a step; run it again", Outcome.UNKNOWN)
