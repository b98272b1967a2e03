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

from qim_streams.client import Rebased
from tests.chaos.conftest import StartStack, UnderTraffic, new_seed
from tests.support.returning import Returning
from tests.support.stack import StackProcess
from tests.support.traffic import Plan, Traffic
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

STEPS = ("planned", "prepared", "marked_some", "all_marked", "marks_noted", "ends_read", "settled")
COMMAND_S = 120.0
ROOM = {"QIM_MAILBOX_SHARDS": "2", "QIM_MAILBOX_SHARDS_MAX": "8"}
MUCH_ROOM = {"QIM_MAILBOX_SHARDS": "2", "QIM_MAILBOX_SHARDS_MAX": "16"}
ROLES = ("writer", "fanout", "mailbox", "qsession", "gateway")
READERS = 12
ACKS_S = 120.0


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


class Readers:
    """Each user has a device that comes back after every split and one that comes back after all of them."""

    def __init__(self, stack: StackProcess, run: str) -> None:
        self._address, self._sam, self._said = stack.address(), f"{run}-sam", 0
        self._users = [f"{run}-r{one}" for one in range(READERS)]
        self.often = [Returning(stack, user, "phone") for user in self._users]
        self.once = [Returning(stack, user, "tablet") for user in self._users]

    async def begin(self) -> None:
        """All get cursors, and two entries each behind them."""
        await asyncio.gather(*(one.begin() for one in (*self.often, *self.once)))
        await self.write(2)

    async def write(self, count: int) -> None:
        """Sam writes to everybody."""
        async with WireClient(self._address.require_url(), self._address.token(self._sam), "phone") as sam:
            await sam.go_online()
            for _ in range(count):
                self._said += 1
                for user in self._users:
                    await sam.say(f"{user}-{self._said}", b"%d" % self._said, to=user)

    async def come_back(self, who: list[Returning]) -> list[int]:
        """Each has everything, in order and once; how often the cursor of each was rebased for it."""
        found = await asyncio.gather(*(one.read(self._said) for one in who))
        for one in who:
            assert [body for _, _, body in one.entries] == [b"%d" % (at + 1) for at in range(self._said)]
        return found


async def split_again(stack: StackProcess, *args: str) -> float:
    """`qim shard split` to its end; how long it took, in seconds."""
    began_s = time.monotonic()
    done = await asyncio.to_thread(qim, stack, "shard", "split", *args)
    assert done.returncode == 0, done.stderr
    return round(time.monotonic() - began_s, 2)


async def check_readers(found: Readers, rebased: list[list[int]]) -> None:
    """Who stayed away has by one rebased cursor what the others got bit by bit, under the same numbers."""
    at_once = await found.come_back(found.once)
    moves = [sum(turns) for turns in zip(*rebased, strict=True)]
    assert at_once == [int(moved > 0) for moved in moves], f"moved {moves}"
    assert max(moves) > 1, f"somebody moved twice: {moves}"
    assert [one.entries for one in found.once] == [one.entries for one in found.often]


@pytest.fixture(scope="module")
def stack(start_stack: StartStack) -> StackProcess:
    return start_stack("split", "--fsync", "always", env=ROOM)


async def test_shards_are_split_twice_under_traffic(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """The short form: 2 shards become 4 and 8 while everybody talks; a run is killed once and given again."""
    plan = Plan(run=f"split{new_seed()}", seed=new_seed(), users=8, silent=4, rate=40.0)
    before = deaths(stack)
    found = Readers(stack, plan.run)
    async with under_traffic(stack, plan) as traffic:
        await found.begin()
        assert await found.come_back(found.often) == [0] * READERS
        await found.write(1)
        tried = await asyncio.to_thread(qim, stack, "shard", "split", "--dry-run")
        assert tried.returncode == 0, tried.stderr
        assert standing(stack)["under_way"] is None
        killed = await asyncio.to_thread(
            qim, stack, "shard", "split", QIM_FAILPOINT="shard.marked_some:1:kill"
        )
        assert killed.returncode == -9, killed.stderr
        figures["split, s"] = await split_again(stack)
        await found.write(1)
        rebased = [await found.come_back(found.often)]
        await found.write(1)
        figures["second split, s"] = await split_again(stack)
        await found.write(1)
        rebased.append(await found.come_back(found.often))
        await check_readers(found, rebased)
        await traffic.more_acks(40, ACKS_S)
    check_sleepers(traffic)
    assert deaths(stack) == before, f"nobody dies of a split:\n{stack.log_ends()}"
    shards = standing(stack)["shards"]
    assert [one["came_from"] for one in shards] == [[], [], [0], [1], [0], [1], [0, 2], [1, 3]]
    full = await asyncio.to_thread(qim, stack, "shard", "split")
    assert full.returncode == 1
    assert "QIM_MAILBOX_SHARDS_MAX" in full.stderr


def check_sleepers(traffic: Traffic) -> None:
    """Who slept through all splits was rebased once at most."""
    for device in traffic.sleepers:
        count = sum(isinstance(one, Rebased) for one in device.deliveries)
        assert count <= 1, f"{device.name} was rebased {count} times"


@pytest.mark.slow
async def test_the_run_is_killed_at_every_step(
    tmp_path: Path, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """One split after the other, each killed at another step; while it lies there all workers die, too."""
    with StackProcess(tmp_path / "stack", "--fsync", "always", env=MUCH_ROOM) as stack:
        plan = Plan(run=f"steps{new_seed()}", seed=new_seed(), users=8, silent=4, rate=40.0)
        async with under_traffic(stack, plan) as traffic:
            for step in STEPS:
                olds = [f"--shard={one}" for one in largest(stack)]
                killed = await asyncio.to_thread(
                    qim, stack, "shard", "split", *olds, QIM_FAILPOINT=f"shard.{step}:1:kill"
                )
                assert killed.returncode == -9, killed.stderr
                pids = {role: stack.kill(role) for role in ROLES}
                for role, pid in pids.items():
                    await asyncio.to_thread(stack.wait_restarted, role, pid)
                await give_up(stack, possible=step == "planned", over=step == "settled")
                version = standing(stack)["mapping_version"] + int(step != "settled")
                olds.append(f"--to-version={version}")
                figures[f"after a kill at {step}, s"] = await split_again(stack, *olds)
                await split_again(stack, *olds)  # changes nothing
                await traffic.more_acks(20, ACKS_S)
        assert len(standing(stack)["shards"]) == 2 + 2 * len(STEPS)


async def give_up(stack: StackProcess, *, possible: bool, over: bool) -> None:
    """`qim shard split --abort`: only what was planned can be abandoned, and then nothing is under way."""
    before = len(standing(stack)["shards"])
    done = await asyncio.to_thread(qim, stack, "shard", "split", "--abort")
    assert done.returncode == (0 if possible else 1), done.stderr
    assert possible or ("nothing to abort" if over else "only be finished") in done.stderr
    found = standing(stack)
    assert (found["under_way"] is None, len(found["shards"])) == (possible or over, before)


def largest(stack: StackProcess) -> list[int]:
    """The two shards with the most mailboxes: their users move again and again."""
    shards = sorted(standing(stack)["shards"], key=lambda one: -int(one["mailboxes"]))
    return sorted(one["shard"] for one in shards[:2])
