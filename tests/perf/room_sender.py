"""Who speaks in a room that is measured: a process of its own, so that the viewers do not delay it.

    python -m tests.perf.room_sender (started by `tests.perf.rooms`)

The first question is {"url", "token", "room_id"}: it signs on, makes the room and enters it. Each further one
is {"rate", "seconds"}: it says so many messages a second, open loop, and answers {"ack_ms", "refused"}. An
acknowledgement counts from when its frame is handed to the socket.
"""

import asyncio
import time
from contextlib import suppress
from typing import Any

import uvloop

from qim_streams.wire.frames_rooms import CreateRoom, JoinRoom, SendRoom
from tests.perf.beside import answer, questions
from tests.perf.rooms import BODY, PING_S, Device


class Speaker:
    """The device that speaks."""

    def __init__(self, url: str, room_id: str) -> None:
        self._device, self._room_id, self._said = Device(url), room_id, 0

    async def enter(self, token: str) -> None:
        """Sign on, make the room, enter it. MeasurementError."""
        await self._device.sign_on(token, None)
        await self._device.ask(lambda rid: CreateRoom(rid, self._room_id), "ROOM_STATE")
        await self._device.ask(lambda rid: JoinRoom(rid, self._room_id, 0), "JOINED")

    async def ping(self) -> None:
        """Signs of life, for ever."""
        while True:
            await asyncio.sleep(PING_S)
            self._device.say_ping()

    async def talk(self, rate: float, seconds: float) -> dict[str, Any]:
        """Say what is due when it is due."""
        ack_ms: list[float] = []
        refused = 0

        async def say(number: int) -> None:
            nonlocal refused
            began_s = time.monotonic()
            said = await self._device.put(lambda rid: SendRoom(rid, self._room_id, f"m{number}", BODY))
            if said["t"] == "ROOM_ACK":
                ack_ms.append((time.monotonic() - began_s) * 1_000)
            else:
                refused += 1

        began_s, talking = time.monotonic(), []
        for number in range(round(rate * seconds)):
            await asyncio.sleep(max(0.0, began_s + number / rate - time.monotonic()))
            talking.append(asyncio.create_task(say(self._said)))
            self._said += 1
        await asyncio.gather(*talking)
        return {"ack_ms": ack_ms, "refused": refused}


async def _serve() -> None:
    asked = questions()
    first = await anext(asked)
    speaker = Speaker(first["url"], first["room_id"])
    await speaker.enter(first["token"])
    pinging = asyncio.create_task(speaker.ping())
    answer({})
    async for question in asked:
        answer(await speaker.talk(question["rate"], question["seconds"]))
    pinging.cancel()
    with suppress(asyncio.CancelledError):
        await pinging


if __name__ == "__main__":
    uvloop.run(_serve())
