"""LaneStall: a record that waits for W for too long costs its worker the shard.

Looked at once a second, per served shard: for how long the oldest record that was read has waited to be
covered in all its lanes. It is a gauge, and beyond `failover_s` an alarm: the shard's lease is given up and
the process ends, so that another worker goes on from W. What is lost by that is time only. It is noted, so
that the shard does not come straight back (``given_up``); where there is no other worker it does, to a
process with fresh connections and an empty memory.

A store that does not answer at all is no stall of a lane: every worker has that one, and moving a shard
helps nobody. So the store is asked for W first.

Spec: §13 (lane_stall_failover).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from qim_streams.errors import StoreError
from qim_streams.mailbox import metrics
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.given_up import GivenUp
from qim_streams.mailbox.ports import MailboxStore
from qim_streams.mailbox.shards import Shard, ShardLeases

log = logging.getLogger(__name__)

INTERVAL_S = 1.0


def waits_s(shard: Shard, now_s: float) -> float:
    """For how long the oldest record that was read waits for W; 0.0 when none does."""
    since = [] if shard.held_since_s is None else [shard.held_since_s]
    if shard.open is not None and (oldest := shard.open.oldest_s()) is not None:
        since.append(oldest)
    return max(0.0, now_s - min(since)) if since else 0.0


class LaneStall:
    """The watch over one worker's shards. `failover_s` 0: only the gauge."""

    def __init__(
        self,
        leases: ShardLeases,
        store: MailboxStore,
        failover_s: float,
        given_up: GivenUp,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leases, self._store, self._failover_s = leases, store, failover_s
        self._given_up = given_up
        self._monotonic = monotonic
        self._shown: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="lane-stall")

    async def close(self) -> None:
        """Stop watching."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        try:
            while True:
                await asyncio.sleep(min(INTERVAL_S, self._failover_s / 4 or INTERVAL_S))
                await self.look()
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody looks any more
            self._leases.die(f"the watch over lanes failed: {type(error).__name__}: {error}")

    async def look(self) -> None:
        """Show the ages; give up the shard that has waited for too long, and end the process."""
        now_s, served = self._monotonic(), self._leases.served
        ages = {number: waits_s(shard, now_s) for number, shard in served.items()}
        self._show(ages)
        late = {number: age for number, age in ages.items() if age >= self._failover_s > 0}
        if not late:
            return
        number = max(late, key=lambda one: late[one])
        if await self._store_answers(number):
            await self._give_up(served[number], late[number])

    def _show(self, ages: Mapping[int, float]) -> None:
        for number in self._shown - ages.keys():
            metrics.OLDEST.remove(str(number))
        for number, age in ages.items():
            metrics.OLDEST.labels(str(number)).set(age)
        self._shown = set(ages)

    async def _store_answers(self, number: int) -> bool:
        try:
            await self._store.watermark(number)
        except StoreError as error:
            log.error("shard %d stands still, and so does the store: %s", number, error)
            return False
        return True

    async def _give_up(self, shard: Shard, age_s: float) -> None:
        metrics.ALARMS.labels("lane_stall").inc()
        lanes = shard.open
        behind = [] if lanes is None else [lane for lane, seq in enumerate(rule.lanes_of(lanes.stands))
                                           if seq == rule.lowest(lanes.stands)]  # fmt: skip
        why = (
            f"lane stall: shard {shard.shard} waits for {age_s:.0f} s with the record after offset "
            f"{shard.coverage}, lanes {behind or 'all'}: the shard is given up"
        )
        log.error("%s", why)
        try:
            await asyncio.to_thread(self._given_up.note, shard.shard)
        except OSError as error:
            log.error("shard %d: it may come straight back, this cannot be noted: %s", shard.shard, error)
        await self._leases.give_up(shard.shard)
        self._leases.die(why)
