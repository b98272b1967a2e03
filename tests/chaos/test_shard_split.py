"""Shards are split under traffic, and whoever does it is killed at every step.

Growing shards loses nothing and doubles nothing: T-K3 and T-K4 for splits, I5, I7; promises P1 to P11.
Spec: §11.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import StartStack, UnderTraffic, new_seed
from tests.support.stack import StackProcess
from tests.support.traffic import Plan

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

STEPS = ("prepared", "marked_some", "all_marked", "marks_noted", "ends_read", "settled")
COMMAND_S = 120.0
ROOM = {"QIM_MAILBOX_SHARDS": "2", "QIM_MAILBOX_SHARDS_MAX": "4"}


def qim(stack: StackProcess, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command on the stack."""
    passed = {name: value for name, value in os.environ.items() if not name.startswith("QIM_")}
    command = [sys.executable, "-m", "qim_streams.cli", *args, "--state-dir", str(stack.state_dir)]
    return subprocess.run(
        command, env=passed | env, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )


def standing(stack: StackProcess) -> dict[str, Any]:
    """What `qim shard status` says."""
    found = qim(stack, "shard", "status", "--json")
    assert found.returncode == 0, found.stderr
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def deaths(stack: StackProcess) -> dict[str, int]:
    """How often each role was started again."""
    return {role.name: role.restarts for role in stack.status().roles}


@pytest.fixture(scope="module")
def stack(start_stack: StartStack) -> StackProcess:
    return start_stack("split", "--fsync", "always", env=ROOM)


async def test_shards_are_split_under_traffic(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """The short form: 2 shards become 4 while everybody talks; the run is killed once and given again."""
    plan = Plan(run=f"split{new_seed()}", seed=new_seed(), users=8, silent=4, rate=40.0)
    before = deaths(stack)
    async with under_traffic(stack, plan) as traffic:
        await asyncio.sleep(1.5)
        tried = await asyncio.to_thread(qim, stack, "shard", "split", "--dry-run")
        assert tried.returncode == 0, tried.stderr
        assert standing(stack)["under_way"] is None
        killed = await asyncio.to_thread(
            qim, stack, "shard", "split", QIM_FAILPOINT="shard.marked_some:2:kill"
        )
        assert killed.returncode == -9, killed.stderr
        began_s = time.monotonic()
        done = await asyncio.to_thread(qim, stack, "shard", "split")
        assert done.returncode == 0, done.stderr
        figures["split, s"] = round(time.monotonic() - began_s, 2)
        await asyncio.sleep(2.5)
        assert traffic.counts
    assert deaths(stack) == before, f"nobody dies of a split:\n{stack.log_ends()}"
    found = standing(stack)
    assert [one["came_from"] for one in found["shards"]] == [[], [], [0], [1]]
    assert all(one["records"] for one in found["shards"]), "the new shards have work"
    full = await asyncio.to_thread(qim, stack, "shard", "split")
    assert full.returncode == 1
    assert "QIM_MAILBOX_SHARDS_MAX" in full.stderr


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
async def test_the_run_is_killed_at_every_step(
    tmp_path: Path, under_traffic: UnderTraffic, step: str
) -> None:
    """And, while it lies there, a worker of every stage is, too."""
    with StackProcess(tmp_path / "stack", "--fsync", "always", env=ROOM) as stack:
        plan = Plan(run=f"{step[:6]}{new_seed()}", seed=new_seed(), users=8, silent=4, rate=40.0)
        async with under_traffic(stack, plan):
            await asyncio.sleep(1.0)
            killed = await asyncio.to_thread(
                qim, stack, "shard", "split", QIM_FAILPOINT=f"shard.{step}:1:kill"
            )
            assert killed.returncode == -9, killed.stderr
            for role in ("fanout", "mailbox", "gateway", "qsession"):
                pid = stack.kill(role)
                await asyncio.to_thread(stack.wait_restarted, role, pid)
            done = await asyncio.to_thread(qim, stack, "shard", "split")
            assert done.returncode == 0, done.stderr
            await asyncio.sleep(2.0)
        assert len(standing(stack)["shards"]) == 4
