"""Slices: large records are written beside the others, a slice at a time, and what follows each slice.

While the lanes of a shard stand apart (``open_lanes``), a task of its own writes slices until they stand
together again, and another one does what follows. Two kinds of slices:

* *urgent*: lanes in which a small record waits behind a large one, and no others. They go at once.
* *low*: everything else. One in the whole worker at a time, and not beside batches that are under way:
  such a slice waits until none is, but never longer than `wait_s`, so that it cannot starve (``turns``). Nor
  may it starve behind urgent ones: of the shards that write nothing but those one writes a slice *by age*
  every `wait_s`, in turn, from the lanes whose first piece is the oldest.

After every write `follow` pushes what became visible, lane by lane in the order of the log, feeds the tail
with what all lanes have, and closes the lanes when they stand together: the shard is as before.

Invariants: one call per shard is under way (`Shard.writing`), one push (`Shard.pushing`); a failure of the
store is tried again for ever (``stall`` bounds that), any other ends the process.

Spec: §5, §6, §9, §13.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from qim_streams.errors import StoreUnavailable
from qim_streams.mailbox import metrics
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.open_lanes import OpenLanes
from qim_streams.mailbox.shards import Die, Shard
from qim_streams.mailbox.spans import tell_completed
from qim_streams.mailbox.tail import Tail
from qim_streams.mailbox.turns import LowTurns
from qim_streams.mailbox.writer import EntryWriter
from qim_streams.push.ports import Pusher
from qim_streams.spans.service import MessageSpans

log = logging.getLogger(__name__)

PUSH_RECORDS_MAX = 500  # in one go
_RETRY_FIRST_S, _RETRY_MAX_S = 0.02, 1.0


class SliceTerms(NamedTuple):
    """What is sliced, into what, and how long a slice gives way to small records."""

    large_above: int
    size_max: int
    wait_s: float


class Slices:
    """The slices of one worker."""

    def __init__(
        self,
        writer: EntryWriter,
        pusher: Pusher,
        tail: Tail,
        *,
        size_max: int,
        wait_s: float,
        now_ms: Callable[[], int],
        die: Die,
        monotonic: Callable[[], float] = time.monotonic,
        spans: MessageSpans | None = None,
    ) -> None:
        self._spans = spans
        self._writer, self._pusher, self._tail = writer, pusher, tail
        self._size_max, self._turns = size_max, LowTurns(wait_s)
        self._now_ms, self._die, self._monotonic = now_ms, die, monotonic
        self._aged_s: dict[int, float] = {}  # shard -> since when it has written urgent slices only
        self._wake: dict[int, tuple[asyncio.Event, asyncio.Event]] = {}  # of writing and of following
        self._tasks: dict[int, tuple[Shard, list[asyncio.Task[None]]]] = {}

    @contextmanager
    def batch(self) -> Iterator[None]:
        """A batch of small records is under way: low slices wait."""
        self._turns.batches += 1
        try:
            yield
        finally:
            self._turns.batches -= 1
            if not self._turns.batches:
                self._wake_first()

    # -- tasks

    def begin(self, shard: Shard, lanes: OpenLanes) -> None:
        """Write slices of `shard` in the background until its lanes stand together."""
        write, follow = self._wake[shard.shard] = asyncio.Event(), asyncio.Event()
        loops = (self._write_all(shard, lanes, write), self._follow_all(shard, lanes, follow))
        self._tasks[shard.shard] = (
            shard,
            [asyncio.get_running_loop().create_task(one, name=f"slices-{shard.shard}") for one in loops],
        )

    def wake(self, shard: Shard) -> None:
        """Something was queued, or written."""
        for event in self._wake.get(shard.shard, ()):
            event.set()

    async def end(self, shards: frozenset[int]) -> None:
        """Stop, after the call that is under way: W is not moved by a call that nobody waits for."""
        ending = [found for shard in shards if (found := self._tasks.pop(shard, None)) is not None]
        for shard in shards:
            self._wake.pop(shard, None)
        for served, tasks in ending:
            async with served.writing:
                for task in tasks:
                    task.cancel()
        if ending:
            await asyncio.wait([task for _, tasks in ending for task in tasks])

    async def _write_all(self, shard: Shard, lanes: OpenLanes, wake: asyncio.Event) -> None:
        """Slice after slice; what follows them is done beside."""

        async def one() -> None:
            wake.clear()
            wrote = await self._write_next(shard, lanes)
            if wrote or lanes.is_even:  # even: it is the follower who closes them
                self._wake_follower(shard)
            if not wrote and shard.open is lanes:
                await self._rest(shard, lanes, wake)

        try:
            await self._repeat(shard, lanes, one)
        finally:  # closed by a batch, or released: who writes no more holds nobody up
            self._turns.leave(shard.shard)
            self._aged_s.pop(shard.shard, None)
            self._wake_first()

    async def _follow_all(self, shard: Shard, lanes: OpenLanes, wake: asyncio.Event) -> None:
        async def one() -> None:
            await self.follow(shard, lanes)  # again, if it failed: whether it was woken or not
            await wake.wait()
            wake.clear()

        await self._repeat(shard, lanes, one)

    async def _repeat(self, shard: Shard, lanes: OpenLanes, one: Callable[[], Awaitable[None]]) -> None:
        """`one` until the lanes stand together; again after a moment if the store is away."""
        pause_s = 0.0
        try:
            while shard.open is lanes:
                try:
                    await one()
                    pause_s = 0.0
                except StoreUnavailable as error:
                    if not pause_s:
                        log.warning("shard %d: a slice waits: %s", shard.shard, error)
                    pause_s = min(_RETRY_MAX_S, 2 * pause_s or _RETRY_FIRST_S)
                    await asyncio.sleep(pause_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody writes these lanes any more
            self._die(f"shard {shard.shard}: writing slices failed: {type(error).__name__}: {error}")

    def _wake_follower(self, shard: Shard) -> None:
        events = self._wake.get(shard.shard)
        if events is not None:
            events[1].set()

    def _wake_first(self) -> None:
        """Whoever is first in the line may write a low slice now."""
        first = self._turns.first
        if first in self._wake:
            self._wake[first][0].set()

    async def _rest(self, shard: Shard, lanes: OpenLanes, wake: asyncio.Event) -> None:
        """Until something is queued, a lane that is held may be tried again, or its turn has come."""
        times = [one for one in (lanes.next_try_s(), self._turns.due_s(shard.shard)) if one is not None]
        timeout_s = max(0.001, min(times) - self._monotonic()) if times else None
        try:
            async with asyncio.timeout(timeout_s):
                await wake.wait()
        except TimeoutError:
            pass  # it has

    # -- a slice

    async def step(self, shard: Shard, lanes: OpenLanes) -> int:
        """Write a slice, if one may go, and what follows; how many mailboxes it had. StoreUnavailable."""
        wrote = await self._write_next(shard, lanes)
        await self.follow(shard, lanes)
        return wrote

    async def _write_next(self, shard: Shard, lanes: OpenLanes) -> int:
        now_s, turns = self._monotonic(), self._turns
        if not lanes.is_urgent(now_s):
            self._aged_s.pop(shard.shard, None)
            if not lanes.waits:
                turns.leave(shard.shard)
                return 0
            return await self._write_low(shard, lanes) if turns.take(shard.shard, now_s) else 0
        turns.leave(shard.shard)
        if now_s - self._aged_s.setdefault(shard.shard, now_s) < turns.wait_s * len(self._aged_s):
            return await self._write(shard, lanes, "urgent")
        wrote = await self._write(shard, lanes, "by_age")
        self._aged_s[shard.shard] = self._monotonic()
        return wrote

    async def _write_low(self, shard: Shard, lanes: OpenLanes) -> int:
        try:
            return await self._write(shard, lanes, "low")
        finally:
            self._turns.done(self._monotonic())
            self._wake_first()

    async def _write(self, shard: Shard, lanes: OpenLanes, kind: str) -> int:
        # The store's calls of a worker share round trips: what goes at once has the bound together.
        apart = 1 if kind == "low" else sum(one.open is not None for one, _ in self._tasks.values())
        size_max = max(1, self._size_max // max(1, apart))
        async with shard.writing:
            await self._writer.settle(shard)
            wrote = await self._writer.write_slice(
                shard, lanes, size_max, self._monotonic(), by_age=kind == "by_age"
            )
        if wrote:
            metrics.SLICES.labels(kind).inc()
        return wrote

    # -- what follows

    async def follow(self, shard: Shard, lanes: OpenLanes) -> None:
        """Push, feed and count what became visible; close the lanes when they stand together."""
        async with shard.pushing:
            while shard.open is lanes:
                part = list(islice(lanes.unpushed, PUSH_RECORDS_MAX))
                await self._pusher.push_lanes(shard, part, lanes.visible())
                for _ in part:
                    lanes.unpushed.popleft()
                if not lanes.unpushed:
                    break
            else:
                return  # closed by whoever followed before
            fed = lanes.feed()
            if fed:
                self._tail.feed(shard.shard, fed)
            self._count(shard, lanes)
            if lanes.is_even and shard.open is lanes and not shard.writing.locked():
                self._close(shard, lanes)

    def _count(self, shard: Shard, lanes: OpenLanes) -> None:
        now_ms = self._now_ms()
        for one in lanes.take_completed():
            metrics.MAILBOXED.observe(max(0.0, (now_ms - one.dispatch.committed_at) / 1000))
            if self._spans is not None:
                tell_completed(self._spans, shard, one, self._monotonic())

    def _close(self, shard: Shard, lanes: OpenLanes) -> None:
        shard.coverage = lanes.known
        shard.pushed_through = max(lanes.known, rule.highest(lanes.pushed))
        shard.open = None
        self.wake(shard)
