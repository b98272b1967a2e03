"""RoomWriter and gateway are killed under traffic: numbers go on or the epoch tells (J4; Spec: §10).

What is judged: every message that was acknowledged is seen by every member or told as lost, nothing is seen
twice or out of order, members hear of a new writer, and the room is usable again after each death.
"""

import asyncio
import random
import signal
import time
from typing import Any

import pytest

from qim_streams.client.room_tracker import Entered, NewEpoch
from tests.chaos.conftest import new_seed
from tests.support.room_traffic import RoomTraffic
from tests.support.stack import StackProcess

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

LONG_S = 300.0


@pytest.fixture(scope="module")
def stack(common_stack: StackProcess) -> StackProcess:
    return common_stack


async def test_the_writer_of_a_room_is_killed(stack: StackProcess, figures: dict[str, Any]) -> None:
    """J4: members hear of it, numbers go on, nothing acknowledged is missing without a word."""
    async with RoomTraffic(stack) as traffic:
        await traffic.more(20)
        pid = stack.kill("rooms", signal.SIGKILL)
        began_s = time.monotonic()
        await traffic.more(20)
        figures["room writable again, s"] = round(time.monotonic() - began_s, 2)
        await asyncio.to_thread(stack.wait_restarted, "rooms", pid)
    for viewer in traffic.viewers:
        assert viewer.of(NewEpoch), "nobody was told"
        assert not any(one.restarted for one in viewer.of(NewEpoch))
    traffic.check(figures)
    assert traffic.acked[-1].room_seq >= len(traffic.acked)


async def test_the_gateway_of_a_room_is_killed(stack: StackProcess, figures: dict[str, Any]) -> None:
    """Members come back by themselves and are shown what they missed, or told that it is lost."""
    async with RoomTraffic(stack) as traffic:
        await traffic.more(20)
        pid = stack.kill("gateway", signal.SIGKILL)
        await asyncio.to_thread(stack.wait_restarted, "gateway", pid)
        await traffic.more(20)
    for viewer in traffic.viewers:
        assert [one.again for one in viewer.of(Entered)][-1]
    traffic.check(figures)
    assert all(viewer.check(traffic.acked) == 0 for viewer in traffic.viewers)  # the window had it all


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 600)
async def test_rooms_live_through_random_kills(stack: StackProcess, figures: dict[str, Any]) -> None:
    """J4, long: writer, gateway or both die at random moments for minutes."""
    seed = new_seed()
    chance = random.Random(seed)
    print(f"seed {seed}")
    kills = 0
    async with RoomTraffic(stack) as traffic:
        end_s = time.monotonic() + LONG_S
        while time.monotonic() < end_s:
            await traffic.more(chance.randint(1, 60))
            victims = chance.sample(("rooms", "gateway"), 2 if chance.random() < 0.25 else 1)
            pids = {role: stack.kill(role, signal.SIGKILL) for role in victims}
            kills += len(pids)
            for role, pid in pids.items():
                await asyncio.to_thread(stack.wait_restarted, role, pid)
    figures["kills"] = kills
    traffic.check(figures)
