"""Making groups through the client protocol: created by their first online member, filled in batches."""

import asyncio
from collections.abc import Callable
from typing import Any

from qim_streams.errors import ConfigError
from qim_streams.limits import GROUP_MEMBERS_PER_CHANGE_MAX
from qim_streams.loadgen.device import Device
from qim_streams.loadgen.plan import Plan
from qim_streams.wire.frames import Error
from qim_streams.wire.frames_group import GroupAdd, GroupCreate, GroupState

TRIES = 30


async def make_group(device: Device, plan: Plan, number: int, say: Callable[[dict[str, Any]], None]) -> None:
    """Make group `number` of the plan with all its members; ConfigError names what the server refuses."""
    conversation = plan.conversations[number]
    name = conversation.conversation_id
    others = [plan.user_id(user) for user in conversation.members if user != device.user]
    batches = batches_of(others, GROUP_MEMBERS_PER_CHANGE_MAX)
    await _settled(device, lambda rid: GroupCreate(rid, batches[0], name), len(others))
    for at, batch in enumerate(batches[1:], 1):
        await _settled(device, lambda rid, batch=batch: GroupAdd(rid, name, batch), len(others))
        say({"members": min(len(others), (at + 1) * GROUP_MEMBERS_PER_CHANGE_MAX), "of": len(others)})


async def _settled(device: Device, make: Any, members: int) -> None:
    for _ in range(TRIES):
        try:
            answer = await device.call(make)
        except (OSError, TimeoutError):
            await asyncio.sleep(0.5)  # the device signs on again by itself; a change may be repeated
            continue
        if isinstance(answer, GroupState) or (isinstance(answer, Error) and _was_done(answer)):
            return
        assert isinstance(answer, Error), answer
        if answer.name == "GROUP_TOO_LARGE":
            raise ConfigError(
                f"the stack refuses a group of {members + 1}: "
                f"start it with QIM_GROUP_MEMBERS_MAX={members + 1}"
            )
        if not answer.temporary:
            raise ConfigError(f"the stack refuses a group: {answer.name}: {answer.detail}")
        await asyncio.sleep((answer.retry_after_ms or 200) / 1_000)
    raise ConfigError(f"a group of {members + 1} could not be made in {TRIES} tries; see the writer's log")


def _was_done(answer: Error) -> bool:
    """A repeat of a creation whose first answer was lost."""
    return answer.name == "CONVERSATION_EXISTS"


def batches_of(members: list[str], size: int) -> list[list[str]]:
    """`members` in pieces of at most `size`."""
    return [members[at : at + size] for at in range(0, len(members), size)]
