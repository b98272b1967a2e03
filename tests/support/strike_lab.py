"""One strike on a running stack: arm a point, let traffic reach it, hold or restart, heal, judge.

Everything happens outside the product: a file arms its processes while they run (`failpoints`), a latch says
who was struck. With `stand_bys` there is somebody to take over from a paused writer.

Spec: §3 to §7, §9 to §11.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.processes import ExtraWorker, is_stopped, stand_by
from tests.support.room_traffic import RoomTraffic
from tests.support.stack import StackProcess
from tests.support.strike_verdict import Beside, StackMemory
from tests.support.strikes import POINTS, ROOMS, Strike
from tests.support.traffic import Plan, Traffic
from tests.support.verdict import start_traffic, verdict_on
from tests.support.watermark_sampler import WatermarkSampler

FIRE_S, BACK_S = 60.0, 90.0
FREEZE_S = 4.5  # half as long again as the lease and the session timeout of the test stack
PRODUCT_FREEZE_S = 16.0  # more than the lease of the product, and than its session timeout
ACKS_BEFORE, ACKS_AFTER = 20, 30
SHARDS = 4
ENVIRONMENT = {
    # So many that a writer that starts beside a stand-by gets two: some points are passed once per partition.
    "QIM_OUTBOX_PARTITIONS": "4",
    # Few shards and a small write batch: the group of everybody is a large record in each shard.
    "QIM_MAILBOX_SHARDS": str(SHARDS),
    "QIM_MAILBOX_WRITEBATCH_MAX_ENTRIES": "3",
    "QIM_SESSION_ROWS_PER_DISPATCH_MAX": "2",
}
WORKERS = ("--workers", "fanout=2", "--workers", "mailbox=2")
NOT_FIRED = "not fired"
BURIERS = ("fanout", "mailbox", "archiver")  # who sets poison aside


@dataclass(slots=True)
class Outcome:
    """What became of a strike. `outcome`: passed, failed or not fired. Seconds."""

    name: str
    seed: int
    nth: int
    outcome: str = "passed"
    problems: list[str] = field(default_factory=list)
    fired_s: float = 0.0  # from arming
    back_s: float = 0.0  # from the strike until whoever was struck is ready again
    took_s: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the file of results."""
        return asdict(self)


class StrikeLab:
    """Strikes on one stack, one after the other. `armed` is the stack's QIM_FAILPOINT_FILE."""

    def __init__(
        self, stack: StackProcess, armed: Path, shards: int, *, stand_bys: bool, freeze_s: float = FREEZE_S
    ) -> None:
        """`freeze_s`: how long who is paused stands still; more than the lease of the stack."""
        self._stack, self._armed, self._wanted = stack, armed, stand_bys
        self._freeze_s = freeze_s
        self._writer: ExtraWorker | None = None
        self._memory = StackMemory()
        self._shards, self._count = shards, 0

    def close(self) -> None:
        """Let go of what was started here."""
        self._disarm()
        if self._writer is not None:
            self._writer.kill()
            self._writer = None

    async def strike(self, strike: Strike, directory: Path) -> Outcome:
        """Strike once and judge; what went wrong is in the outcome, never raised."""
        outcome = Outcome(strike.name, strike.seed, strike.nth)
        began_s = time.monotonic()
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        try:
            await self._strike(strike, directory, outcome)
        except NotFiredError as error:
            outcome.outcome, outcome.problems = NOT_FIRED, [str(error)]
        except Exception as error:  # whatever it is, it belongs to this strike
            outcome.outcome = "failed"
            outcome.problems = outcome.problems or [f"{type(error).__name__}: {error}"]
        finally:
            self._disarm()
            outcome.took_s = round(time.monotonic() - began_s, 1)
        return outcome

    async def _strike(self, strike: Strike, directory: Path, outcome: Outcome) -> None:
        point, stack = POINTS[strike.point], self._stack
        await asyncio.to_thread(self._stand_by)
        await asyncio.to_thread(stack.wait_all_ready)
        self._count += 1
        run = f"k{self._count}x{strike.seed}"
        traffic = start_traffic(stack, Plan(run, strike.seed, silent=12), directory)
        once = point.role not in BURIERS
        beside = Beside(stack, traffic, self._shards, self._memory, once=once)
        with WatermarkSampler(stack.client["redis_url"]) as sampler:
            async with beside, traffic, self._rooms(point.role == ROOMS) as rooms:
                await beside.start()
                await traffic.more_acks(ACKS_BEFORE)
                await self._fire(strike, directory, traffic, outcome)
                await traffic.more_acks(ACKS_AFTER)
                if rooms is not None:
                    await rooms.more(ACKS_AFTER)
                await asyncio.to_thread(stack.wait_all_ready)
                verdict = await verdict_on(traffic, stack, sampler, directory)
                assert verdict.evidence is not None
                outcome.figures = dict(verdict.figures)
                outcome.problems = list(verdict.problems)
                outcome.problems += await beside.problems(verdict.evidence)
            outcome.figures |= beside.figures
            if outcome.problems:
                outcome.outcome = "failed"
            if rooms is not None:
                rooms.check(outcome.figures)

    @asynccontextmanager
    async def _rooms(self, wanted: bool) -> AsyncIterator[RoomTraffic | None]:
        if not wanted:
            yield None
            return
        async with RoomTraffic(self._stack) as rooms:
            await rooms.more(10)
            yield rooms

    async def _fire(self, strike: Strike, directory: Path, traffic: Traffic, outcome: Outcome) -> None:
        """Arm, see the strike, and until whoever was struck is back."""
        point, spent = POINTS[strike.point], directory / f"{strike.point}.spent"
        armed_s = time.monotonic()
        self._arm(strike, directory)
        if point.restart:
            self._kill_one(point.role, random.Random(strike.seed))
        with contextlib.suppress(AssertionError):
            await traffic.until(lambda: spent.exists() and spent.read_text(), FIRE_S, "the strike")
        if not spent.exists():
            raise NotFiredError(f"{strike.arms} was not passed within {FIRE_S:.0f} s")
        fired_s, pid = time.monotonic(), int(spent.read_text())
        outcome.fired_s = round(fired_s - armed_s, 2)
        if strike.action == "pause":
            await traffic.until(lambda: is_stopped(pid), BACK_S, f"process {pid} to stand still")
            await traffic.for_seconds(self._freeze_s)
            os.kill(pid, signal.SIGCONT)
        await traffic.until(lambda: self._is_back(strike, pid), BACK_S, f"{point.role} to be back")
        outcome.back_s = round(time.monotonic() - fired_s, 2)
        self._disarm()

    def _is_back(self, strike: Strike, pid: int) -> bool:
        """Whether every process is ready, none of them the one that was killed."""
        if self._writer is not None and self._writer.exit_code is not None:
            self._writer = None  # the stand-by was struck, or died with its lease: the stack goes on
        roles = self._stack.status().roles
        gone = strike.action == "kill" and any(role.pid == pid for role in roles)
        return not gone and all(role.state.value == "ready" for role in roles)

    def _kill_one(self, role: str, chance: random.Random) -> None:
        names = [one.name for one in self._stack.status().roles if one.name.split("-")[0] == role]
        self._stack.kill(chance.choice(names))

    def _stand_by(self) -> None:
        """Another writer that serves, if one is wanted."""
        if self._writer is not None and self._writer.exit_code is not None:
            self._writer = None
        if self._wanted and self._writer is None:
            self._writer = stand_by(self._stack, "writer", 50 + self._count)

    def _arm(self, strike: Strike, latch: Path) -> None:
        fresh = self._armed.with_suffix(".new")
        fresh.write_text(f"{strike.arms}\n{latch}\n")
        fresh.rename(self._armed)

    def _disarm(self) -> None:
        self._armed.unlink(missing_ok=True)


class NotFiredError(AssertionError):
    """No process came to the point."""
