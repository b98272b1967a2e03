"""RoomWriter and gateway are killed under traffic: numbers go on or the epoch tells (J4; Spec: §10).

What is judged: every message that was acknowledged is seen by every member or told as lost, nothing is seen
twice or out of order, members hear of a new writer, and the room is usable again after each death.
"""

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from qim_streams.client.room_tracker import Entered, NewEpoch
from qim_streams.placement import room_partition
from qim_streams.settings import load_settings
from tests.chaos.conftest import armed_by, new_seed
from tests.support.processes import is_stopped
from tests.support.room_traffic import RoomTraffic
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

LONG_S = 300.0
FREEZE_S = 4.5  # half as long again as the lease of the test stack


@pytest.fixture(scope="module")
def stack(common_stack: StackProcess) -> StackProcess:
    return common_stack


class OldCheckpoint:
    """The checkpoint of a room's partition as it stood: position in the log, and the room's number."""

    def __init__(self, stack: StackProcess, room_id: str) -> None:
        tenant = stack.address().require_tenant()
        partition = room_partition(tenant, room_id, load_settings().room_partitions)
        self._at, self._room = f"{{rm:{partition}}}:at", f"{{rm:{partition}}}:r:{tenant}:{room_id}"
        self._url = stack.client["redis_url"]
        self.value = self.read()

    def read(self) -> tuple[int, int]:
        """As it stands now."""
        with redis.Redis.from_url(self._url) as client:
            return int(client.get(self._at) or 0), int(client.hget(self._room, "seq") or 0)

    def put_back(self) -> None:
        """As it stood."""
        with redis.Redis.from_url(self._url) as client:
            client.set(self._at, self.value[0])
            client.hset(self._room, "seq", self.value[1])


async def test_the_writer_of_a_room_is_killed(stack: StackProcess, figures: dict[str, Any]) -> None:
    """J4: members hear of it, numbers go on, nothing acknowledged is missing without a word. Its successor
    reads its log again from an older checkpoint: no number is given twice, no message shown twice."""
    async with RoomTraffic(stack) as traffic:
        old = OldCheckpoint(stack, traffic.room_id)
        await traffic.more(20)
        await eventually(lambda: old.read() > old.value, 60, "a newer checkpoint")
        pid = stack.kill("rooms", signal.SIGSTOP)  # nothing is checkpointed any more
        await eventually(lambda: is_stopped(pid), 60, "the writer to stand still")
        old.put_back()
        os.kill(pid, signal.SIGKILL)
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
@pytest.mark.parametrize("action", ["kill", "pause"])
async def test_rooms_live_through_a_strike_at_every_step(
    stack: StackProcess, tmp_path: Path, figures: dict[str, Any], action: str
) -> None:
    """J4: killed, or frozen beyond its lease and woken as a zombie, at each point of a RoomWriter."""
    seed = new_seed()
    chance = random.Random(seed)
    print(f"seed {seed}")
    armed = Path(armed_by(stack.state_dir)["QIM_FAILPOINT_FILE"])
    async with RoomTraffic(stack) as traffic:
        for point in ("seq_assigned", "record_written", "checkpoint_noted", "mark_appended"):
            await traffic.more(10)
            nth = 1 if point == "mark_appended" else chance.randint(1, 5)
            arm(armed, f"rooms.{point}:{nth}:{action}", tmp_path)
            if point == "mark_appended":  # only a start passes it
                stack.kill("rooms")
            spent = tmp_path / f"rooms.{point}.spent"
            await eventually(lambda s=spent: s.exists() and s.read_text(), 60, f"a strike at {point}")
            pid = int(spent.read_text())
            if action == "kill":
                await asyncio.to_thread(stack.wait_restarted, "rooms", pid, 90.0)
            else:
                await eventually(lambda p=pid: is_stopped(p), 60, "the writer to stand still")
                await asyncio.sleep(FREEZE_S)  # what is waited for is that its lease ends
                os.kill(pid, signal.SIGCONT)
            await asyncio.to_thread(armed.unlink)
            await traffic.more(10)
        await asyncio.to_thread(stack.wait_all_ready)
    figures["seed"] = seed
    traffic.check(figures)
    assert action == "pause" or figures["epochs"] >= 4


def arm(armed: Path, points: str, latch: Path) -> None:
    """Arm failpoints in the processes of a running stack."""
    fresh = armed.with_suffix(".new")
    fresh.write_text(f"{points}\n{latch}\n")
    fresh.rename(armed)


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
