"""The hot tier is lost as a whole: FLUSHALL under traffic, and an append-only file that is gone.

What was acknowledged is in the logs. Numbers must not come again, answers must stay the same, every member
must find every message through the mailbox or an explicit rebuild, and nobody gets an empty success.

T-R2, T-R4, D1, D2; P1, P2, P4, P7. Spec: §14.4.
"""

import asyncio
import random
import shutil
import signal
from typing import Any

import pytest
import redis

from tests.chaos.conftest import StartStack, UnderTraffic, new_seed
from tests.chaos.test_redis_rollback import BACK_S, GONE_S, is_dead
from tests.support.stack import StackProcess
from tests.support.traffic import Plan
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

LOSSES_LONG = 6


@pytest.fixture(scope="module")
def stack(start_stack: StartStack) -> StackProcess:
    return start_stack("emptied", "--quick")


def flush(stack: StackProcess) -> None:
    """Everything goes, and the server goes on."""
    with redis.Redis.from_url(stack.client["redis_url"]) as client:
        client.flushall()


def lose_files(stack: StackProcess) -> None:
    """Redis is killed and comes back without its files; the supervisor is held meanwhile."""
    stack.signal_supervisor(signal.SIGSTOP)
    try:
        pid = stack.kill("redis")
        eventually_sync(lambda: is_dead(pid), GONE_S, "Redis to be dead")
        for path in (stack.state_dir / "redis").rglob("appendonlydir"):
            shutil.rmtree(path)
        for path in (stack.state_dir / "redis").rglob("*.aof*"):
            path.unlink(missing_ok=True)
    finally:
        stack.signal_supervisor(signal.SIGCONT)
    stack.wait_restarted("redis", pid, BACK_S)


async def lose_everything(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any], losses: int
) -> None:
    seed = new_seed()
    chance, ways = random.Random(seed), []
    async with under_traffic(stack, Plan(f"emptied{losses}", seed, hot_tier_forgets=True)) as traffic:
        for number in range(losses):
            await traffic.more_acks(80, BACK_S)
            ways.append(chance.choice((flush, lose_files)) if number else flush)
            await asyncio.to_thread(ways[-1], stack)
            await asyncio.to_thread(stack.wait_all_ready, BACK_S)
        await traffic.more_acks(80, BACK_S)
    figures |= {"losses": losses, "ways": [way.__name__ for way in ways]}


async def test_everything_in_redis_is_flushed(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-R2, D1: FLUSHALL under traffic, everyday form."""
    await lose_everything(stack, under_traffic, figures, 1)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_everything_is_lost_again_and_again(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-R2, D1: flushed, or the files are gone, several times on one stack."""
    await lose_everything(stack, under_traffic, figures, LOSSES_LONG)
