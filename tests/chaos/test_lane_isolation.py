"""Large records in slices while the mailbox worker dies between them, and a lane that stands still.

Groups are large in every shard here (a call takes three mailboxes, and so does a slice), so each message of
a group is written in several slices and direct messages pass it. The worker is killed whenever lanes are
seen to stand apart: nothing may be lost, doubled or out of a user's order.

T-K2, T-M1, G5 on real processes; lane_stall_failover. Spec: §5, §11, §13.
"""

import asyncio
from contextlib import closing
from typing import Any

import pytest
import redis

from qim_streams.placement import lane, mailbox_shard, ordinal_of
from tests.chaos.conftest import StartStack, UnderTraffic, new_seed
from tests.chaos.test_redis_rollback import is_dead
from tests.support.logs import HotTier
from tests.support.stack import StackProcess
from tests.support.traffic import Plan
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

SHARDS = "2"
SMALL = {
    "QIM_MAILBOX_SHARDS": SHARDS,
    "QIM_MAILBOX_WRITEBATCH_MAX_ENTRIES": "3",
    "QIM_MAILBOX_LARGE_RECORD_ENTRIES": "3",
    "QIM_MAILBOX_SLICE_ENTRIES": "3",
}
STALL_S = "6"
GONE_S = 90.0


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])])
async def test_kills_between_slices(
    start_stack: StartStack, under_traffic: UnderTraffic, figures: dict[str, Any], kills: int
) -> None:
    """Lanes that stand apart go on where each of them is, life after life."""
    stack, apart = start_stack(f"slices{kills}", "--quick", env=SMALL), 0
    async with under_traffic(stack, Plan(f"slices{kills}", new_seed(), silent=24, rate=12.0)) as traffic:
        for _ in range(3 * kills):
            await traffic.more_acks(20)
            apart += await asyncio.to_thread(kill_apart, stack)
            if apart >= kills:
                break
    figures["killed with lanes apart"] = apart
    assert apart >= kills, "the worker was never killed between two slices"


def kill_apart(stack: StackProcess) -> bool:
    """SIGKILL the mailbox worker when lanes stand apart; whether they do once it is dead."""
    with closing(HotTier(stack.client["redis_url"])) as tier:

        def stand_apart() -> bool:
            return any(len(set(lanes)) > 1 for lanes in tier.watermarks().values())

        eventually_sync(stand_apart, GONE_S, "lanes to stand apart")
        pid = stack.kill("mailbox")
        eventually_sync(lambda: is_dead(pid), GONE_S, "the mailbox worker to be dead")
        found = stand_apart()
    stack.wait_restarted("mailbox", pid, GONE_S)
    return found


async def test_a_lane_that_stands_still_costs_its_worker_the_shard(
    start_stack: StartStack, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """A mailbox that refuses holds its lane, then costs the shard its worker; mended, nothing is missing."""
    stack = start_stack(
        "stall", "--quick", env={"QIM_MAILBOX_SHARDS": SHARDS, "QIM_LANE_STALL_FAILOVER_S": STALL_S}
    )
    async with under_traffic(stack, Plan("stall", new_seed(), silent=4, rate=12.0)) as traffic:
        await traffic.more_acks(30)
        pid, key = stack.role("mailbox").pid, await asyncio.to_thread(plant, stack, traffic.silent[0])
        assert pid is not None
        try:
            await asyncio.to_thread(stack.wait_restarted, "mailbox", pid, GONE_S)
        finally:
            await asyncio.to_thread(mend, stack, key)
        said = (stack.state_dir / "log" / "mailbox.log").read_text(errors="replace")
        assert "exit 70: lane stall" in said
        assert "is held, others go on" in said
        assert "nobody else serves any: start another mailbox worker" in said
        await traffic.more_acks(50)
        figures["given up"] = said.count("exit 70: lane stall")


async def test_a_shard_that_stood_still_goes_to_another_worker(
    start_stack: StartStack, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """Who gave it up comes back without it, and takes what the other one had instead."""
    stack = start_stack(
        "stall2",
        "--quick",
        *("--workers", "mailbox=2"),
        env={"QIM_MAILBOX_SHARDS": SHARDS, "QIM_LANE_STALL_FAILOVER_S": STALL_S},
    )
    async with under_traffic(stack, Plan("stall2", new_seed(), silent=4, rate=12.0)) as traffic:
        await traffic.more_acks(30)
        key = await asyncio.to_thread(plant, stack, traffic.silent[0])
        shard = int(key.partition(b"}")[0].partition(b":")[2])
        first = await asyncio.to_thread(holder, stack, shard)
        name = "mailbox" if first.endswith(".0") else "mailbox-1"
        pid, log = stack.role(name).pid, stack.state_dir / "log" / f"{name}.log"
        assert pid is not None
        try:
            await traffic.until(lambda: "exit 70: lane stall" in log.read_text(), GONE_S, "the stall")
        finally:
            await asyncio.to_thread(mend, stack, key)
        await asyncio.to_thread(stack.wait_restarted, name, pid, GONE_S)
        await traffic.more_acks(50)
        owners = {number: await asyncio.to_thread(holder, stack, number) for number in range(int(SHARDS))}
        assert owners[shard] not in ("", first), owners
        assert first in owners.values(), owners
        assert f"shards [{shard}] were given up: joining in" in log.read_text()
        figures["owners"] = str(owners)


def holder(stack: StackProcess, shard: int) -> str:
    """Who has the lease of a shard; empty: nobody."""
    with redis.Redis.from_url(stack.client["redis_url"], decode_responses=True) as client:
        return str(client.hget(f"{{s:{shard}}}:lease", "node") or "")


def plant(stack: StackProcess, user: str) -> bytes:
    """Put something that is no stream in the place of a user's mailbox, which has entries; its key."""
    tenant, shards = stack.address().require_tenant(), int(SHARDS)
    number, shard = lane(tenant, user), mailbox_shard(tenant, user, shards)
    with redis.Redis.from_url(stack.client["redis_url"]) as client:
        key = b""

        def has_entries() -> bool:
            nonlocal key
            count = client.hget(f"{{o:{tenant}:{number}}}:ids", user)
            key = b"{s:%d}:mb:%s:%d" % (shard, tenant.encode(), ordinal_of(int(count or 0), number))
            return count is not None and client.xlen(key) > 0

        eventually_sync(has_entries, GONE_S, f"{user} to have a mailbox")
        client.rename(key, key + b".kept")
        client.set(key, b"no stream")
        return key


def mend(stack: StackProcess, key: bytes) -> None:
    """Put the mailbox back."""
    with redis.Redis.from_url(stack.client["redis_url"]) as client:
        client.rename(key + b".kept", key)
