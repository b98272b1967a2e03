"""Roles are restarted in the middle of traffic, one after the other, as an operator does: `qim restart all`.

`QIM_TEST_ROUNDS` sets the rounds of the long form.

T-D1, T-R6; scenarios I1, I8; promises P1 to P11, P20. Spec: §11.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from qim_streams.embedded.stack import SERVER_ORDER
from tests.chaos.conftest import UnderTraffic, new_seed
from tests.support.stack import StackProcess
from tests.support.traffic import Plan, Traffic

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

ROUNDS_LONG = int(os.environ.get("QIM_TEST_ROUNDS") or 5)


@pytest.fixture(scope="module")
def stack(common_stack: StackProcess) -> StackProcess:
    return common_stack


async def restart(stack: StackProcess, *roles: str) -> list[str]:
    """`qim restart`; the names of the roles as they came back."""
    command = [sys.executable, "-m", "qim_streams.cli", "restart", "--state-dir", str(stack.state_dir)]
    done = await asyncio.to_thread(
        subprocess.run, [*command, *roles], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{stack.log_ends()}"
    print(done.stdout)
    return [line.partition(":")[0] for line in done.stdout.splitlines()]


def roles(stack: StackProcess) -> list[str]:
    """Every role that is no server."""
    return [role.name for role in stack.status().roles if role.order != SERVER_ORDER]


def exits(stack: StackProcess) -> dict[str, tuple[int, int | None]]:
    """Of each role: deaths that nobody asked for, and how its last process ended."""
    return {role.name: (role.restarts, role.last_exit) for role in stack.status().roles}


def check(
    stack: StackProcess,
    traffic: Traffic,
    before: dict[str, tuple[int, int | None]],
    restarted: Sequence[str],
) -> None:
    """Every process ended cleanly, nobody died, and nobody was told of an error that a restart can cause."""
    after = exits(stack)
    for role in restarted:
        assert after[role] == (before[role][0], 0), f"{role}: {after[role]}\n{stack.log_ends()}"
    assert {role: deaths for role, (deaths, _) in after.items()} == {
        role: deaths for role, (deaths, _) in before.items()
    }
    told = {name for name in traffic.counts if name.startswith("fail ")}
    assert told <= {"fail NOT_MEMBER"}, "only who is no member is refused"


async def test_writer_and_gateway_restart_under_load(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-D1, short: the two that clients speak with; seen as reconnects, nothing lost, doubled or refused."""
    before = exits(stack)
    async with under_traffic(stack, Plan("two", new_seed(), users=6, groups=2)) as traffic:
        await traffic.more_acks(30)
        assert await restart(stack, "gateway", "writer") == ["writer", "gateway"]
        await traffic.more_acks(30)
    check(stack, traffic, before, ("writer", "gateway"))


@pytest.mark.slow
async def test_a_rolling_restart_is_seen_as_reconnects_only(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-D1: every role; nothing is lost, doubled or refused; each role comes back before the next goes."""
    before = exits(stack)
    async with under_traffic(stack, Plan("roll", new_seed(), change_every_s=1.5)) as traffic:
        await traffic.more_acks(50)
        assert await restart(stack, "all") == roles(stack)
        await traffic.more_acks(50)
    check(stack, traffic, before, roles(stack))


@pytest.mark.slow
@pytest.mark.timeout(600 + 120 * ROUNDS_LONG)
async def test_rolling_restarts_for_long(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-D1, long: five rounds over two minutes and more."""
    before = exits(stack)
    async with under_traffic(stack, Plan("rolls", new_seed(), rate=30.0)) as traffic:
        for number in range(ROUNDS_LONG):
            await traffic.more_acks(100)
            began_s = time.monotonic()
            await restart(stack, "all")
            figures[f"round {number + 1}, s"] = round(time.monotonic() - began_s, 1)
        await traffic.more_acks(100)
    check(stack, traffic, before, roles(stack))
