"""Every role is killed in the middle of traffic: alone, all together, and at random for long.

Scenarios T-K3, T-K4, I5; promises P1 to P11, P15. Spec: §3 to §7, §11.
"""

import random
import time
from typing import Any

import pytest

from tests.chaos.conftest import UnderTraffic, new_seed
from tests.support.killing import Killer
from tests.support.stack import StackProcess
from tests.support.traffic import Plan, Traffic

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

ROLES = ("gateway", "writer", "rooms", "fanout", "mailbox", "archiver", "qsession")
LONG_S = 600.0


@pytest.fixture(scope="module")
def stack(common_stack: StackProcess) -> StackProcess:
    return common_stack


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
        await killer.together(ROLES)
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
    await killer.together(victims)
    await traffic.more_acks(20)
