"""TailCompactor: session lists kept by the mailbox worker itself, out of the records that it has written.

It is fed each batch once W covers it, so what it folds is the contiguous prefix at or below W; it decodes and
reads nothing itself. Rows are folded by (user, conversation), lane by lane, and a lane is flushed after
`window_s` or `events_max` recipients of its own, whichever comes first (`lane_windows`). What is due together
is written together: one script call per tenant and lane with all rows of its users, in one pipeline, then the
shards' checkpoints, up to what no lane holds. Rows, registrations, wide conversations and checkpoints are
those of `SessionProjection`.

Nothing here holds the mailbox stage: flushing is a task of its own. A store that is away lets the window grow
up to `ROWS_MAX` recipients; beyond, and when a checkpoint was lost or a worker died with an open window,
records are missing that will not come again: the shard's projection begins a new epoch, and its users are
rebuilt from their mailboxes when they are asked for.

Spec: §9.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from qim_streams.errors import QimError, StoreUnavailable
from qim_streams.mailbox.members import Addressed
from qim_streams.sessions.lane_windows import LaneWindows
from qim_streams.sessions.projection import SessionProjection

log = logging.getLogger(__name__)

WINDOW_S = 5.0
EVENTS_MAX = 512  # of one lane
ROWS_MAX = 200_000  # of all lanes together
RETRY_S = 0.5


class TailCompactor:
    """`mailbox.tail.Tail` on a `SessionProjection` that nobody else feeds."""

    def __init__(
        self,
        projection: SessionProjection,
        wide_above: int,
        *,
        window_s: float = WINDOW_S,
        events_max: int = EVENTS_MAX,
    ) -> None:
        self._projection, self._wide_above = projection, wide_above
        self._windows = LaneWindows(wide_above, window_s, events_max)
        self._starts: dict[int, int] = {}  # shards that were begun and are not adopted yet
        self._due = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    # -- from the mailbox stage

    def begin(self, shard: int, start: int) -> None:
        """See `Tail.begin`."""
        self._starts[shard] = start
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="tail-compactor")

    def feed(self, shard: int, records: Sequence[Addressed]) -> None:
        """See `Tail.feed`."""
        windows = self._windows
        if windows.events > ROWS_MAX:
            log.error("session lists begin a new epoch: the store is away, %d rows wait", windows.events)
            windows.fed[shard] = records[-1].offset
            self._give_up()
        elif windows.add(shard, records, time.monotonic()):
            self._due.set()

    async def release(self, shards: frozenset[int]) -> None:
        """See `Tail.release`. One attempt: else the next one begins an epoch."""
        try:
            await self._flush(None)
        except Exception as error:  # whatever it is, the shards leave
            log.warning(
                "session lists of shards %s are behind as they leave: %s", sorted(shards), error,
                exc_info=not isinstance(error, QimError),
            )  # fmt: skip
        for shard in shards:
            self._starts.pop(shard, None)
        self._windows.forget(shards)
        await self._projection.release(shards)

    async def close(self) -> None:
        """Stop; `release` has flushed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._projection.close()

    # -- flushing

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._windows.next_due(time.monotonic())):
                    await self._due.wait()
            except TimeoutError:
                pass  # a lane's time may have come, with few events in it
            self._due.clear()
            try:
                await self._flush(time.monotonic())
            except StoreUnavailable as error:
                log.warning("session lists have to wait: %s", error)
                await asyncio.sleep(RETRY_S)
                self._due.set()
            except Exception as error:  # whatever it is: if this task ended, nobody would write these rows
                unexpected = not isinstance(error, QimError)
                log.error("session lists begin a new epoch: %s", error, exc_info=unexpected)
                self._give_up()
                await asyncio.sleep(RETRY_S)

    def _give_up(self) -> None:
        """Drop what all windows hold: every shard's projection goes on behind it, in a new epoch."""
        for shard in {*self._projection.served, *self._starts, *self._windows.fed}:
            served = self._projection.served.get(shard)
            handled = -1 if served is None else served.handled
            fed = self._windows.fed.get(shard, -1)
            self._starts[shard] = max(handled, fed, self._starts.get(shard, 0) - 1) + 1
        self._windows.clear()

    async def _adopt(self) -> None:
        """Serve every shard that was begun. One that begins meanwhile is fed meanwhile, so it is next."""
        while self._starts:
            shard, start = next(iter(self._starts.items()))
            await self._projection.adopt(shard, start)
            if self._starts.get(shard) == start:  # else it was given up meanwhile: once more
                del self._starts[shard]

    async def _flush(self, now_s: float | None) -> None:
        """Write what is due, all of it without a time; StoreUnavailable leaves it open."""
        async with self._flushing:
            await self._adopt()
            windows = self._windows
            taken, through = windows.take(now_s), windows.through()
            if not through:
                return  # no shard is served: nothing was taken but rows of those that left
            try:
                await self._projection.write(taken.folded(self._wide_above), through)
                await self._projection.checkpoint(list(through))
            except Exception:
                windows.put_back(taken)
                raise
