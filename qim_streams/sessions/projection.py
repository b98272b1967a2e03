"""SessionProjection: from dispatch records to the rows of session lists, and a checkpoint behind them.

A sweep (batches of any number of shards) goes through these steps, each durable before the next begins:

1. decode (what the mailbox stage refuses is left out here, too), load members, fold by (user, conversation);
2. rows, in as few store calls as there are slots; a conversation that is new to a user is registered in the
   same atomic step;
3. what was handled is noted; `checkpoint` moves the shards' checkpoints by compare-and-set, in the life of
   the store in which the rows were written: started again it may have lost them and kept the checkpoint.

A crash after any step repeats the records since the checkpoint, which changes nothing: rows only grow. The
group's committed offset decides nothing.

Where a shard starts: after its checkpoint. If there is none, or the log does not hold the next offset any
more, a new projection epoch begins: at offset 0 if nobody ever covered anything and the log is whole, else
right after the mailboxes' watermark, since what is below is in mailboxes, from which users are rebuilt when
they are asked for (`session_rebuild`).

Spec: §9.
"""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from qim_streams import failpoints
from qim_streams.errors import FencedError, InvariantViolation, RecordError, StoreUnavailable
from qim_streams.log_ports import LogBatch, LogRecord
from qim_streams.mailbox.intake import read_dispatch
from qim_streams.mailbox.members import Addressed, MemberBitmaps
from qim_streams.membership.ports import MembershipReader
from qim_streams.records import GroupDispatch
from qim_streams.sessions import projection_metrics as metrics
from qim_streams.sessions.projection_ports import Advance, ProjectionStore
from qim_streams.sessions.projection_records import FIRST_EPOCH, NOTHING, Checkpoint, SessionRow, Slot
from qim_streams.sessions.projection_rules import Folded, Folder
from qim_streams.sessions.wide_covers import WideCovers

log = logging.getLogger(__name__)

LogRange = Callable[[int], Awaitable[tuple[int, int]]]
"""The first offset kept of a shard's dispatch log, and the next one to be written."""
Watermark = Callable[[int], Awaitable[int]]
"""Up to which offset mailboxes hold everything of a shard, -1 for nothing."""
Die = Callable[[str], NoReturn]
_ADVANCES_MAX = 4
_new = tuple.__new__


@dataclass(slots=True)
class ShardProgress:
    """A shard that is projected here. Offsets are inclusive."""

    epoch: int
    checkpoint: int  # as it stands in the store
    handled: int  # rows of everything up to here are durable, wide messages that wait aside
    life: str  # of the store, in which rows above the checkpoint were written


class SessionProjection:
    """The projection of one worker. A shard is in one `handle` or `checkpoint` at a time."""

    def __init__(
        self,
        *,
        store: ProjectionStore,
        reader: MembershipReader,
        members: MemberBitmaps,
        watermark: Watermark,
        log_range: LogRange,
        now_ms: Callable[[], int],
        wide_above: int,
        die: Die,
    ) -> None:
        self._store, self._members = store, members
        self._watermark, self._log_range, self._now_ms = watermark, log_range, now_ms
        self._wide_above, self._die = wide_above, die
        self._wide = WideCovers(store, reader, wide_above, self._settle_one, die)
        self._settling = asyncio.Lock()
        self.served: dict[int, ShardProgress] = {}

    # -- a shard comes and goes

    async def start_position(self, shard: int) -> int:
        """Which offset comes next."""
        life = await self._store.life()
        begin, end = await self._log_range(shard)
        (stands,) = await self._store.checkpoints([shard])
        if stands is None or not begin <= stands.offset + 1 <= end:
            stands = await self._new_epoch(shard, stands, begin, end)
        self._serve(shard, stands, life)
        return stands.offset + 1

    async def adopt(self, shard: int, start: int) -> None:
        """Project a shard of which somebody else reads the log from `start` on; mailboxes have what is below.

        A checkpoint that reaches up to there goes on. Otherwise what lies between will not come: a new epoch.
        """
        life = await self._store.life()
        (stands,) = await self._store.checkpoints([shard])
        if stands is None and start == 0:
            stands = await self._begin(shard, None, Checkpoint(FIRST_EPOCH, NOTHING, NOTHING), "first")
        elif stands is None or stands.offset < start - 1:
            reason = "lost" if stands is None else "outside_log"
            new = Checkpoint(self._epoch_after(stands), start - 1, start - 1)
            stands = await self._begin(shard, stands, new, reason)
        self._serve(shard, stands, life)

    def _serve(self, shard: int, stands: Checkpoint, life: str) -> None:
        self.served[shard] = ShardProgress(stands.epoch, stands.offset, stands.offset, life)
        log.info("shard %d: projection epoch %d, checkpoint %d", shard, stands.epoch, stands.offset)

    async def _new_epoch(self, shard: int, before: Checkpoint | None, begin: int, end: int) -> Checkpoint:
        covered = await self._watermark(shard)
        if before is None and covered == NOTHING and begin == 0:
            return await self._begin(shard, None, Checkpoint(FIRST_EPOCH, NOTHING, end - 1), "first")
        offset = min(max(begin, covered + 1), end) - 1
        reason = "lost" if before is None else "outside_log"
        return await self._begin(
            shard, before, Checkpoint(self._epoch_after(before), offset, end - 1), reason
        )

    def _epoch_after(self, before: Checkpoint | None) -> int:
        """A number that is new even if nobody remembers the last one."""
        return max(self._now_ms(), before.epoch + 1 if before is not None else 0)

    async def _begin(self, shard: int, before: Checkpoint | None, new: Checkpoint, reason: str) -> Checkpoint:
        if new.epoch != FIRST_EPOCH:
            log.warning(
                "shard %d: the projection is %s (checkpoint %s): epoch %d from offset %d; users are rebuilt "
                "when they are asked for", shard, reason, before, new.epoch, new.offset + 1,
            )  # fmt: skip
        stands = await self._store.begin(shard, before, new)
        if stands != new:
            raise StoreUnavailable(f"shard {shard}: another worker has just begun a projection epoch")
        metrics.EPOCHS.labels(reason).inc()
        return stands

    async def release(self, shards: frozenset[int]) -> None:
        """Forget shards."""
        self._wide.release(shards)
        for shard in shards:
            self.served.pop(shard, None)

    async def close(self) -> None:
        """Stop what works in the background."""
        await self._wide.close()

    # -- a sweep

    async def handle(self, batches: Sequence[LogBatch]) -> None:
        """Make the rows of `batches` durable. StoreUnavailable: repeat with the same batches."""
        failpoints.hit("qsession.dispatch_polled")
        addressed = await self._address(batches)
        folder = Folder(self._wide_above)
        for batch, records in zip(batches, addressed, strict=True):
            folder.add(batch.partition, records)
        await self.write(folder.folded(), {batch.partition: batch.records[-1].offset for batch in batches})
        self._observe(addressed)

    async def write(self, folded: Folded, through: Mapping[int, int]) -> None:
        """Make folded rows durable, with which each shard is handled up to an offset: {shard: offset}."""
        await self._write(folded)
        failpoints.hit("qsession.rows_written")
        for shard, offset in through.items():
            progress = self.served.get(shard)
            if progress is not None:
                progress.handled = max(progress.handled, offset)

    async def _write(self, folded: Folded) -> None:
        epochs = {shard: progress.epoch for shard, progress in self.served.items()}
        more, marks = await self._wide.plan(folded.wide, epochs)
        rows = folded.rows
        for slot, found in more.items():
            rows.setdefault(slot, []).extend(found)
        if not rows:
            return
        if failpoints.armed("qsession.rows_partial") and len(rows) > 1:
            first = next(iter(rows))
            await self._store.write({first: rows[first]})
            failpoints.hit("qsession.rows_partial")
        await self._write_rows(rows)
        await self._wide.note(marks)

    async def _write_rows(self, rows: dict[Slot, list[SessionRow]]) -> None:
        metrics.REGISTERED.inc(await self._store.write(rows))
        metrics.ROWS.inc(sum([len(found) for found in rows.values()]))

    async def _address(self, batches: Sequence[LogBatch]) -> list[list[Addressed]]:
        """The dispatches of each batch with their members."""
        taken = [
            [(record.offset, dispatch) for record in batch.records
             if (dispatch := _dispatch(record, batch.partition)) is not None]
            for batch in batches
        ]  # fmt: skip
        loaded = iter(await self._members.load([dispatch for found in taken for _, dispatch in found]))
        return [
            [
                _new(Addressed, (offset, dispatch, members))
                for offset, dispatch in found
                if (members := next(loaded)) is not None
            ]
            for found in taken
        ]

    def _observe(self, addressed: Sequence[Sequence[Addressed]]) -> None:
        times = [found[0].dispatch.committed_at for found in addressed if found and found[0].dispatch]
        if times:
            metrics.RECORDS.labels("projected").inc(sum([len(found) for found in addressed]))
            metrics.PROJECTED.observe(max(0.0, (self._now_ms() - min(times)) / 1000))

    # -- checkpoints

    async def checkpoint(self, partitions: Sequence[int]) -> dict[int, int]:
        """Move the checkpoints of `partitions` to what was handled, as far as nothing of it waits.

        Where each stands then, inclusive: what lies above is read again after a crash, and not acknowledged.
        """
        await self._settle(partitions)
        failpoints.hit("qsession.checkpoint_moved")
        return {shard: self.served[shard].checkpoint for shard in partitions if shard in self.served}

    async def _settle_one(self, shard: int) -> None:
        await self._settle([shard])

    async def _settle(self, shards: Sequence[int]) -> None:
        async with self._settling:
            for _ in range(_ADVANCES_MAX):
                moves = [move for shard in shards if (move := self._move(shard)) is not None]
                if not moves:
                    return
                for move, stands in zip(moves, await self._store.advance(moves), strict=True):
                    self._adopt(move, stands)
        raise InvariantViolation(f"checkpoints of {list(shards)[:4]} are moved by somebody else all the time")

    def _move(self, shard: int) -> Advance | None:
        progress, waiting = self.served.get(shard), self._wide.first_waiting(shard)
        if progress is None:
            return None
        observed = progress.handled if waiting is None else min(progress.handled, waiting - 1)
        if observed <= progress.checkpoint:
            return None
        return Advance(shard, progress.epoch, progress.checkpoint, observed, progress.life)

    def _adopt(self, move: Advance, stands: Checkpoint | None) -> None:
        """Take in what stands: another worker's progress is progress; less than we wrote is a loss."""
        progress = self.served.get(move.shard)
        if stands is None or stands.offset < move.expected:
            raise InvariantViolation(
                f"the projection of shard {move.shard} fell back, or its store was started again and may "
                f"have lost rows: its checkpoint was {move.expected} in epoch {move.epoch}, the answer is "
                f"{stands}; a restart goes on from the checkpoint"
            )
        if stands.epoch != move.epoch:
            raise FencedError(f"projection of shard {move.shard}", move.epoch, stands.epoch)
        if progress is not None:
            progress.checkpoint = stands.offset

    async def compare(self) -> None:
        """Hold the checkpoints in the store against ours; one that fell back ends the process."""
        before = {shard: (one.epoch, one.checkpoint) for shard, one in self.served.items()}
        for shard, stands in zip(before, await self._store.checkpoints(list(before)), strict=True):
            epoch, checkpoint = before[shard]
            lost = stands is None or stands.epoch != epoch or stands.offset < checkpoint
            if lost and shard in self.served:
                self._die(
                    f"projection of shard {shard}: was {checkpoint} in epoch {epoch}, stands at {stands}"
                )


def _dispatch(record: LogRecord, shard: int) -> GroupDispatch | None:
    """The dispatch of a record; None for poison, which the mailbox stage sets aside."""
    try:
        return read_dispatch(record, shard)
    except (RecordError, struct.error) as error:
        metrics.RECORDS.labels("poison").inc()
        log.warning("shard %d: poison at offset %d: %s", shard, record.offset, error)
        return None
