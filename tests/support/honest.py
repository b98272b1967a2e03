"""An honest pair of clients beside an attack: one sends, the other receives, nothing may be lost or late.

`Honest` is a context: inside it ann sends to ben at a pace over real sockets; at its end every message is
acknowledged, and ben has each exactly once and in order.
"""

import asyncio
import secrets
import time
from contextlib import AsyncExitStack
from typing import Self

from qim_streams.wire.frames import Ping, Pong
from tests.support.battlefield import Battlefield
from tests.support.waiting import eventually

DONE_S = 60.0
PING_S = 15.0  # ben says nothing else, and who is silent for long is shown out


class Honest:
    """`per_s`: messages a second. `waits_s`: how long each send waited for its SEND_ACK."""

    def __init__(self, field: Battlefield, per_s: float = 40.0) -> None:
        self._field, self._per_s = field, per_s
        self._tenant = f"honest{secrets.token_hex(4)}"
        self._stack = AsyncExitStack()
        self._said: list[bytes] = []
        self._ends = False
        self.waits_s: list[float] = []

    async def __aenter__(self) -> Self:
        field = self._field
        self._ann = await self._stack.enter_async_context(field.wire(self._tenant, "ann"))
        self._ben = await self._stack.enter_async_context(field.wire(self._tenant, "ben"))
        await self._ann.go_online()
        await self._ben.go_online()
        await self._say()
        await self._heard()
        self._talking = asyncio.create_task(self._talk())
        self._pinging = asyncio.create_task(self._ping())
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self._ends = True  # the message that is under way is finished, not given up
        await asyncio.wait([self._talking])
        self._pinging.cancel()
        await asyncio.wait([self._pinging])
        try:
            if kind is None:
                self._talking.result()
                await self._heard()
                assert self.heard() == self._said, "honest messages were lost, doubled or out of order"
        finally:
            await self._stack.aclose()

    @property
    def sent(self) -> int:
        """Messages that were acknowledged."""
        return len(self._said)

    def heard(self) -> list[bytes]:
        """What ben was pushed."""
        return [event.message.body for event in self._ben.pushed()]

    def quantile_ms(self, share: float, since: int = 0) -> float:
        """A quantile of the waits, from the send number `since` on."""
        waits = sorted(self.waits_s[since:])
        return round(waits[int(share * (len(waits) - 1))] * 1_000, 1)

    async def _talk(self) -> None:
        began, count = time.monotonic(), 0
        while not self._ends:
            count += 1
            await asyncio.sleep(max(0.0, began + count / self._per_s - time.monotonic()))
            await self._say()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            await self._ben.request(Ping(self._ben.next_rid()), Pong, DONE_S)

    async def _say(self) -> None:
        body = f"honest {len(self._said)}".encode()
        began = time.monotonic()
        await self._ann.say(f"h{len(self._said)}", body, to="ben")
        self.waits_s.append(time.monotonic() - began)
        self._said.append(body)

    async def _heard(self) -> None:
        def all_of_it() -> bool:
            assert self._ben.is_open, "ben was shown out"
            return len(self.heard()) >= len(self._said)

        await eventually(all_of_it, DONE_S, "ben to hear everything")
