"""Wide conversations: making sure that everybody has them, without writing a row per recipient and message.

A message of a large group writes nothing when all members of its bitmap are known to have the conversation
(`Cover`); its activity is the head's. When the members changed, the newcomers get rows: a few at once, with
the sweep; many (the first message of a large group) in the background, in small steps with rests, so that
nobody waits behind them. Until then the checkpoint does not pass the message that needs them, so a crash
comes back to it; rows may be written twice.

Spec: §9, §13 (fair scheduling).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from pyroaring import BitMap

from qim_streams import failpoints
from qim_streams.errors import RecordError, StoreUnavailable
from qim_streams.lru import LruMap
from qim_streams.membership import bitmaps
from qim_streams.membership.ports import MembershipReader
from qim_streams.sessions import projection_metrics as metrics
from qim_streams.sessions.projection_ports import CoverOf, ProjectionStore
from qim_streams.sessions.projection_records import Cover, SessionRow, Slot
from qim_streams.sessions.projection_rules import WideMessage, is_covered, newcomers, rows_of

log = logging.getLogger(__name__)

ROWS_PER_STEP = 500
REST_TIMES = 2  # a step's time: who writes large groups has a third of the worker and of the store
COVERS_KEPT = 50_000
WAITING_MAX = 10_000  # messages; a sweep that brings more waits
RETRY_S = 0.5

Die = Callable[[str], NoReturn]
Settle = Callable[[int], Awaitable[None]]


class Mark(NamedTuple):
    """What may be noted once the rows of a sweep are durable."""

    of: CoverOf
    cover: Cover


class _Waiting(NamedTuple):
    epoch: int
    message: WideMessage


class WideCovers:
    """Covers of the shards of one worker. `settle(shard)` is awaited when a message waits no more."""

    def __init__(
        self, store: ProjectionStore, reader: MembershipReader, rows_now_max: int, settle: Settle, die: Die
    ) -> None:
        self._store, self._reader, self._now_max = store, reader, rows_now_max
        self._settle, self._die = settle, die
        self._known: LruMap[CoverOf, Cover] = LruMap(COVERS_KEPT, COVERS_KEPT)
        self._waiting: deque[_Waiting] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None

    async def plan(
        self, messages: Sequence[WideMessage], epochs: Mapping[int, int]
    ) -> tuple[dict[Slot, list[SessionRow]], list[Mark]]:
        """Rows to write now for `messages` of one sweep, and what to `note` afterwards; the rest waits."""
        rows: dict[Slot, list[SessionRow]] = {}
        marks: list[Mark] = []
        if not messages:
            return rows, marks
        await self._learn({one.of: None for one in messages})
        waiting = {one.message.of for one in self._waiting}
        for message in messages:
            epoch, cover = epochs[message.of.shard], self._known.get(message.of)
            if is_covered(cover, epoch, message.bitmap_version):
                continue
            few = None if message.of in waiting else await self._few(message, epoch, cover)
            if few is None:
                await self._put_off(_Waiting(epoch, message))
                waiting.add(message.of)
                continue
            for slot, found in few.items():
                rows.setdefault(slot, []).extend(found)
            marks.append(Mark(message.of, Cover(epoch, message.bitmap_version)))
        return rows, marks

    async def note(self, marks: Sequence[Mark]) -> None:
        """The rows of `plan` are durable."""
        for of, cover in marks:
            await self._store.cover(of, cover)
            self._known.put(of, cover)

    def first_waiting(self, shard: int) -> int | None:
        """The offset that the checkpoint of a shard must stay below; None when nothing waits."""
        waiting = [one.message.offset for one in self._waiting if one.message.of.shard == shard]
        return min(waiting, default=None)

    def release(self, shards: frozenset[int]) -> None:
        """Forget what waits for `shards`: whoever serves them comes back to it."""
        kept = [one for one in self._waiting if one.message.of.shard not in shards]
        self._waiting.clear()
        self._waiting.extend(kept)
        self._counted()

    async def close(self) -> None:
        """Stop working; what waits is found again from the checkpoint."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # -- with the sweep

    async def _learn(self, wanted: Mapping[CoverOf, None]) -> None:
        unknown = [of for of in wanted if of not in self._known]
        for of, cover in zip(unknown, await self._store.covers(unknown), strict=True):
            if cover is not None:
                self._known.put(of, cover)

    async def _few(
        self, message: WideMessage, epoch: int, cover: Cover | None
    ) -> dict[Slot, list[SessionRow]] | None:
        """Rows of the newcomers, None when there are many or nobody knows who they are."""
        if cover is None or cover.epoch != epoch:
            return None
        before = await self._bitmap(message.of, cover.bitmap_version)
        found = None if before is None else newcomers(message.members, before)
        return None if found is None or len(found) > self._now_max else rows_of(message, found)

    async def _bitmap(self, of: CoverOf, version: int) -> BitMap | None:
        """An earlier member bitmap; None when it is gone, since whole versions are forgotten in time."""
        (data,) = await self._reader.bitmaps([(of.tenant_id, of.conversation_id, of.shard, version)])
        try:
            return None if data is None else bitmaps.decode(data)
        except RecordError as error:
            log.error("member bitmap %d of %s: %s", version, of.conversation_id, error)
            return None

    async def _put_off(self, waiting: _Waiting) -> None:
        await self._room.wait()
        self._waiting.append(waiting)
        self._counted()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="wide-covers")

    def _counted(self) -> None:
        metrics.WIDE_PENDING.set(len(self._waiting))
        if len(self._waiting) < WAITING_MAX:
            self._room.set()
        else:
            self._room.clear()

    # -- in the background

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._work(self._waiting[0])
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody writes these rows any more
            self._die(f"rows of a wide conversation: {type(error).__name__}: {error}")

    async def _work(self, job: _Waiting) -> None:
        try:
            if self._is_waiting(job):
                await self._write(job)
            if self._is_waiting(job):  # its shard may have left meanwhile
                self._waiting.popleft()
                self._counted()
            await self._settle(job.message.of.shard)
        except StoreUnavailable as error:
            log.warning("rows of a wide conversation have to wait: %s", error)
            await asyncio.sleep(RETRY_S)

    def _is_waiting(self, job: _Waiting) -> bool:
        return bool(self._waiting) and self._waiting[0] is job

    async def _write(self, job: _Waiting) -> None:
        message, cover, loop = job.message, self._known.get(job.message.of), asyncio.get_running_loop()
        if is_covered(cover, job.epoch, message.bitmap_version):
            return
        before = None
        if cover is not None and cover.epoch == job.epoch:
            before = await self._bitmap(message.of, cover.bitmap_version)
        ordinals = newcomers(message.members, before)
        for start in range(0, len(ordinals), ROWS_PER_STEP):
            began_s = loop.time()
            rows = rows_of(message, ordinals[start : start + ROWS_PER_STEP])
            metrics.REGISTERED.inc(await self._store.write(rows))
            metrics.ROWS.inc(sum(len(found) for found in rows.values()))
            failpoints.hit("qsession.wide_partial")
            await asyncio.sleep(REST_TIMES * (loop.time() - began_s))
        await self.note([Mark(message.of, Cover(job.epoch, message.bitmap_version))])
