"""Every role is killed in the middle of traffic: alone, all together, and at random for long.

Scenarios T-K3, T-K4, I5; promises P1 to P11, P15. Spec: §3 to §7, §11.
"""

import asyncio
import random
import signal
import time
from collections import Counter
from typing import Any

import pytest

from tests.chaos.conftest import UnderTraffic, new_seed
from tests.support.stack import StackProcess
from tests.support.traffic import Plan, Traffic

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

ROLES = ("gateway", "writer", "rooms", "fanout", "mailbox", "archiver", "qsession")
LONG_S = 600.0


@pytest.fixture(scope="module")
def stack(common_stack: StackProcess) -> StackProcess:
    return common_stack


class Killer:
    """Kills roles, waits for their return, and knows how many deaths were its own."""

    def __init__(self, stack: StackProcess) -> None:
        self._stack = stack
        self._before = self._restarts()
        self.killed: Counter[str] = Counter()
        self.back_s: dict[str, float] = {}

    def _restarts(self) -> dict[str, int]:
        return {role.name: role.restarts for role in self._stack.status().roles}

    def kill(self, role: str) -> int:
        """SIGKILL; returns the pid."""
        self.killed[role] += 1
        return self._stack.kill(role, signal.SIGKILL)

    async def back(self, role: str, pid: int) -> None:
        """Until the role is ready again; notes how long that took at most."""
        began_s = time.monotonic()
        await asyncio.to_thread(self._stack.wait_restarted, role, pid)
        self.back_s[role] = max(self.back_s.get(role, 0.0), round(time.monotonic() - began_s, 2))

    def check_no_other_deaths(self) -> None:
        """An exit that we did not cause is a defect even if nothing was lost."""
        now = self._restarts()
        caused = {role: self._before[role] + self.killed[role] for role in self._before}
        assert now == caused, f"restarts {now}, expected {caused}:\n{self._stack.log_ends()}"


async def test_each_role_is_killed_once(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-K3, short: one role after the other; each comes back and messages flow before the next dies."""
    killer = Killer(stack)
    async with under_traffic(stack, Plan("each", new_seed())) as traffic:
        await traffic.more_acks(100)
        for role in ROLES:
            pid = killer.kill(role)
            await killer.back(role, pid)
            await traffic.more_acks(100)
    figures |= {f"{role} back, s": seconds for role, seconds in killer.back_s.items()}
    killer.check_no_other_deaths()


async def test_all_roles_are_killed_together(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-K4: everything of ours dies within a moment; only the broker and Redis stay."""
    killer = Killer(stack)
    async with under_traffic(stack, Plan("together", new_seed())) as traffic:
        await traffic.more_acks(150)
        pids = {role: killer.kill(role) for role in ROLES}
        for role, pid in pids.items():
            await killer.back(role, pid)
        await traffic.more_acks(150)
    figures |= {f"{role} back, s": seconds for role, seconds in killer.back_s.items()}
    killer.check_no_other_deaths()


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 600)
async def test_random_kills_for_long(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-K3: every 3 to 10 s some role dies, sometimes two at once (T-K4), for ten minutes."""
    killer, seed = Killer(stack), new_seed()
    chance = random.Random(seed)
    async with under_traffic(stack, Plan("random", seed, rate=60.0)) as traffic:
        end_s = time.monotonic() + LONG_S
        while time.monotonic() < end_s:
            await traffic.for_seconds(chance.uniform(3.0, 10.0))
            await _kill_some(killer, traffic, chance)
    figures["kills"] = sum(killer.killed.values())
    figures |= {f"{role} back, s": seconds for role, seconds in killer.back_s.items()}
    killer.check_no_other_deaths()


async def _kill_some(killer: Killer, traffic: Traffic, chance: random.Random) -> None:
    victims = chance.sample(ROLES, 2 if chance.random() < 0.25 else 1)
    pids = {role: killer.kill(role) for role in victims}
    for role, pid in pids.items():
        await killer.back(role, pid)
    await traffic.more_acks(20)
