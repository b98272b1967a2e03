"""The hot tier is lost as a whole: FLUSHALL under traffic, and an append-only file that is gone.

What was acknowledged is in the logs. Numbers must not come again, answers must stay the same, every member
must find every message through the mailbox or an explicit rebuild, and nobody gets an empty success.

T-R2, T-R4, D1, D2; P1, P2, P4, P7. Spec: §14.4.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import aiohttp
import pytest
import redis

from qim_streams.wire.frames import Error
from tests.chaos.conftest import StartStack, UnderTraffic, new_seed
from tests.chaos.test_redis_rollback import BACK_S, GONE_S, is_dead
from tests.support.stack import StackProcess
from tests.support.traffic import Plan
from tests.support.waiting import eventually, eventually_sync
from tests.support.wire_client import WireClient, WireError, pull_range

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


async def test_a_device_with_an_old_cursor_need_not_rebuild(stack: StackProcess) -> None:
    """T-R2, E8, P7: the mailboxes come back under the same numbers: rebased, and exactly what was missed."""
    address, run = stack.address(), f"r{new_seed()}"
    url = address.require_url()
    users = [f"{run}-{number}" for number in range(6)]
    async with WireClient(url, address.token(f"{run}-sam"), "phone") as sam:
        await sam.go_online()
        cursors = {}
        for user in users:
            async with WireClient(url, address.token(user), "phone") as device:
                await device.go_online()
                await sam.say(f"{user}-first", b"first", to=user)
                await eventually(lambda device=device: bool(device.pushed()), BACK_S)
            async with WireClient(url, address.token(user), "phone") as device:
                auth = await device.auth()
                cursors[user] = (await device.sync_complete(auth.sync_to_seq)).cursor
            for number in range(3):
                await sam.say(f"{user}-{number}", b"%d" % number, to=user)
    await asyncio.to_thread(flush, stack)
    await asyncio.to_thread(stack.wait_all_ready, BACK_S)
    for user in users:
        verdict = await verdict_on_cursor(stack, user, cursors[user])
        assert verdict.name == "CURSOR_REBASED", verdict
        async with WireClient(url, address.token(user), "phone") as device:
            auth = await device.auth(verdict.new_cursor)
            assert auth.after_seq + 1 == verdict.replay_from_seq
            found = await pull_range(device, auth.after_seq, auth.sync_to_seq)
            await device.sync_complete(auth.sync_to_seq)
        assert not found.problems
        assert [event.message.body for event in found.events] == [b"0", b"1", b"2"]


async def verdict_on_cursor(stack: StackProcess, user: str, cursor: str | None) -> Error:
    """The first answer to AUTH that is not "later"."""
    found: list[Error] = []

    async def judged() -> bool:
        address = stack.address()
        try:
            async with WireClient(address.require_url(), address.token(user), "phone") as device:
                await device.auth(cursor)
        except WireError as error:
            if error.frame is not None and error.frame.name.startswith("CURSOR_"):
                found.append(error.frame)
        except (aiohttp.ClientError, TimeoutError):
            return False
        else:
            pytest.fail("an old cursor was taken as it is")
        return bool(found)

    await eventually(judged, BACK_S, "a verdict")
    return found[0]


async def test_those_who_repair_are_killed_meanwhile(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-R2, T-K4: writer and mailbox worker die again and again while they bring everything back."""
    seed = new_seed()
    chance, kills = random.Random(seed), 0
    async with under_traffic(stack, Plan("midway", seed, hot_tier_forgets=True)) as traffic:
        await traffic.more_acks(80, BACK_S)
        await asyncio.to_thread(flush, stack)
        for role in ("writer", "mailbox", "writer"):
            await asyncio.sleep(chance.uniform(0.2, 2.0))
            await asyncio.to_thread(kill_if_alive, stack, role)
            kills += 1
        await traffic.more_acks(80, BACK_S)
    figures |= {"kills": kills}


def kill_if_alive(stack: StackProcess, role: str) -> None:
    """SIGKILL, unless the role is just dying by itself."""
    with contextlib.suppress(AssertionError, ProcessLookupError):
        stack.kill(role)


async def test_an_operator_repairs_without_a_writer(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """`qim repair`: 3 while something is missing, killed and repeated, 0 at the end."""
    seed = new_seed()
    async with under_traffic(stack, Plan("operator", seed, hot_tier_forgets=True)) as traffic:
        await traffic.more_acks(80, BACK_S)
        await asyncio.to_thread(repair_by_hand, stack)
        await traffic.more_acks(80, BACK_S)
        await eventually(lambda: asyncio.to_thread(is_whole, stack), BACK_S, "everything to be whole")


def repair_by_hand(stack: StackProcess) -> None:
    """Nobody starts a writer again meanwhile: the supervisor is held."""
    stack.signal_supervisor(signal.SIGSTOP)
    try:
        pid = stack.kill("writer")
        eventually_sync(lambda: is_dead(pid), GONE_S, "the writer to be dead")
        flush(stack)
        code, before = repair(stack, "status")
        assert code == 3
        assert {one["standing"] for one in before["outbox"]} == {"behind"}
        killed = start_repair(stack, "run", "--wait", "0")
        time.sleep(1.0)  # anywhere in it, or before its start: whatever the machine makes of it
        killed.kill()
        killed.wait()
        _, after = repair(stack, "run", "--wait", "0")
        assert {one["standing"] for one in after["outbox"]} == {"whole"}
    finally:
        stack.signal_supervisor(signal.SIGCONT)


def start_repair(stack: StackProcess, *args: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "qim_streams.cli", "repair", *args, "--json"]
    return subprocess.Popen(
        [*command, "--state-dir", str(stack.state_dir)],
        stdout=subprocess.PIPE,
        env=os.environ | {"QIM_LEASE_TTL_MS": "3000", "QIM_LEASE_RENEW_MS": "700"},
    )


def repair(stack: StackProcess, *args: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of ``qim repair``."""
    process = start_repair(stack, *args)
    out, _ = process.communicate(timeout=120)
    print(f"qim repair {' '.join(args)}: {process.returncode}")
    return process.returncode, json.loads(out)


def is_whole(stack: StackProcess) -> bool:
    code, found = repair(stack, "status")
    assert found["whole"] is (code == 0)
    return code == 0


@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_everything_is_lost_again_and_again(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-R2, D1: flushed, or the files are gone, several times on one stack."""
    await lose_everything(stack, under_traffic, figures, LOSSES_LONG)
