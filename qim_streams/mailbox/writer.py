"""Writing entries and moving W: as few store calls as the bounds allow, in every lane in record order.

While all lanes of a shard stand together (`write`), records are merged: up to `entries_max` mailboxes of
consecutive records go into one atomic call that also moves W from the coverage point to the last of them.
At a large record, and where a mailbox refuses its entry, that ends: the shard gets `OpenLanes`, in which
each lane goes on by itself, `flush` for what small records have in front and `write_slice` for the rest.

Every call compares W as a whole and moves it, so that a store that lost its last writes takes no more.

Spec: §5, §14.2, §14.6.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from qim_streams import failpoints
from qim_streams.errors import EntryRefused, InvariantViolation, Outcome, StoreError, StoreUnavailable
from qim_streams.mailbox import metrics
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.entries import groups_of
from qim_streams.mailbox.members import Addressed, Members
from qim_streams.mailbox.open_lanes import Cut, OpenLanes
from qim_streams.mailbox.ports import EntryGroup, MailboxStore, WatermarkState
from qim_streams.mailbox.shards import Shard
from qim_streams.mailbox.watermark import Marks
from qim_streams.records import GroupDispatch

log = logging.getLogger(__name__)

REFUSED_RETRY_S = 1.0  # how long a lane that refuses its entries is left alone


class EntryWriter:
    """The write path of the mailbox stage. Stateless between calls: what is known is in `Shard`.

    A record with more than `large_above` recipients is large (never more than a call takes).
    """

    def __init__(self, store: MailboxStore, entries_max: int, large_above: int | None = None) -> None:
        self._store, self._max = store, entries_max
        self.large_above = min(entries_max, entries_max if large_above is None else large_above)

    async def settle(self, shard: Shard) -> None:
        """Resolve an unknown outcome by reading W back; StoreError when the store fell back."""
        if not shard.unsure:
            return
        stands = rule.marks((await self._store.watermark(shard.shard)).lanes)
        lanes = shard.open
        if lanes is None:
            self._not_fallen(shard, shard.coverage, stands)
            shard.coverage = rule.lowest(stands)
        else:
            self._not_fallen(shard, lanes.stands, stands)
            self._settle_pending(shard, lanes, stands)
        shard.unsure = False

    async def write(self, shard: Shard, records: Sequence[Addressed]) -> bool:
        """Make the entries of `records` above the coverage durable and cover them, in order.

        False: it stopped before a large record, which needs lanes of its own. StoreUnavailable: repeat
        with the same records; what was covered is skipped. EntryRefused: a mailbox does not take its entry.
        """
        run: list[EntryGroup] = []
        size, end = 0, shard.coverage
        small = True
        for one in records:
            offset, dispatch, members = one
            if offset <= shard.coverage:
                continue
            count = len(members)
            if count > self.large_above:
                small = False
                break
            if size and size + count > self._max:
                await self._cover(shard, run, end)
                run, size = [], 0
            if dispatch is not None and count:
                run += _groups(dispatch, offset, members)
                size += count
            end = offset
        if end > shard.coverage:
            await self._cover(shard, run, end)
        return small

    async def _cover(self, shard: Shard, groups: list[EntryGroup], observed: int) -> None:
        """One atomic call: entries, then W to `observed`."""
        if failpoints.armed("mailbox.entries_partial") or failpoints.armed("mailbox.entries_durable"):
            await self._tear(shard, groups, shard.coverage)
        expected = shard.coverage
        with _resolving(shard):
            stands = await self._store.write_and_advance(shard.shard, shard.epoch, groups, expected, observed)
        metrics.CALLS.labels("advance").inc()
        metrics.ENTRIES.inc(sum([len(group.ordinals) for group in groups]))
        if stands != observed:
            self._not_fallen(shard, expected, stands)
            raise _moved_by_somebody(shard, stands, expected, observed)
        shard.coverage = observed
        failpoints.hit("mailbox.watermark_advanced")

    # -- lanes that stand apart

    async def open(self, shard: Shard, known: int) -> OpenLanes:
        """Let the lanes of `shard` go on one by one, with the record after offset `known`."""
        state = await self._store.watermark(shard.shard)
        self._not_fallen(shard, shard.coverage, rule.marks(state.lanes))
        lanes = self.lanes_of(state, known, shard.pushed_through)
        shard.open = lanes
        return lanes

    def lanes_of(self, state: WatermarkState, known: int, pushed: int) -> OpenLanes:
        """The lanes as the store has them; `known` is the last offset that was read."""
        opened = (state.open_record, state.open_steps)
        return OpenLanes(rule.marks(state.lanes), known, pushed, self._max, opened=opened)

    async def flush(self, shard: Shard, lanes: OpenLanes, now_s: float) -> None:
        """Write whatever small records have in front of their lanes, and move W over what nobody waits in.

        Lanes that refuse are held. StoreUnavailable: repeat.
        """
        while (cut := lanes.small(now_s)) is not None:
            await self._write_cut(shard, lanes, cut, now_s)

    async def write_slice(
        self, shard: Shard, lanes: OpenLanes, size_max: int, now_s: float, *, by_age: bool = False
    ) -> int:
        """Write the next slice; how many mailboxes it had, 0: nothing to do now. StoreUnavailable: repeat."""
        cut = lanes.slice(min(size_max, self._max), now_s, by_age=by_age)
        if cut is None:
            return 0
        await self._write_cut(shard, lanes, cut, now_s)
        failpoints.hit("mailbox.slice_written")
        return sum([len(part.ordinals) for part in cut.parts])

    async def _write_cut(self, shard: Shard, lanes: OpenLanes, cut: Cut, now_s: float) -> None:
        """One cut; if it is refused, each of its lanes by itself, and those that refuse are held."""
        try:
            await self._call(shard, lanes, cut)
            return
        except EntryRefused as error:
            if len(cut.taken) <= 1:
                self._hold(shard, lanes, cut, error, now_s)
                return
        for lane in cut.taken:
            alone = lanes.only(lane, cut)
            try:
                await self._call(shard, lanes, alone)
            except EntryRefused as error:
                self._hold(shard, lanes, alone, error, now_s)

    def _hold(self, shard: Shard, lanes: OpenLanes, cut: Cut, error: EntryRefused, now_s: float) -> None:
        held = list(cut.taken) or [int(cut.record.split(".")[1])]
        if not held:
            raise error
        for lane in held:
            if lanes.hold(lane, now_s + REFUSED_RETRY_S):
                log.error("shard %d: lane %d is held, others go on: %s", shard.shard, lane, error)

    async def _call(self, shard: Shard, lanes: OpenLanes, cut: Cut) -> None:
        groups = [
            group
            for record, ordinals in cut.parts
            for group in groups_of(
                record.dispatch, record.offset, ordinals, record.dispatch.sender_ordinal in ordinals
            )
        ]
        metrics.ENTRIES.inc(sum([len(group.ordinals) for group in groups]))
        if cut.step >= 0:
            await self._step(shard, lanes, cut, groups)
            return
        expected, observed = lanes.stands, lanes.after(cut)
        if not cut.record and failpoints.armed("mailbox.entries_partial"):
            await self._tear(shard, groups, expected)
        lanes.pending = cut, observed
        with _resolving(shard):
            stands = await self._store.write_and_advance(
                shard.shard, shard.epoch, groups, expected, observed, record=cut.record, steps=cut.steps
            )
        lanes.pending = None
        metrics.CALLS.labels("advance").inc()
        if stands == expected and cut.record:
            lanes.stepped(cut, 0)
            metrics.ALARMS.labels("store_fell_back").inc()
            raise StoreUnavailable(f"shard {shard.shard}: the store lost steps of {cut.record}", _NOT)
        if stands != observed:
            self._not_fallen(shard, expected, stands)
            raise _moved_by_somebody(shard, stands, expected, observed)
        self._advanced(shard, lanes, cut, observed)

    async def _step(self, shard: Shard, lanes: OpenLanes, cut: Cut, groups: list[EntryGroup]) -> None:
        """A part of a lane that takes several calls: W stays."""
        with _resolving(shard):
            stands = await self._store.write_step(
                shard.shard, shard.epoch, groups, lanes.stands, cut.record, cut.step
            )
        metrics.CALLS.labels("step").inc()
        if stands < 0:
            shard.unsure = True  # reading W back tells what happened to it
        if stands <= cut.step:
            lanes.stepped(cut, max(stands, 0))
            metrics.ALARMS.labels("store_fell_back").inc()
            raise StoreUnavailable(
                f"shard {shard.shard}: the store has {stands} steps of {cut.record}, it had {cut.step}", _NOT
            )
        lanes.stepped(cut, stands)
        failpoints.hit("mailbox.entries_durable")

    def _settle_pending(self, shard: Shard, lanes: OpenLanes, stands: Marks) -> None:
        """What became of the call whose answer was lost: W stands before it or behind it."""
        pending, lanes.pending = lanes.pending, None
        if stands == lanes.stands:
            return
        if pending is None or stands != pending[1]:
            raise _moved_by_somebody(shard, stands, lanes.stands, pending and pending[1])
        self._advanced(shard, lanes, *pending)

    def _advanced(self, shard: Shard, lanes: OpenLanes, cut: Cut, observed: Marks) -> None:
        lanes.done(cut, observed)
        shard.coverage = rule.lowest(observed)
        if not lanes.waits:
            failpoints.hit("mailbox.all_chunks_done")
        failpoints.hit("mailbox.watermark_advanced")

    def _not_fallen(self, shard: Shard, was: Marks, stands: Marks) -> None:
        """StoreError when W stands lower than it was, in any lane."""
        if rule.is_below(stands, was):
            metrics.ALARMS.labels("store_fell_back").inc()
            raise StoreError(
                f"shard {shard.shard}: W was {rule.lowest(was)} and is {rule.lowest(stands)}: the store lost "
                "its last writes; the next start replays them",
                Outcome.UNKNOWN,
            )

    async def _tear(self, shard: Shard, groups: list[EntryGroup], stands: Marks) -> None:
        """Only where a test asks for it: the states between entries and W, which one call never shows."""
        points = ("mailbox.entries_partial", "mailbox.entries_durable")
        for point, count in zip(points, (len(groups) // 2, len(groups)), strict=True):
            if failpoints.armed(point):
                part = list(islice(groups, count))
                name = f"torn.{rule.highest(stands)}"
                await self._store.write_step(shard.shard, shard.epoch, part, stands, name, 0)
                failpoints.hit(point)


_NOT = Outcome.NOT_APPLIED


def _moved_by_somebody(shard: Shard, stands: Marks, expected: Marks, observed: Marks | None) -> Exception:
    return InvariantViolation(
        f"shard {shard.shard}: W stands at {stands}, neither at {expected} nor at {observed}, "
        "although the epoch is ours"
    )


@contextmanager
def _resolving(shard: Shard) -> Iterator[None]:
    """Remember an unknown outcome; a refused write holds its lane, not the worker's other shards."""
    try:
        yield
    except StoreUnavailable as error:
        shard.unsure = shard.unsure or error.outcome is not Outcome.NOT_APPLIED
        raise
    except StoreError as error:
        if error.outcome is not Outcome.NOT_APPLIED:
            raise
        metrics.ALARMS.labels("store_refused").inc()
        raise EntryRefused(f"refused: {error}", Outcome.NOT_APPLIED) from error


def _groups(dispatch: GroupDispatch, offset: int, members: Members) -> list[EntryGroup]:
    ordinals = members if isinstance(members, list) else members.to_array()
    return groups_of(dispatch, offset, ordinals, dispatch.sender_ordinal in members)
