"""The others: direct chats at a constant rate from the load generator, in a process of its own.

Open loop: latencies count from the intended time and are kept by the second in which a message was due, so
they can be cut at the moments when the storm began and ended. The generator's own verdict says whether
anything of theirs was lost.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qim_streams.client.discovery import StackAddress
from qim_streams.errors import QimError
from qim_streams.loadgen.fleet import Fleet
from qim_streams.loadgen.histogram import Histogram, merge_series, merged
from qim_streams.loadgen.options import BenchOptions, check
from qim_streams.loadgen.plan import make_plan
from qim_streams.loadgen.run import draw_tag
from qim_streams.loadgen.verdict import Verdict, judge
from tests.perf.processes import MeasurementError

START_DELAY_NS = 500_000_000
DRAIN_S, STEP_S = 60.0, 0.2
WARM_UP_S = 5.0
GAP_S = 1  # between two stretches of a load
_NS = 1_000_000_000


class Part(NamedTuple):
    """Latencies of the messages that were due in some seconds, ms."""

    name: str
    seconds: int
    messages: int
    ack: Mapping[str, float]
    e2e: Mapping[str, float]


def steady(
    rate: float, seconds: int, connections: int, seed: int, *, warm_up_s: float = WARM_UP_S
) -> BenchOptions:
    """Direct chats between `connections` users, all online, from one process; nothing is checked yet."""
    return BenchOptions(
        rate=rate, duration_s=seconds, warm_up_s=warm_up_s, processes=1,
        connections=connections, users=connections, seed=seed,
    )  # fmt: skip


def checked(parser: argparse.ArgumentParser, options: BenchOptions) -> BenchOptions:
    """`options`; ends the process with 2 when they are wrong."""
    try:
        return check(options)
    except QimError as error:
        parser.error(str(error))


def stretch_begins(number: int, seconds: int) -> int:
    """The second of the measured part in which a stretch begins; `GAP_S` lie between two."""
    return number * (seconds + GAP_S)


class SteadyLoad:
    """Use as an async context manager; then `start`, and `finish` once it is over."""

    def __init__(self, options: BenchOptions, address: StackAddress) -> None:
        self._options, run = options, random.SystemRandom().getrandbits(32)
        self._plan = make_plan(options, draw_tag(), address.require_tenant())
        self._fleet = Fleet(options, self._plan, address, run, 0, lambda number, said: None)
        self._running: asyncio.Task[list[Any]] | None = None
        self._accounts: list[dict[str, Any]] = []
        self._prepared = False
        self.first_ns = 0

    async def __aenter__(self) -> "SteadyLoad":
        await self._fleet.__aenter__()
        return self

    async def __aexit__(self, *why: Any) -> None:
        if self._running is not None:
            self._running.cancel()
        await self._fleet.__aexit__(*why)

    def user_id(self, number: int) -> str:
        """The id of one of its users, from 0."""
        return self._plan.user_id(number)

    @property
    def opening(self) -> int:
        """How many messages opened chats before the load began; they are in the verdict."""
        return sum(one.direct for one in self._plan.conversations)

    async def prepare(self) -> None:
        """Sign on and open the chats; `start` does it, if nobody did before."""
        for name in ("connect", "open"):
            await self._fleet.all(name)
        self._prepared = True

    async def start(self) -> None:
        """Begin; the measured part begins at `first_ns` (monotonic clock)."""
        if not self._prepared:
            await self.prepare()
        start_ns = time.monotonic_ns() + START_DELAY_NS
        self.first_ns = start_ns + int(self._options.warm_up_s * _NS)
        self._running = asyncio.create_task(self._fleet.all("run", start_ns))

    async def finish(self) -> Verdict:
        """Wait until the schedule is played and everything has come; the verdict."""
        if self._running is None:
            raise MeasurementError("the load was never started")
        if any(part["stopped_early"] for part in await self._running):
            raise MeasurementError("the load was given up: too many messages without an answer")
        deadline_s = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline_s:
            parts = await self._fleet.all("settle")
            if all(not waiting and came >= promised for waiting, came, promised in parts):
                break
            await asyncio.sleep(STEP_S)
        self._accounts = await self._fleet.all("account")
        await self._fleet.all("stop")
        return judge(self._plan, [one["ledger"] for one in self._accounts], range(self._plan.connections))

    async def almost(self, second: int) -> float:
        """Wait until what starts now takes effect at that second; when that was, by the monotonic clock."""
        at_s = (self.first_ns - START_DELAY_NS) / _NS + second
        await asyncio.sleep(at_s - time.monotonic())
        return at_s

    def stretches(self, names: Sequence[str], seconds: int) -> list[Part]:
        """The parts of stretches that follow each other (see `stretch_begins`)."""
        begins = [stretch_begins(number, seconds) for number in range(len(names))]
        return [self.part(name, at, at + seconds) for name, at in zip(names, begins, strict=True)]

    def part(self, name: str, first_s: int, end_s: int) -> Part:
        """The messages that were due in the seconds [first_s, end_s) of the measured part."""
        acks, ends = self._cut("ack", first_s, end_s), self._cut("e2e", first_s, end_s)
        return Part(name, end_s - first_s, acks.count, acks.summary_ms(), ends.summary_ms())

    @property
    def late_ms(self) -> float:
        """P99 of how late the generator itself was: its own share in the figures."""
        return merged(one["late"] for one in self._accounts).percentile_ms(0.99)

    @property
    def noted(self) -> dict[str, int]:
        """What happened to the devices of the load besides."""
        return {name: count for one in self._accounts for name, count in one["noted"].items()}

    def _cut(self, what: str, first_s: int, end_s: int) -> Histogram:
        series: dict[int, Histogram] = {}
        for account in self._accounts:
            merge_series(series, account[what])
        return merged(part for second, part in series.items() if first_s <= second < end_s)
