"""MailboxTrimmer: entries leave their mailboxes when they are old, a little at a time.

A round goes through the shards that this worker serves: what is old enough is asked of the store, then
steps of a bounded number of mailboxes and entries until nothing old is left. After each step the trimmer
rests for a multiple of the time that the step took, so it never has more than a small share of the store.

Everything it knows is in the store, under the shard's epoch: a restart or another owner goes on where it
stood, and an old owner is refused. Trimming by count is not done here: the write that makes a mailbox
too long does it (``mailbox.lua``).

Invariants: an error costs a round, never the worker, unless it is none of ours; a device's entries go only
together with its trim watermark, so it is told (CURSOR_EXPIRED) and never shown a hole.

Spec: §5, §7.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from qim_streams.errors import FencedError, StoreError
from qim_streams.mailbox import metrics
from qim_streams.mailbox.shards import Die, Shard
from qim_streams.mailbox.trim_ports import AgedMailboxes

log = logging.getLogger(__name__)

NOTES: Final = 720  # of W in a retention: hourly ones in 30 days
NOTE_MS_MIN: Final = 1_000
ROUND_S_MAX: Final = 60.0
MAILBOXES_MAX: Final = 64  # in one step: about a millisecond of the store
ENTRIES_MAX: Final = 2_000  # after these no further mailbox is begun in a step
REST: Final = 50  # times as long as the step took: 2 % of the store at most
REST_S_MIN, REST_S_MAX = 0.005, 2.0


class MailboxTrimmer:
    """The background task of a worker that trims by age. `served` is the live map of its shards."""

    def __init__(
        self,
        served: Mapping[int, Shard],
        store: AgedMailboxes,
        *,
        retention_ms: int,
        now_ms: Callable[[], int],
        die: Die,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._served, self._store, self._retention_ms = served, store, retention_ms
        self._note_ms = max(retention_ms // NOTES, NOTE_MS_MIN)
        self._now_ms, self._die, self._sleep, self._monotonic = now_ms, die, sleep, monotonic
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Trim until `close`. A retention of 0 trims nothing."""
        if self._retention_ms > 0:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="mailbox-trimmer")

    async def close(self) -> None:
        """Stop; a step that is under way stands or does not, and either is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def round(self) -> int:
        """Trim every served shard once; how many entries went. Errors of the store are logged."""
        began_s, entries = self._monotonic(), 0
        for number in list(self._served):
            shard = self._served.get(number)
            if shard is None:
                continue  # given up meanwhile
            try:
                entries += await self._shard(shard)
            except FencedError as error:
                log.info("shard %d is trimmed by its new owner: %s", number, error)
            except StoreError as error:
                metrics.ALARMS.labels("trim_failed").inc()
                log.warning("shard %d is not trimmed now: %s", number, error)
        metrics.TRIM_ROUND.set(self._monotonic() - began_s)
        return entries

    async def _run(self) -> None:
        try:
            while True:
                entries = await self.round()
                if entries:
                    log.info("trimmed by age: %d entries", entries)
                await self._sleep(min(self._note_ms / 1_000, ROUND_S_MAX))
        except Exception as error:  # noqa: BLE001 - mailboxes that nobody trims fill the store unseen
            self._die(f"trimming failed: {type(error).__name__}: {error}")

    async def _shard(self, shard: Shard) -> int:
        number, epoch = shard.shard, shard.epoch
        up_to_seq = await self._store.aged(
            number, epoch, self._now_ms(), shard.coverage, self._retention_ms, self._note_ms
        )
        entries, more = 0, up_to_seq >= 0
        while more and self._served.get(number) is shard:
            began_s = self._monotonic()
            step = await self._store.trim_aged(number, epoch, up_to_seq, MAILBOXES_MAX, ENTRIES_MAX)
            took_s = self._monotonic() - began_s
            entries, more = entries + step.entries, step.more
            metrics.TRIM_STEP.observe(took_s)
            metrics.TRIMMED.inc(step.entries)
            metrics.TRIMMED_MAILBOXES.inc(step.mailboxes)
            await self._sleep(min(max(took_s * REST, REST_S_MIN), REST_S_MAX))
        return entries
