"""The stores under the stack stop, die, freeze and come back while clients go on sending.

Redis runs with ``appendfsync always`` here: what it acknowledged survives its death, so W must never go
back. (With `everysec` a killed Redis keeps what the kernel took; losing the last second is another test.)

T-R1, T-R2 (kill), P15. Spec: §11, §14.4.
"""

import asyncio
import signal
import time
from typing import Any

import pytest

from tests.chaos.conftest import UnderTraffic, new_seed
from tests.support.stack import StackProcess
from tests.support.traffic import Plan

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

BACK_S = 120.0
FREEZE_S = 5.0


@pytest.fixture(scope="module")
def stack(common_stack: StackProcess) -> StackProcess:
    return common_stack


async def _restarted(stack: StackProcess, server: str, number: signal.Signals) -> None:
    pid = stack.kill(server, number)
    await asyncio.to_thread(stack.wait_restarted, server, pid, BACK_S)


@pytest.mark.parametrize("server", ["kafka", "redis"])
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],  # a clean stop is the lesser fault
    ids=lambda one: one.name,
)
async def test_a_store_restarts(
    stack: StackProcess,
    under_traffic: UnderTraffic,
    figures: dict[str, Any],
    server: str,
    number: signal.Signals,
) -> None:
    """T-R1, T-R2: sends are answered again soon after the store is back, and nothing is missing."""
    async with under_traffic(stack, Plan(f"{server}-{number.name.lower()}", new_seed())) as traffic:
        await traffic.more_acks(60)
        await _restarted(stack, server, number)
        back_s = time.monotonic()
        await traffic.more_acks(1, BACK_S)
        figures["first ack after the store, s"] = round(time.monotonic() - back_s, 2)
        await traffic.more_acks(100, BACK_S)


@pytest.mark.parametrize("server", ["kafka", "redis"])
async def test_a_store_freezes(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any], server: str
) -> None:
    """SIGSTOP for longer than leases and sessions, then SIGCONT: every link hangs and none breaks."""
    async with under_traffic(stack, Plan(f"{server}-frozen", new_seed())) as traffic:
        await traffic.more_acks(60)
        pid = stack.kill(server, signal.SIGSTOP)
        await traffic.for_seconds(FREEZE_S)
        assert stack.kill(server, signal.SIGCONT) == pid, "the supervisor replaced a frozen store"
        back_s = time.monotonic()
        await traffic.more_acks(1, BACK_S)
        figures["first ack after the thaw, s"] = round(time.monotonic() - back_s, 2)
        await traffic.more_acks(100, BACK_S)


async def test_both_stores_die_together(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-R1: the machine under everything blinks."""
    async with under_traffic(stack, Plan("both", new_seed())) as traffic:
        await traffic.more_acks(60)
        pids = {server: stack.kill(server) for server in ("kafka", "redis")}
        for server, pid in pids.items():
            await asyncio.to_thread(stack.wait_restarted, server, pid, BACK_S)
        back_s = time.monotonic()
        await traffic.more_acks(100, BACK_S)
        figures["100 acks after the stores, s"] = round(time.monotonic() - back_s, 2)
