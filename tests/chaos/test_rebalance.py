"""Workers join, leave, die and freeze while traffic goes on: partitions move all the time.

T-B1, T-Z1; B1, B2, B7, I4. Spec: §4, §5, §11.
"""

import asyncio
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.conftest import UnderTraffic, new_seed
from tests.support.processes import ExtraWorker
from tests.support.stack import StackProcess
from tests.support.traffic import Plan, Traffic
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

ROLES = ("fanout", "mailbox")
STORM_S, STORM_LONG_S = 15.0, 90.0
JOIN_S = 60.0
FREEZE_S = 4.5  # half as long again as the lease and the session timeout of the test stack


@pytest.fixture(scope="module")
def stack(common_stack: StackProcess) -> StackProcess:
    return common_stack


class Crowd:
    """The extra workers. All are gone when it is closed."""

    def __init__(self, stack: StackProcess) -> None:
        self._stack = stack
        self._slots = 10
        self.workers: dict[str, list[ExtraWorker]] = {role: [] for role in ROLES}
        self.joined = self.left = self.killed = 0

    def join(self, role: str) -> ExtraWorker:
        """A new worker with a slot, and so a group identity, of its own."""
        self._slots += 1
        worker = ExtraWorker(self._stack, role, self._slots)
        self.workers[role].append(worker)
        self.joined += 1
        return worker

    async def go(self, role: str, worker: ExtraWorker, *, politely: bool) -> None:
        """One leaves (exit 0) or is killed."""
        self.workers[role].remove(worker)
        if politely:
            assert worker.exit_code is None, f"{worker.name} ended by itself with {worker.exit_code}"
            code = await asyncio.to_thread(worker.leave)
            assert code == 0, f"{worker.name} left with exit code {code}"
            self.left += 1
        else:
            await asyncio.to_thread(worker.kill)
            self.killed += 1

    def close(self) -> None:
        """Kill the rest."""
        for workers in self.workers.values():
            for worker in workers:
                worker.kill()


@pytest.fixture
def crowd(stack: StackProcess) -> Iterator[Crowd]:
    found = Crowd(stack)
    yield found
    found.close()


@pytest.mark.parametrize(
    "seconds", [STORM_S, pytest.param(STORM_LONG_S, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
async def test_rebalance_storm(
    stack: StackProcess, crowd: Crowd, under_traffic: UnderTraffic, figures: dict[str, Any], seconds: float
) -> None:
    """T-B1, B1, B2: no record is skipped and none shows early while workers come and go every few seconds."""
    seed = new_seed()
    async with under_traffic(stack, Plan(f"storm{seconds:.0f}", seed)) as traffic:
        await traffic.more_acks(50)
        loop = asyncio.get_running_loop()
        chance, end_s = random.Random(seed), loop.time() + seconds
        while loop.time() < end_s:
            await _one_move(crowd, traffic, chance)
            await traffic.more_acks(5)  # progress all along
        for role in ROLES:
            for worker in list(crowd.workers[role]):
                await traffic.until(worker.is_ready, JOIN_S, f"{worker.name} to be there")
                await crowd.go(role, worker, politely=True)
        await traffic.more_acks(50)
    figures |= {"joined": crowd.joined, "left": crowd.left, "killed": crowd.killed}


async def _one_move(crowd: Crowd, traffic: Traffic, chance: random.Random) -> None:
    """Somebody joins (and is waited for, half of the time), leaves or dies."""
    role = chance.choice(ROLES)
    present = crowd.workers[role]
    if not present or (len(present) < 2 and chance.random() < 0.5):
        worker = crowd.join(role)
        if chance.random() < 0.5:
            await traffic.until(worker.is_ready, JOIN_S, f"{worker.name} to get partitions, if any")
    else:
        ready = [one for one in present if one.exit_code is None and one.is_ready()]
        if ready:  # a worker that is still starting may answer a signal with another exit code
            await crowd.go(role, chance.choice(ready), politely=chance.random() < 0.5)
    await traffic.for_seconds(chance.uniform(1.0, 3.0))


@pytest.mark.parametrize("freezes", [1, pytest.param(3, marks=pytest.mark.slow)])
async def test_a_frozen_mailbox_worker_comes_back_as_a_zombie(
    stack: StackProcess, crowd: Crowd, under_traffic: UnderTraffic, figures: dict[str, Any], freezes: int
) -> None:
    """T-Z1: SIGSTOP for longer than lease and session; another serves; SIGCONT; the zombie writes nothing."""
    async with under_traffic(stack, Plan(f"zombie{freezes}", new_seed())) as traffic:
        await traffic.more_acks(50)
        other = crowd.join("mailbox")
        await traffic.until(other.is_ready, JOIN_S, "the other worker to serve")
        for _ in range(freezes):
            pid = stack.kill("mailbox", signal.SIGSTOP)
            await traffic.for_seconds(FREEZE_S)
            stack.kill("mailbox", signal.SIGCONT)
            await traffic.more_acks(80)
            await eventually(lambda: stack.role("mailbox").state.value == "ready", JOIN_S, "mailbox ready")
        figures["survived the freeze"] = stack.role("mailbox").pid == pid
        await crowd.go("mailbox", other, politely=True)
        await traffic.more_acks(50)
