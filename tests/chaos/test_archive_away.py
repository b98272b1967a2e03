"""The archive freezes and dies under a whole stack: sends go on, nothing is trimmed, it catches up.

The archive is a real Cassandra. The hot tier keeps five messages of a conversation, so what devices pull
comes out of the archive most of the time.

The long form is an hour's worth: as many messages as come in one at 5 a second, in 45 seconds; in an hour by
the clock with `QIM_TEST_HOUR_S=3600`.

T-R4, P11, I11, I12. Spec: §1 ARCHIVED, §3, §14.8.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from qim_streams.archive.opening import open_archive_reader
from qim_streams.cli.servers import server_settings
from qim_streams.embedded.errors import JavaMissingError
from qim_streams.embedded.java import find_java
from qim_streams.loadgen.options import BenchOptions
from qim_streams.loadgen.outcome import document, lines
from qim_streams.loadgen.run import Target, run_bench
from qim_streams.loadgen.surroundings import stack_settings
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.settings import Settings
from tests.chaos.conftest import StartStack, UnderTraffic, new_seed
from tests.support.logs import read_outbox
from tests.support.stack import StackProcess
from tests.support.traffic import Plan, Traffic
from tests.support.verdict import unarchived
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

BACK_S = 120.0
FREEZE_S = 5.0  # several times the archiver's wait for an answer
KEPT = 5
# What may be in the hot tier of a conversation once it is trimmed: the newest, and less than a slab more.
HOT_MAX = KEPT + min(64, KEPT + 1)


@pytest.fixture(scope="module")
def stack(start_stack: StartStack) -> StackProcess:
    try:
        find_java()
    except JavaMissingError as error:
        pytest.skip(f"unproven here: a stack whose archive goes away (T-R4). {error}")
    env = {"QIM_HOT_TIER_MESSAGES_KEPT": str(KEPT), "QIM_CASSANDRA_REQUEST_TIMEOUT_MS": "1000"}
    return start_stack("archive-away", "--archive", "cassandra", env=env)


def archive_status(stack: StackProcess) -> list[dict[str, int]]:
    """What ``qim archive status`` says of each Outbox partition."""
    command = [sys.executable, "-m", "qim_streams.cli", "archive", "status", "--json"]
    done = subprocess.run(
        [*command, "--state-dir", str(stack.state_dir)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, int]] = json.loads(done.stdout)["partitions"]
    return rows


async def hot_messages(redis: RedisClient) -> dict[str, int]:
    """How many messages the hot tier has of each conversation."""
    found = {}
    async for key in redis.scan_iter(match="{ob:*}:r:*", count=1_000):
        found[key.decode()] = int(await redis.hlen(key))
    return found


async def caught_up(stack: StackProcess) -> None:
    """Until everything in the Outbox is archived."""

    async def done() -> bool:
        rows = await asyncio.to_thread(archive_status, stack)
        return all(row["lag"] == 0 for row in rows)

    await eventually(done, BACK_S, "the archive to catch up")


async def goes_away(
    stack: StackProcess, traffic: Traffic, redis: RedisClient, figures: dict[str, Any]
) -> None:
    """Freeze the archive; hold what must be true while it is away."""
    pid = stack.kill("cassandra", signal.SIGSTOP)
    await traffic.more_acks(20)  # what was being trimmed at that moment is over
    before = await hot_messages(redis)
    acks = traffic.counts["ok"]
    await traffic.for_seconds(FREEZE_S)
    await traffic.more_acks(50)
    during = await hot_messages(redis)
    figures["acks while the archive was away"] = traffic.counts["ok"] - acks
    assert sum(during.values()) > sum(before.values()) + 50
    assert all(during[key] >= count for key, count in before.items()), "something was trimmed"
    assert stack.kill("cassandra", signal.SIGCONT) == pid, "the supervisor replaced a frozen archive"


HOUR_S = int(os.environ.get("QIM_TEST_HOUR_S") or 45)
HOUR = BenchOptions(
    rate=18_000 / HOUR_S, duration_s=HOUR_S, warm_up_s=0.5, connections=60, users=120, drain_s=60
)
HOUR_BACK_S = 300.0


async def everything_archived(stack: StackProcess, tenant: str, client_ids: str) -> int:
    """I12: every message of the Outbox is in the archive with its bytes; how many there are."""
    brokers = stack.client["brokers"]
    outbox = await asyncio.to_thread(read_outbox, brokers, tenant, client_ids)
    reader = open_archive_reader(server_settings(stack.state_dir)[0])
    assert await unarchived(reader, brokers, outbox) == []
    return len(outbox)


async def _is_empty(text: Callable[[], Awaitable[str]]) -> bool:
    return not await text()


@pytest.mark.slow
@pytest.mark.timeout(HOUR_S + 855)
async def test_an_archive_that_is_away_for_an_hour(start_stack: StartStack, figures: dict[str, Any]) -> None:
    """T-R4, P11: an hour of messages is sent as if nothing were wrong; nothing of it is trimmed before."""
    try:
        find_java()
    except JavaMissingError as error:
        pytest.skip(f"unproven here: an hour without the archive (T-R4). {error}")
    env = {
        "QIM_HOT_TIER_MESSAGES_KEPT": str(KEPT),
        "QIM_CASSANDRA_REQUEST_TIMEOUT_MS": "1000",
    }
    stack = start_stack("archive-hour", "--archive", "cassandra", env=env)
    redis = connect(Settings(redis_url=stack.client["redis_url"]))
    shards = stack_settings(stack.state_dir)["mailbox_shards"]
    target = Target(stack.address(), stack.state_dir, stack.client["redis_url"], shards)
    archiver = stack.role("archiver").pid
    pid = stack.kill("cassandra", signal.SIGSTOP)
    try:
        outcome = await run_bench(HOUR, target, None, print)
        hot = await hot_messages(redis)
        sent = document(outcome, {})["acked"]
        figures |= {"acked while the archive was away": sent, "hot meanwhile": sum(hot.values())}
        assert outcome.clean, lines(outcome)
        assert sum(hot.values()) >= sent, "something was trimmed that the archive does not have"
    finally:
        assert stack.kill("cassandra", signal.SIGCONT) == pid, "the supervisor replaced a frozen archive"
    began_s = time.monotonic()

    async def left() -> str:
        """What is not archived or not trimmed yet."""
        lags = sum(row["lag"] for row in await asyncio.to_thread(archive_status, stack))
        most = max((await hot_messages(redis)).values())
        return f"{lags} to archive, {most} hot in one conversation" if lags or most > HOT_MAX else ""

    try:
        await eventually(lambda: _is_empty(left), HOUR_BACK_S, "all of it to be archived, and trimmed")
    except AssertionError as error:
        raise AssertionError(f"{error}: {await left()}") from None
    figures["archived and trimmed after, s"] = round(time.monotonic() - began_s, 1)
    assert stack.role("archiver").pid == archiver, "the archiver ended"
    assert await everything_archived(stack, stack.address().require_tenant(), "") >= sent
    await redis.aclose()


async def test_an_archive_that_is_away_costs_nothing_but_lag(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-R4: frozen, then killed; the archiver is the same process all the time."""
    archiver = stack.role("archiver").pid
    redis = connect(Settings(redis_url=stack.client["redis_url"]))
    async with under_traffic(stack, Plan("archive-away", new_seed())) as traffic:
        await traffic.more_acks(200)
        await goes_away(stack, traffic, redis, figures)
        await traffic.more_acks(50)
        killed = stack.kill("cassandra")
        await traffic.more_acks(100)
        await asyncio.to_thread(stack.wait_restarted, "cassandra", killed, BACK_S)
        await traffic.more_acks(50)
    await caught_up(stack)
    assert stack.role("archiver").pid == archiver, "the archiver ended"

    async def trimmed() -> bool:
        return max((await hot_messages(redis)).values()) <= HOT_MAX

    await eventually(trimmed, BACK_S, "the hot tier to be trimmed")
    figures["messages left in the hot tier"] = sum((await hot_messages(redis)).values())
    await redis.aclose()
