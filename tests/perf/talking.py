"""People who say something before a measurement: sent through the gateway, every message acknowledged.

`Talk` is the `Owner` of load generator devices. What was said is kept by conversation and conversation_seq,
so that whoever reads later can be held against it. A refusal ends the measurement: nothing is repeated under
another name.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from qim_streams.client.discovery import StackAddress
from qim_streams.loadgen import message
from qim_streams.loadgen.device import Device, Pending
from qim_streams.loadgen.frames import DRIVERS
from qim_streams.loadgen.plan import user_id
from tests.perf.processes import MeasurementError

ENCODING = "msgpack"
WINDOW = 48  # unanswered sends of a device
STEP_S = 0.01
PATIENCE_S = 90.0  # without any progress


class Talk:
    """See the module. `run` is what the bodies carry; users are numbers, their names have the `tag`."""

    def __init__(self, address: StackAddress, tag: str, run: int, body: int) -> None:
        self.driver, self.url, self.run = DRIVERS[ENCODING], address.require_url(), run
        self.clock_ns: Callable[[], int] = time.monotonic_ns
        self.said: dict[str, dict[int, int]] = defaultdict(dict)  # conversation -> seq -> message key
        self.noted: Counter[str] = Counter()
        self.progress = 0
        self._address, self._tag, self._body = address, tag, body
        self._devices: dict[int, Device] = {}
        self._number = 0
        self._open: dict[int, str] = {}  # number of a message without an answer -> its conversation

    # -- what devices report

    def client_message_id(self, number: int) -> bytes:
        """See `Owner`."""
        return b"%08x-%x" % (self.run, number)

    def token(self, user: int) -> str:
        """See `Owner`."""
        return self._address.token(user_id(self._tag, user))

    def acked(self, device: Device, number: int, pending: Pending, seq: int, now_ns: int) -> None:
        """See `Owner`."""
        name = self._open.pop(number)
        self.progress += 1
        if seq in self.said[name]:
            raise MeasurementError(f"{name}: conversation_seq {seq} was given out twice")
        self.said[name][seq] = message.message_key(0, number)

    def refused(self, device: Device, number: int, pending: Pending, code: int) -> None:
        """See `Owner`."""
        raise MeasurementError(f"a message before the measurement was refused with {code}")

    def event(self, device: Device, event: dict[str, Any], now_ns: int, fresh: bool, live: bool) -> None:
        """See `Owner`."""
        self.progress += 1

    def note(self, what: str) -> None:
        """See `Owner`."""
        self.noted[what] += 1

    # -- what is asked for

    async def sign_on(self, user: int) -> Device:
        """A device of a user, online."""
        device = self._devices[user] = Device(self, user, user_id(self._tag, user))
        await device.connect()
        return device

    def device(self, user: int) -> Device:
        """The device of a user who signed on."""
        return self._devices[user]

    async def say(self, user: int, conversation_id: str, to_user: int | None = None) -> None:
        """Send a message; waits while the user has too many without an answer. `to_user`: a direct chat."""
        device = self._devices[user]
        if len(device.pending) >= WINDOW:
            await self.until(lambda: len(device.pending) < WINDOW, "acks")
        number = self._number
        self._number += 1
        self._open[number] = conversation_id
        now_ns = self.clock_ns()
        body = message.body(self.run, 0, number, now_ns, self._body)
        direct = to_user is not None
        target = self.driver.target_of(
            None if direct else conversation_id, user_id(self._tag, to_user) if to_user is not None else None
        )
        device.send(number, Pending(now_ns, 0, target, body))
        device.flush()

    async def all_acked(self) -> None:
        """Wait until every message has its ack."""
        await self.until(lambda: not self._open, "acks")

    async def until(self, reached: Callable[[], bool], what: str) -> None:
        """Wait for something; MeasurementError when nothing moves any more."""
        seen, still_s = self.progress, time.monotonic()
        while not reached():
            await asyncio.sleep(STEP_S)
            if self.progress != seen:
                seen, still_s = self.progress, time.monotonic()
            elif time.monotonic() - still_s > PATIENCE_S:
                raise MeasurementError(f"waiting for {what}: nothing came for {PATIENCE_S:.0f} s")

    async def leave(self, user: int) -> None:
        """A device goes."""
        await self._devices.pop(user).close()

    async def close(self) -> None:
        """All devices go."""
        await asyncio.gather(*(self.leave(user) for user in list(self._devices)))
