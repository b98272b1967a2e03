"""A user who sends any map as a frame, and keeps every byte that he is sent."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self

import aiohttp
import msgpack

from qim_streams.wire import CODECS
from qim_streams.wire.frames import Auth, AuthOk, Error, Ping, Pong, ServerFrame
from tests.support.battlefield import Battlefield

ANSWER_S = 60.0
AT_ONCE = 16  # unanswered frames; a socket may have more


class RawUser:
    """One socket, signed on. `heard`: all that came, as bytes."""

    def __init__(
        self,
        field: Battlefield,
        tenant: str,
        user: str,
        subprotocol: str = "qim.v1+msgpack",
        device: str = "phone",
    ) -> None:
        self._field, self._who, self._device = field, (tenant, user), device
        self._codec = CODECS[subprotocol]
        self.heard: list[bytes] = []
        self._rid = 0

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession()
        url = self._field.client["gateway_url"]
        self._socket = await self._http.ws_connect(
            url, protocols=[self._codec.subprotocol], max_msg_size=2**22
        )
        await self._write(self._codec.encode(Auth(1, self._field.token(*self._who), self._device)))
        assert type(await self._next()) is AuthOk
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    def plain(self, frame: Any) -> dict[str, Any]:
        """The map of a frame, to be changed."""
        data = self._codec.encode(frame)
        found = msgpack.unpackb(data) if self._codec.binary else json.loads(data)
        return dict(found)

    async def ask(self, maps: Sequence[dict[str, Any]]) -> list[ServerFrame]:
        """Send frames, some at a time, and the answer to each; frames that answer nobody are heard only."""
        answers: list[ServerFrame] = []
        for start in range(0, len(maps), AT_ONCE):
            answers += await self._ask(maps[start : start + AT_ONCE])
        return answers

    async def _ask(self, maps: Sequence[dict[str, Any]]) -> list[ServerFrame]:
        wanted: dict[int, ServerFrame | None] = {}
        for one in maps:
            self._rid += 1
            wanted[self._rid] = None
            given = {**one, "rid": self._rid}
            await self._write(
                msgpack.packb(given) if self._codec.binary else json.dumps(given).encode()  # type: ignore[arg-type]
            )
        self._rid += 1
        await self._write(self._codec.encode(Ping(self._rid)))
        # Nobody answers TYPING: after the PONG what is still missing was answered by nothing at all.
        silent = {rid for rid, one in zip(wanted, maps, strict=True) if one.get("t") == "TYPING"}
        ponged = False
        while not ponged or any(wanted[rid] is None for rid in wanted if rid not in silent):
            frame = await self._next()
            rid = getattr(frame, "rid", None)
            if isinstance(frame, Pong) and rid == self._rid:
                ponged = True
            elif rid in wanted:
                wanted[rid] = frame
        return [answer for answer in wanted.values() if answer is not None]

    async def _write(self, data: bytes) -> None:
        if self._codec.binary:
            await self._socket.send_bytes(data)
        else:
            await self._socket.send_frame(data, aiohttp.WSMsgType.TEXT)

    async def _next(self) -> ServerFrame:
        message = await self._socket.receive(ANSWER_S)
        if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            raise AssertionError(f"the session was ended: {self._socket.close_code}, after {self.heard[-3:]}")
        data = message.data if isinstance(message.data, bytes) else message.data.encode()
        self.heard.append(data)
        return self._codec.decode_server(data)

    async def rest(self, seconds: float) -> None:
        """Hear what comes by itself."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._next()
        except TimeoutError:
            return

    def was_shown(self, mark: str) -> bool:
        """Whether any byte that came has the mark, as it is or as JSON shows bytes."""
        from qim_streams.wire.kinds import to_base64url

        forms = {
            mark.encode(),
            *(to_base64url(b" " * at + mark.encode())[at + (at > 0) : -2].encode() for at in range(3)),
        }
        return any(form in data for data in self.heard for form in forms)


def refusals(answers: Sequence[ServerFrame]) -> set[str]:
    """The names of the errors among answers."""
    return {one.name for one in answers if isinstance(one, Error)}
