"""Taking a user's data out: his messages are recalled, his devices forgotten, his memberships ended.

A recall goes the way of every recall: hot tier, archive and every member's device have an empty shell of the
message afterwards, under its number. It is sent with a device that no client can have, for which the writer
knows no window.

Invariants: every step may be repeated; what could not be done is counted and named, never passed over.

What stays: see ``docs/backup.md``.

Spec: §8.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from qim_streams.commit.outcome import SendRequest, SendStatus
from qim_streams.errors import AdmissionRefused
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.notification.records import PushSettings
from qim_streams.operations.rules import OPERATORS_DEVICE
from qim_streams.personal.collecting import Collector, Whose
from qim_streams.personal.ports import Devices, Push, Writers
from qim_streams.records import KIND_MESSAGE, KIND_RECALL, STATE_RECALLED

SEND_S: Final = 30.0
TRIES: Final = 200
PAUSE_S: Final = 0.05


@dataclass(slots=True)
class Erased:
    """What was done, and what could not be."""

    messages: int = 0
    conversations: int = 0
    devices: int = 0
    push_devices: int = 0
    kept: list[str] = field(default_factory=list)


class Eraser:
    """`sleep` waits between tries."""

    def __init__(
        self,
        collector: Collector,
        writers: Writers,
        devices: Devices,
        push: Push,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._collector, self._writers, self._devices, self._push = collector, writers, devices, push
        self._sleep = sleep

    async def run(self, whose: Whose) -> Erased:
        """Everything; StoreError: repeat, what is done is done."""
        tenant, user, _ = whose.user
        done = Erased()
        views = [view async for view in self._collector.conversations(whose)]
        for view in views:
            await self._recall_all(whose, view.conversation_id, done)
            if view.kind == "group" and view.member is not None and view.member.active:
                await self._leave(whose, view.conversation_id, done)
        for device in await self._push.devices(tenant, user):
            await self._push.unregister(tenant, user, device.device_id)
            done.push_devices += 1
        if await self._push.settings(tenant, user) != PushSettings(tenant, user):
            await self._push.change_settings(PushSettings(tenant, user))
        done.devices = await self._devices.forget(tenant, user)
        return done

    async def _recall_all(self, whose: Whose, conversation_id: str, done: Erased) -> None:
        refused: dict[str, int] = {}
        async for message in self._collector.messages(whose, conversation_id):
            if message["kind"] != KIND_MESSAGE or message["state"] == STATE_RECALLED:
                continue
            code = await self._recall(whose, conversation_id, int(message["conversation_seq"]))
            if code:
                refused[code] = refused.get(code, 0) + 1
            else:
                done.messages += 1
        done.kept += [f"{conversation_id}: {count} messages ({code})" for code, count in refused.items()]

    async def _recall(self, whose: Whose, conversation_id: str, seq: int) -> str:
        """Empty when it is recalled, else why not."""
        tenant, user, ordinal = whose.user
        request = SendRequest(
            tenant, conversation_id, user, ordinal, OPERATORS_DEVICE, f"erase.{seq}", b"",
            kind=KIND_RECALL, target_seq=seq,
        )  # fmt: skip
        code = ""
        for _ in range(TRIES):
            outcome = await self._writers.send(request, SEND_S)
            if outcome.status is SendStatus.COMMITTED:
                return ""
            code = outcome.code
            if outcome.status is SendStatus.REFUSED and outcome.retry_after_ms is None:
                break
            await self._sleep(max(PAUSE_S, (outcome.retry_after_ms or 0) / 1_000))
        return code or "OUTCOME_UNKNOWN"

    async def _leave(self, whose: Whose, conversation_id: str, done: Erased) -> None:
        tenant, user, _ = whose.user
        command = GroupCommand(GroupOp.REMOVE, tenant, None, conversation_id, user_ids=(user,))
        try:
            await self._writers.group(command, SEND_S)
            done.conversations += 1
        except AdmissionRefused as error:
            done.kept.append(f"{conversation_id}: membership ({error.code})")
