"""A gateway dies: who came back is online all the time, who did not is offline once his note has run out.

Killed as it stands, and at the two points at which it has told one of the two books and not the other. What
people see of each other must not outlive the devices, and must not flicker for those who are there.

Spec: §6. Scenario G7.
"""

import asyncio
import itertools
import secrets
import time
from pathlib import Path

import pytest

from qim_streams.client import ClientOptions, QimClient
from qim_streams.presence.book import REFRESHES_MISSED
from qim_streams.wire.frames_presence import UserPresence
from tests.chaos.conftest import armed_by
from tests.support.stack import FAST, StackProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(400)]

WITHIN_S = 90.0
NOTE_S = float(FAST["QIM_PRESENCE_REFRESH_S"]) * REFRESHES_MISSED  # how long a note of presence holds
QUICK = ClientOptions(answer_ms=3_000, backoff_base_ms=50, backoff_cap_ms=500, follow_endpoint=False)


@pytest.mark.parametrize("point", ["", "gateway.presence_noted", "gateway.presence_appended"])
async def test_a_gateway_that_dies_takes_its_devices_with_it(
    common_stack: StackProcess, tmp_path: Path, point: str
) -> None:
    """Ann watches ben, whose device does not come back, and cleo, whose device does."""
    address, run = common_stack.address(), secrets.token_hex(4)
    url = address.require_url()
    ann, ben, cleo, dee = (f"{run}-{name}" for name in ("ann", "ben", "cleo", "dee"))
    told: list[UserPresence] = []

    def client(user: str) -> QimClient:
        return QimClient(url, address.token(user), "phone", options=QUICK)

    async with client(ann) as watcher, client(cleo), WireClient(url, address.token(ben), "phone") as device:
        auth = await device.auth()
        await device.sync_complete(auth.sync_to_seq)
        for user in (ben, cleo):
            place = (await watcher.send(b"hello", to_user_id=user)).conversation_id
            await watcher.presence.watch(place, [user])
        states = watcher.presence.states
        await eventually(lambda: states[ben].online and states[cleo].online, WITHIN_S, "both online")
        watcher.presence.on_change = told.extend
        began_s = time.monotonic()
        old = await asyncio.to_thread(die, common_stack, tmp_path, point)
        # Who signs on makes the gateway tell its books, at which it dies.
        for number in itertools.count() if point else ():
            if (tmp_path / f"{point}.spent").exists():
                break
            await come_and_go(url, address.token(f"{dee}{number}"))
        await asyncio.to_thread(common_stack.wait_restarted, "gateway", old, WITHIN_S)
        in_time = time.monotonic() - began_s < NOTE_S / 2
        await asyncio.to_thread(armed_file(common_stack).unlink, missing_ok=True)
        await eventually(lambda: not states[ben].online, WITHIN_S, "ben to be offline")
        assert states[ben].last_seen_ms is not None
        await eventually(lambda: states[cleo].online, WITHIN_S, "cleo to be online")
        if in_time:  # else her note has run out as well, before she could come back
            assert not [one for one in told if one.user_id == cleo and not one.online], "she was there"
        async with client(ben):
            await eventually(lambda: states[ben].online, WITHIN_S, "ben to be back")


def armed_file(stack: StackProcess) -> Path:
    """What arms failpoints in the stack's processes."""
    return Path(armed_by(stack.state_dir)["QIM_FAILPOINT_FILE"])


def die(stack: StackProcess, latch: Path, point: str) -> int:
    """Kill the gateway, or arm the point at which it kills itself; its process."""
    if not point:
        return stack.kill("gateway")
    armed = armed_file(stack)
    fresh = armed.with_suffix(".new")
    fresh.write_text(f"{point}:1:kill\n{latch}\n")
    fresh.rename(armed)
    pid = stack.role("gateway").pid
    assert pid is not None
    return pid


async def come_and_go(url: str, token: str) -> None:
    """A device that signs on, as far as it gets."""
    client = QimClient(url, token, "phone", options=QUICK)
    try:
        await client.connect(3.0)
    except TimeoutError:
        pass  # the gateway has died
    finally:
        await client.close()
