"""The dual-write gap: the writer dies between Redis and the Outbox, and between the Outbox and the ack.

A message that has its number and is not in the log is the most dangerous state of the system. Here every
life of the writer ends in it, again and again, while clients repeat under the same id.

T-K1, C5; P1 to P4. Spec: §3.4, §3.5, §14.3.
"""

import time
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import StartStack, UnderTraffic, new_seed
from tests.support.stack import StackProcess
from tests.support.traffic import Plan, Traffic

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

# Before the append, with the append handed over, and acknowledged with nobody told.
POINTS = {"writer.committed_in_redis": 8, "writer.produce_sent": 12, "writer.produce_acked": 16}
KILLS, KILLS_LONG = 6, 200  # everyday: each point twice
ONE_KILL_S = 60.0


class Latches:
    """Arms the points of the running stack one after the other: a point fires when its file is missing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disarm()

    def _path(self, point: str) -> Path:
        return self.directory / f"{point}.spent"

    def disarm(self) -> None:
        """No point fires."""
        for point in POINTS:
            self._path(point).touch()

    def arm(self, point: str) -> None:
        """The point fires at its next n-th hit in a life of the writer."""
        self._path(point).unlink()

    def fired(self, point: str) -> bool:
        """Whether it did."""
        return self._path(point).exists()


@pytest.fixture(scope="module")
def latches(tmp_path_factory: pytest.TempPathFactory) -> Latches:
    return Latches(tmp_path_factory.mktemp("latch"))


@pytest.fixture(scope="module")
def stack(start_stack: StartStack, latches: Latches) -> StackProcess:
    env = {
        "QIM_FAILPOINT": ",".join(f"{name}:{nth}:kill" for name, nth in POINTS.items()),
        "QIM_FAILPOINT_LATCH": str(latches.directory),
    }
    return start_stack("dual-write", "--quick", env=env)


async def _kill_often(stack: StackProcess, latches: Latches, traffic: Traffic, kills: int) -> dict[str, Any]:
    """Let the writer die `kills` times; each time until sends are answered again."""
    slowest_s = 0.0
    points = [name for name, _ in zip(cycle(POINTS), range(kills), strict=False)]
    latches.arm(points[0])
    stack.kill("writer")  # this life has passed the n-th hit already
    for point, following in pairwise([*points, None]):
        assert point is not None
        await traffic.until(lambda one=point: latches.fired(one), ONE_KILL_S, f"the writer to die at {point}")
        began_s = time.monotonic()
        if following is not None:  # now, before the next life comes to its n-th hit
            latches.arm(following)
        await traffic.more_acks(1)
        slowest_s = max(slowest_s, time.monotonic() - began_s)
    return {"kills in the gap": kills, "slowest return, s": round(slowest_s, 2)}


@pytest.mark.parametrize(
    "kills", [KILLS, pytest.param(KILLS_LONG, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
async def test_kills_in_the_gap(
    stack: StackProcess,
    latches: Latches,
    under_traffic: UnderTraffic,
    figures: dict[str, Any],
    kills: int,
) -> None:
    """T-K1 and C5: nothing lost, nothing double, the same ids for every repeat."""
    async with under_traffic(stack, Plan(f"gap{kills}", new_seed())) as traffic:
        await traffic.more_acks(30)
        try:
            measured = await _kill_often(stack, latches, traffic, kills)
        finally:
            latches.disarm()
        await traffic.more_acks(30)
    figures.update(measured)
