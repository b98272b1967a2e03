"""Starting source partitions: where each one begins, asked of the role, per partition.

One task per partition: the role names its next offset (it may take a lease first, and may be slow), the
answer is held against what the log still has, then the lane opens and fetching begins. A partition that
waits holds up no other one, nor recovery. A revocation cancels what has not started.

Spec: §11 rules 1 and 2.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from aiokafka.errors import KafkaError
from faust.types import TP

from qim_streams.streaming import metrics
from qim_streams.streaming.doubt import die
from qim_streams.streaming.source import SourceRole

if TYPE_CHECKING:
    from qim_streams.streaming.consumer import StreamConsumer

log = logging.getLogger(__name__)

_RETRY_FIRST_S = 0.05
_BEHIND_TRIES = 5
_BEHIND_WAIT_S = 0.5


class LogRange(NamedTuple):
    """What a partition holds: the first offset kept, and the next one to be written."""

    begin: int
    end: int


class PartitionStarts:
    """The start tasks of the current assignment."""

    def __init__(self, consumer: "StreamConsumer") -> None:
        self._consumer = consumer
        self._tasks: dict[TP, asyncio.Task[None]] = {}
        spec = consumer.spec
        self._started = metrics.STARTS.labels(spec.role, "started")
        self._cancelled = metrics.STARTS.labels(spec.role, "cancelled")
        self._clamped = metrics.STARTS.labels(spec.role, "lost_range")

    @property
    def partitions(self) -> set[TP]:
        """Partitions that were asked to start in this assignment."""
        return set(self._tasks)

    def begin(self, epoch: int, tps: Iterable[TP]) -> None:
        """Start every partition of `tps` that was not asked to in this assignment."""
        for tp in tps:
            if tp not in self._tasks:
                self._tasks[tp] = asyncio.get_running_loop().create_task(
                    self._start(tp, epoch), name=f"start-{tp.topic}-{tp.partition}"
                )

    async def stop(self, deadline: float) -> None:
        """Cancel what has not started; exit if a task still runs at `deadline` (the loop's clock)."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            if not task.done():
                self._cancelled.inc()
                task.cancel()
        if tasks:
            loop = asyncio.get_running_loop()
            _, late = await asyncio.wait(tasks, timeout=max(0.0, deadline - loop.time()))
            if late:
                die(f"{len(late)} partition starts ignored their cancellation until the rebalance deadline")

    async def _start(self, tp: TP, epoch: int) -> None:
        spec, lanes = self._consumer.spec, self._consumer.lanes[tp.topic]
        where = f"{tp.topic}[{tp.partition}]"
        try:
            async with asyncio.timeout(spec.start_timeout_s):
                wanted = await self._ask(tp, lanes.role)
                if wanted < 0:
                    die(f"{where}: the role named a negative start position, {wanted}")
                start = await self._fit(tp, wanted)
        except TimeoutError:
            die(f"{where}: no start position within start_timeout_s ({spec.start_timeout_s} s)")
        except Exception as error:  # noqa: BLE001 - whatever it is, the process ends
            die(f"{where}: the start position is unknown", error)
        if await self._consumer.start_source(tp, epoch, start, wanted - 1):
            self._started.inc()
            log.info("%s starts at offset %d", where, start)

    async def _ask(self, tp: TP, role: SourceRole) -> int:
        attempt = 0
        while True:
            try:
                return await role.start_position(tp.partition)
            except Exception as error:
                if not role.is_transient(error):
                    raise
                log.warning("%s[%d]: start position: %s, retrying", tp.topic, tp.partition, error)
            await self._back_off(attempt)
            attempt += 1

    async def _back_off(self, attempt: int) -> None:
        delay = min(self._consumer.spec.retry_delay_max_s, _RETRY_FIRST_S * 2 ** min(attempt, 16))
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))

    async def _fit(self, tp: TP, wanted: int) -> int:
        """`wanted` held against the log: its start may be above, its end must not be below."""
        attempt = behind = 0
        while True:
            try:
                held = (await self._consumer.log_ranges([tp]))[tp]
            except KafkaError as error:
                log.warning("%s[%d]: offsets unknown: %s, retrying", tp.topic, tp.partition, error)
                await self._back_off(attempt)
                attempt += 1
                continue
            if wanted <= held.end:
                break
            # A new leader may know a lower end for a moment; anything longer is a log that was replaced.
            behind += 1
            if behind >= _BEHIND_TRIES:
                die(
                    f"{tp.topic}[{tp.partition}]: start position {wanted} is above the end of the log "
                    f"({held.end}): the topic was re-created or truncated; its epoch must be raised and "
                    "the stage's position reset by an operator"
                )
            await asyncio.sleep(_BEHIND_WAIT_S)
        if held.begin > wanted:
            if wanted > 0:
                self.judge_lost_range(tp, wanted, held.begin)
            return held.begin
        return wanted

    def judge_lost_range(self, tp: TP, at: int, begin: int) -> None:
        """Records from `at` up to `begin` (exclusive) were removed unread: exit, or go on if allowed."""
        self._clamped.inc()
        text = f"{tp.topic}[{tp.partition}]: offsets {at} to {begin - 1} were removed by retention unread"
        if self._consumer.lanes[tp.topic].source.on_lost_range == "exit":
            die(f"{text}; restore them, or move the stage's position on purpose")
        log.critical("%s; going on at %d", text, begin)
