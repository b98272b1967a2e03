"""MailboxMaterialiser: from dispatch records to mailbox entries, W, and push.

Batches of any number of shards, one of each, go through these steps together; 1 to 5 in order, each durable
before the next begins:

1. decode; tell new, replayed, repeated and poison records apart (``intake``);
2. load the members (``members``);
3. poison to the dead letters;
4. entries, and W over them, in record order (``writer``);
5. push to devices that are online;
6. what was done is noted; `checkpoint` writes the notes of several batches as one page of
   ``dispatch_progress`` and W in ``lane_watermarks``, both acknowledged by the log.

Then these batches may be acknowledged. A crash after any step repeats the batches since the last
checkpoint from step 1: entries are skipped where they exist, W does not move twice, push repeats (clients
drop by event_id), pages are absolute. `handle` may be called again with the same batch after
StoreUnavailable, and so may `checkpoint`.

A large record does not hold the batch: it is queued in the lanes that it touches (``open_lanes``), `handle`
writes what need not wait behind it and returns, and steps 4 and 5 of the rest are done by ``slices``. Until
all lanes have it, a checkpoint covers and acknowledges only what lies before it.

Where a shard starts: after the last offset that page, table and store all know. What the store is ahead
of, lane by lane, is not written again, only its page; what it is behind of is written again (it lost its
last writes, or everything: then from the beginning of the log). Readers are told to wait until it has
caught up, and what the log itself has no more is trimmed for everybody; cursors above that stand, for the
numbers are the log's.

Spec: §5, §6, §11, §14.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from qim_streams import failpoints
from qim_streams.errors import EntryRefused, InvariantViolation, Outcome, StoreUnavailable
from qim_streams.joined import all_of
from qim_streams.log_ports import LogBatch, Poison, PoisonSink
from qim_streams.mailbox import metrics
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.floors import UNKNOWN_EPOCH, WatermarkFloors
from qim_streams.mailbox.intake import Kind, Taken, take
from qim_streams.mailbox.kept import KeptPositions
from qim_streams.mailbox.members import Addressed, MemberBitmaps, Members
from qim_streams.mailbox.open_lanes import OpenLanes
from qim_streams.mailbox.pages import DoneDispatch, OpenProgress
from qim_streams.mailbox.ports import MailboxStore
from qim_streams.mailbox.progress import DispatchProgress
from qim_streams.mailbox.shards import Shard, ShardLeases
from qim_streams.mailbox.slices import Slices, SliceTerms
from qim_streams.mailbox.spans import tell
from qim_streams.mailbox.tail import NoTail, Tail
from qim_streams.mailbox.watermark import Marks
from qim_streams.mailbox.writer import EntryWriter
from qim_streams.push.ports import Pusher
from qim_streams.spans.service import MessageSpans

log = logging.getLogger(__name__)

LogEnd = Callable[[int], Awaitable[int]]
# Records kept because of one that waits: a page of progress must hold them all.
BEHIND_MAX = 8_000
_NOBODY: list[int] = []
_MEMBERS_GONE = "GroupDispatch: its member bitmap is not in the membership store"
_NEW, _REPLAY = Kind.NEW, Kind.REPLAY
_new = tuple.__new__


class _Work(NamedTuple):
    """A batch on its way through the steps."""

    shard: Shard
    batch: LogBatch
    taken: list[Taken]
    records: list[Addressed]


class MailboxMaterialiser:
    """The mailbox stage of one worker. A shard is in one `handle` or `checkpoint` at a time."""

    def __init__(
        self,
        topic: str,
        *,
        store: MailboxStore,
        leases: ShardLeases,
        progress: DispatchProgress,
        floors: WatermarkFloors,
        members: MemberBitmaps,
        poison: PoisonSink,
        pusher: Pusher,
        log_end: LogEnd,
        log_begin: LogEnd,
        now_ms: Callable[[], int],
        entries_max: int,
        slicing: SliceTerms | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        tail: Tail | None = None,
        spans: MessageSpans | None = None,
    ) -> None:
        self._spans = spans
        self._topic, self._store, self._leases = topic, store, leases
        self._tail = tail or NoTail()
        self._progress, self._floors, self._members = progress, floors, members
        self._poison, self._pusher = poison, pusher
        self._log_end, self._log_begin, self._now_ms = log_end, log_begin, now_ms
        self._monotonic = monotonic
        terms = slicing or SliceTerms(entries_max, entries_max, 0.05)
        self._writer = EntryWriter(store, entries_max, terms.large_above)
        self.slices = Slices(
            self._writer,
            pusher,
            self._tail,
            size_max=terms.size_max,
            wait_s=terms.wait_s,
            now_ms=now_ms,
            die=leases.die,
            monotonic=monotonic,
            spans=spans,
        )

    # -- a shard comes and goes

    async def start_position(self, shard: int) -> int:
        """Take the shard's lease and say which offset comes next.

        InvariantViolation when the log ends before what was promised: it was re-created or truncated.
        """
        epoch = await self._leases.acquire(shard)
        failpoints.hit("takeover.lease_granted")
        state = await self._store.watermark(shard)
        paged = await self._progress.recover(shard)
        tabled, stands = self._floors.read(shard), rule.marks(state.lanes)
        done, owed = min(paged, rule.lowest(tabled)), rule.merged(tabled, paged)
        highest, stored = rule.highest(owed), rule.lowest(stands)
        end, known = await self._log_end(shard), rule.highest(rule.merged(owed, stands))
        if known >= end:
            raise InvariantViolation(
                f"shard {shard}: W is {known}, but the log ends at {end - 1}: the topic was "
                "re-created or truncated; raise the shard's epoch and reset its position"
            )
        fell_back = rule.is_below(stands, owed)
        if fell_back:
            metrics.ALARMS.labels("store_fell_back").inc()
            log.error("shard %d: W is %d in the store and was %d: replaying", shard, stored, highest)
        failpoints.hit("takeover.watermark_recomputed")
        await self._tell_readers(shard, epoch, stands, highest if fell_back else rule.NOTHING, end - 1)
        failpoints.hit("takeover.readers_told")
        start = min(done, stored) + 1
        served = Shard(
            shard, epoch, coverage=stored, floor=highest if fell_back else min(highest, stored),
            pushed_through=done, buried_through=rule.NOTHING, tabled=tabled,
        )  # fmt: skip
        served.owed_through = end - 1 if stands == rule.NOTHING else highest
        if not isinstance(stands, int):
            served.open = self._writer.lanes_of(state, start - 1, done)
        await self._pusher.attach(served)
        self._leases.served[shard] = served
        if served.open is not None:
            self.slices.begin(served, served.open)
        metrics.WATERMARK.labels(str(shard)).set(stored)
        log.info("shard %d: epoch %d, W %d, done %d", shard, epoch, stored, done)
        self._tail.begin(shard, start)
        failpoints.hit("takeover.serving")
        return start

    async def _tell_readers(self, shard: int, epoch: int, stands: Marks, owed: int, last: int) -> None:
        """What the store owes them, what nobody can give them any more, and which old cursors still stand."""
        gone, kept, since = rule.NOTHING, None, self._floors.since_epoch(shard)
        if stands == rule.NOTHING:
            gone = await self._log_begin(shard) - 1
            if since != UNKNOWN_EPOCH and since < epoch:
                kept = KeptPositions(since, epoch, last)
            else:
                gone = min(gone, owed)  # what was deleted before this shard had an owner was nobody's
        await self._store.promise(shard, epoch, owed, max(gone, rule.NOTHING), kept)
        if since == UNKNOWN_EPOCH:
            self._floors.write(shard, self._floors.read(shard), epoch, self._now_ms())

    async def release(self, shards: frozenset[int]) -> None:
        """Give `shards` up: nothing more is written to them by us."""
        await self.slices.end(shards)
        for shard in shards:
            self._progress.forget(shard)
            metrics.forget(shard)
        await self._pusher.detach(shards)
        self._leases.release(shards)
        await self._tail.release(shards)

    async def close(self) -> None:
        """Give everything up."""
        await self.slices.end(frozenset(self._leases.served))
        await self._leases.close()

    # -- a batch

    async def handle(self, batches: Sequence[LogBatch]) -> None:
        """Make everything that `batches` cause durable but their notes (see the module text).

        Of large records that is left to ``slices``. StoreUnavailable: repeat with the same batches.
        """
        failpoints.hit("mailbox.dispatch_polled")
        with self.slices.batch():
            found = await self._intake(batches)
            failpoints.hit("mailbox.bitmap_loaded")
            if failpoints.armed("takeover.replay_partial") and any(
                one.batch.records[0].offset <= one.shard.coverage for one in found
            ):
                failpoints.hit("takeover.replay_partial")
            for one in found:
                await self._bury(one.shard, one.taken)
                await self._give_up(one.shard, one.taken)
            opened: dict[int, OpenLanes] = {}
            await all_of([self._write(one, opened) for one in found])
            even = [one for one in found if one.shard.shard not in opened]
            if self._spans is not None:
                tell(self._spans, [(one.shard, one.taken) for one in even], self._monotonic())
            await self._pusher.push([(one.shard, one.records) for one in even])
            apart = [one.shard for one in found if one.shard.shard in opened]
            await all_of([self.slices.follow(shard, opened[shard.shard]) for shard in apart])
            failpoints.hit("mailbox.pushed")
            for one in found:
                self._note(one, opened.get(one.shard.shard))
                metrics.WATERMARK.labels(str(one.shard.shard)).set(one.shard.coverage)
                if one.shard.shard not in opened:
                    self._tail.feed(one.shard.shard, one.records)
                one.shard.held_since_s = None

    async def _write(self, work: _Work, opened: dict[int, OpenLanes]) -> None:
        """Entries and W; a shard whose lanes stand apart, or did before this call, is put into `opened`."""
        shard = work.shard
        if shard.open is None:
            try:
                if await self._writer.write(shard, work.records):
                    return
            except EntryRefused as error:
                log.error("shard %d: a mailbox refuses its entry, lanes part: %s", shard.shard, error)
        async with shard.writing:
            lanes = shard.open
            if lanes is None:
                lanes = await self._writer.open(shard, work.batch.previous_offset)
                self.slices.begin(shard, lanes)
            await self._writer.settle(shard)
            self._queue(lanes, work)
            await self._writer.flush(shard, lanes, self._monotonic())
        opened[shard.shard] = lanes
        self.slices.wake(shard)

    def _queue(self, lanes: OpenLanes, work: _Work) -> None:
        """Queue what was not queued before."""
        now_s, large_above = self._monotonic(), self._writer.large_above
        before = work.batch.previous_offset
        for one in work.records:
            if one.offset > lanes.known:
                lanes.take(one, before, is_large=len(one.members) > large_above, now_s=now_s)
            before = one.offset

    async def _intake(self, batches: Sequence[LogBatch]) -> list[_Work]:
        """What each record is, and whom it is for."""
        work = []
        for batch in batches:
            shard = self._leases.served[batch.partition]
            await self._check(shard, batch)
            taken = take(batch.records, shard.shard, partial(self._progress.seen, shard.shard))
            work.append((shard, batch, taken))
        addressed = await self._address([taken for _, _, taken in work])
        return [
            _Work(shard, batch, *judged) for (shard, batch, _), judged in zip(work, addressed, strict=True)
        ]

    async def _check(self, shard: Shard, batch: LogBatch) -> None:
        if shard.held_since_s is None:
            shard.held_since_s = self._monotonic()
        lanes = shard.open
        if lanes is None:
            await self._writer.settle(shard)
        elif lanes.behind > BEHIND_MAX:
            raise StoreUnavailable(
                f"shard {shard.shard}: {lanes.behind} records wait behind the one after {lanes.through}",
                Outcome.NOT_APPLIED,
            )
        read = shard.coverage if lanes is None else lanes.known
        if read < batch.previous_offset:
            raise InvariantViolation(
                f"shard {shard.shard}: W is {shard.coverage}, but {batch.previous_offset} was read before: "
                "records in between would be covered without entries"
            )

    async def _address(self, batches: Sequence[Sequence[Taken]]) -> list[tuple[list[Taken], list[Addressed]]]:
        """Every record with its members, per batch; one whose members are gone becomes poison."""
        loaded = iter(
            await self._members.load(
                [
                    one.dispatch
                    for taken in batches
                    for one in taken
                    if one.dispatch is not None and ((kind := one.kind) is _NEW or kind is _REPLAY)
                ]
            )
        )
        return [_addressed(taken, loaded) for taken in batches]

    async def _bury(self, shard: Shard, taken: Sequence[Taken]) -> None:
        """Set poison aside, once per offset unless the process dies in between."""
        poison = Kind.POISON
        found = [one for one in taken if one.kind is poison and one.offset > shard.buried_through]
        if not found:
            return
        forged = sum(one.forged for one in found)
        if forged:
            metrics.ALARMS.labels("forged_repeat").inc(forged)
        for one in found[:5]:
            log.error("shard %d: poison at offset %d: %s", shard.shard, one.offset, one.cause)
        await self._poison.send([Poison(self._topic, shard.shard, one.record, one.cause) for one in found])
        shard.buried_through = found[-1].offset

    async def _give_up(self, shard: Shard, taken: Sequence[Taken]) -> None:
        """What cannot be replayed is lost to those who have not read it: they rebuild from the histories."""
        lost = [
            one.offset for one in taken if one.cause == _MEMBERS_GONE and one.offset <= shard.owed_through
        ]
        if lost:
            log.error("shard %d: members of what was replayed at %d are gone", shard.shard, lost[-1])
            promised = rule.NOTHING if shard.caught_up else shard.floor
            await self._store.promise(shard.shard, shard.epoch, promised, lost[-1])

    async def checkpoint(self, partitions: Sequence[int]) -> dict[int, int]:
        """Make durable what is done so far: pages, and W as the tables know it.

        Returns how far that is for each partition, inclusive: records above are to be read again after a
        crash, since some lane does not have them yet.
        """
        now_ms = self._now_ms()
        shards = [self._leases.served[partition] for partition in partitions]
        reached = {shard.shard: shard.done_through for shard in shards}
        for shard in shards:
            self._write_progress(shard, reached[shard.shard], now_ms)
        failpoints.hit("mailbox.pages_sent")
        for shard in shards:  # all were sent above: the waits overlap
            await self._progress.barrier(shard.shard)
            await self._floors.barrier(shard.shard)
        for shard in shards:
            self._progress.settle(shard.shard)
            shard.floor = max(shard.floor, reached[shard.shard])
        failpoints.hit("mailbox.progress_marked")
        return reached

    def _write_progress(self, shard: Shard, through: int, now_ms: int) -> None:
        lanes = shard.open
        marked = None if lanes is None else lanes.chunks_done()
        opened = None if marked is None else OpenProgress(*marked)
        last = self._progress.write_page(shard.shard, now_ms, through=through, opened=opened)
        stands: Marks = rule.NOTHING if last is None else last
        if lanes is not None:
            stands = lanes.visible()
        tabled = rule.merged(shard.tabled, stands)
        if tabled != shard.tabled:
            self._floors.write(shard.shard, tabled, shard.epoch, now_ms)
            shard.tabled = tabled

    def _note(self, work: _Work, lanes: OpenLanes | None) -> None:
        shard, taken = work.shard, work.taken
        rows = [
            _new(DoneDispatch, (one.offset, one.dispatch.dispatch_id, one.digest))
            for one in taken
            if one.dispatch is not None and ((kind := one.kind) is _NEW or kind is _REPLAY)
        ]
        shard.noted_through = taken[-1].offset
        # Nothing was read before the first record of all, wherever the shard's positions begin.
        first = work.batch.previous_offset + 1 or taken[0].offset
        self._progress.note(shard.shard, first, shard.noted_through, rows)
        # While lanes stand apart, each record is told of MAILBOXED when its last lane has it (``slices``).
        metrics.count(taken, self._now_ms(), with_age=lanes is None)


def _addressed(
    taken: Sequence[Taken], loaded: Iterator[Members | None]
) -> tuple[list[Taken], list[Addressed]]:
    judged, records = [], []
    for one in taken:
        offset, kind, _, dispatch, _, _, _ = one
        members: Members | None = _NOBODY
        if kind is _NEW or kind is _REPLAY:
            members = next(loaded)
        else:
            dispatch = None
        if members is None:
            metrics.ALARMS.labels("members_missing").inc()
            one = one._replace(kind=Kind.POISON, cause=_MEMBERS_GONE)
            dispatch, members = None, _NOBODY
        judged.append(one)
        records.append(_new(Addressed, (offset, dispatch, members)))
    return judged, records
