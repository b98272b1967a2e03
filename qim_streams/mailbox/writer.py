"""Writing entries and moving W: as few store calls as the bounds allow, strictly in record order.

Small records are merged: up to `entries_max` mailboxes of consecutive records go into one atomic call
that also moves W from the coverage point to the last of them. A record with more mailboxes is written in
steps (``lanes``); after each step its chunks are marked done, durably, and W moves when all of them are.
A resumed record goes on after the steps that both the table and the store know: the table may be ahead
of a store that lost its last writes, and the store of a table that was not told in time.

Spec: §5, §14.2, §14.6.
"""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyroaring import BitMap

from qim_streams import failpoints
from qim_streams.errors import InvariantViolation, Outcome, StoreError, StoreUnavailable
from qim_streams.mailbox import lanes, metrics
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.entries import groups_of
from qim_streams.mailbox.members import Addressed, Members
from qim_streams.mailbox.pages import OpenProgress
from qim_streams.mailbox.ports import EntryGroup, MailboxStore
from qim_streams.mailbox.progress import DispatchProgress
from qim_streams.mailbox.shards import Shard
from qim_streams.records import GroupDispatch


class EntryWriter:
    """The write path of the mailbox stage. Stateless between calls: what is known is in `Shard`."""

    def __init__(self, store: MailboxStore, progress: DispatchProgress, entries_max: int) -> None:
        self._store, self._progress, self._max = store, progress, entries_max

    async def settle(self, shard: Shard) -> None:
        """Resolve an unknown outcome by reading W back; StoreError when the store fell back."""
        if shard.unsure:
            state = await self._store.watermark(shard.shard)
            self._moved(shard, shard.coverage, rule.coverage(state.lanes))
            shard.unsure = False

    async def write(self, shard: Shard, records: Sequence[Addressed]) -> None:
        """Make the entries of all `records` above the coverage durable and cover them, in order.

        StoreUnavailable: repeat with the same records; what was covered is skipped.
        """
        run: list[EntryGroup] = []
        size, end = 0, shard.coverage
        for one in records:
            offset, dispatch, members = one
            if offset <= shard.coverage:
                continue
            count = len(members)
            if size and size + count > self._max:
                await self._cover(shard, run, end)
                run, size = [], 0
            if count > self._max:
                if end > shard.coverage:
                    await self._cover(shard, run, end)
                    run = []
                await self._write_large(shard, one)
            elif dispatch is not None and count:
                run += _groups(dispatch, offset, members)
                size += count
            end = offset
        if end > shard.coverage:
            await self._cover(shard, run, end)

    async def _cover(self, shard: Shard, groups: list[EntryGroup], observed: int) -> None:
        """One atomic call: the entries of a run of records, and W from the coverage to `observed`."""
        await self._tear(shard, groups)
        expected = shard.coverage
        with _resolving(shard):
            stands = await self._store.write_and_advance(shard.shard, shard.epoch, groups, expected, observed)
        metrics.CALLS.labels("advance").inc()
        metrics.ENTRIES.inc(sum([len(group.ordinals) for group in groups]))
        if stands != observed:
            self._moved(shard, expected, stands)
            raise InvariantViolation(
                f"shard {shard.shard}: W stands at {stands}, neither at {expected} nor at {observed}, "
                "although the epoch is ours"
            )
        shard.coverage = observed
        failpoints.hit("mailbox.watermark_advanced")

    async def _write_large(self, shard: Shard, one: Addressed) -> None:
        """A record with more mailboxes than a call takes: steps, progress after each, then W."""
        assert one.dispatch is not None
        members = one.members if isinstance(one.members, BitMap) else BitMap(one.members)
        record = f"{one.offset}.{self._max}"
        steps = lanes.plan_steps(members, self._max)
        at = await self._resume_at(shard, record, steps)
        done: dict[int, int] = {}
        for step in steps[:at]:
            done = lanes.mark(done, step)
        sender = one.dispatch.sender_ordinal if one.dispatch.sender_ordinal in members else None
        for number in range(at, len(steps)):
            step = steps[number]
            groups = _step_groups(one.dispatch, one.offset, step, sender)
            await self._write_step(shard, groups, record, number)
            failpoints.hit("mailbox.entries_durable")
            done = lanes.mark(done, step)
            await self._progress.mark_open(shard.shard, OpenProgress(one.offset, record, done))
            failpoints.hit("mailbox.progress_marked")
        failpoints.hit("mailbox.all_chunks_done")
        await self._close_large(shard, one.offset, record, len(steps))

    async def _resume_at(self, shard: Shard, record: str, steps: Sequence[lanes.Step]) -> int:
        opened = self._progress.open(shard.shard)
        marked = lanes.steps_done(steps, opened.done) if opened and opened.record == record else 0
        if not marked:
            return 0
        state = await self._store.watermark(shard.shard)
        return min(marked, state.open_steps if state.open_record == record else 0)

    async def _write_step(self, shard: Shard, groups: list[EntryGroup], record: str, number: int) -> None:
        with _resolving(shard):
            stands = await self._store.write_step(
                shard.shard, shard.epoch, groups, shard.coverage, record, number
            )
        metrics.CALLS.labels("step").inc()
        metrics.ENTRIES.inc(sum([len(group.ordinals) for group in groups]))
        if stands < 0:
            shard.unsure = True  # reading W back tells what happened to it
        if stands <= number:
            metrics.ALARMS.labels("store_fell_back").inc()
            raise StoreUnavailable(
                f"shard {shard.shard}: the store has {stands} steps of record {record}, it had {number}",
                Outcome.NOT_APPLIED,
            )

    async def _close_large(self, shard: Shard, offset: int, record: str, steps: int) -> None:
        expected = shard.coverage
        with _resolving(shard):
            stands = await self._store.write_and_advance(
                shard.shard, shard.epoch, (), expected, offset, record=record, steps=steps
            )
        metrics.CALLS.labels("advance").inc()
        if stands == expected:
            metrics.ALARMS.labels("store_fell_back").inc()
            raise StoreUnavailable(
                f"shard {shard.shard}: the store lost steps of record {record}", Outcome.NOT_APPLIED
            )
        self._moved(shard, expected, stands)
        failpoints.hit("mailbox.watermark_advanced")

    def _moved(self, shard: Shard, expected: int, stands: int) -> None:
        """Take over the coverage that stands; StoreError when it is lower than it was."""
        if stands < expected:
            metrics.ALARMS.labels("store_fell_back").inc()
            raise StoreError(
                f"shard {shard.shard}: W was {expected} and is {stands}: the store lost its last writes; "
                "the next start replays them",
                Outcome.UNKNOWN,
            )
        shard.coverage = stands

    async def _tear(self, shard: Shard, groups: list[EntryGroup]) -> None:
        """Only where a test asks for it: the states between entries and W, which one call never shows."""
        points = ("mailbox.entries_partial", "mailbox.entries_durable")
        for point, count in zip(points, (len(groups) // 2, len(groups)), strict=True):
            if failpoints.armed(point):
                at = shard.coverage
                part = groups[:count]
                await self._store.write_step(shard.shard, shard.epoch, part, at, f"torn.{at}", 0)
                failpoints.hit(point)


@contextmanager
def _resolving(shard: Shard) -> Iterator[None]:
    """Remember an unknown outcome; a refused write holds its shard, not the worker's other shards."""
    try:
        yield
    except StoreUnavailable as error:
        shard.unsure = shard.unsure or error.outcome is not Outcome.NOT_APPLIED
        raise
    except StoreError as error:
        if error.outcome is not Outcome.NOT_APPLIED:
            raise
        metrics.ALARMS.labels("store_refused").inc()
        raise StoreUnavailable(f"refused: {error}", Outcome.NOT_APPLIED) from error


def _groups(dispatch: GroupDispatch, offset: int, members: Members) -> list[EntryGroup]:
    ordinals = members if isinstance(members, list) else members.to_array()
    return groups_of(dispatch, offset, ordinals, dispatch.sender_ordinal in members)


def _step_groups(
    dispatch: GroupDispatch, offset: int, step: lanes.Step, sender: int | None
) -> list[EntryGroup]:
    ordinals = array("I")
    for chunk in step.chunks:
        ordinals.extend(chunk.ordinals)
    return groups_of(dispatch, offset, ordinals, sender is not None and sender in ordinals)
