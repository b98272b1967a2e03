"""A WebSocket proxy that knows the frames: it forwards, drops, repeats or holds them as a test says.

It stands between a client and the gateway on loopback. Every frame is decoded (to show it to the rule)
and forwarded as the bytes that came, so nothing is changed by passing through. `blackhole` stops reading
from both sides without closing anything: writes go on succeeding into kernel buffers, as behind a router
that lost power.

Spec: §7. Scenarios A5 A13 C1 C2.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import aiohttp
from aiohttp import web

from qim_streams.limits import SERVER_FRAME_BYTES_MAX
from qim_streams.wire import CODECS, SUBPROTOCOLS
from qim_streams.wire.frames import Frame

DATA = (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)


@dataclass(eq=False)
class Passage:
    """One connection through the proxy. `number` counts from 0."""

    number: int
    to_client: list[Frame] = field(default_factory=list)  # as the server sent them, dropped ones included
    to_server: list[Frame] = field(default_factory=list)


Rule = Callable[[Passage, Frame], int]
"""How often a frame is forwarded: 0 drops it, 2 repeats it. Sees the frame before it is recorded."""


def forward(_: Passage, __: Frame) -> int:
    """The rule that changes nothing."""
    return 1


class FrameProxy:
    """Listens on a free port; `url` is what clients connect to. Rules may be exchanged at any time."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.url = ""
        self.to_client: Rule = forward
        self.to_server: Rule = forward
        self.passages: list[Passage] = []
        self._open = asyncio.Event()
        self._open.set()
        self._sockets: set[web.WebSocketResponse | aiohttp.ClientWebSocketResponse] = set()

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_get("/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        path = self._upstream.partition("://")[2].partition("/")[2]
        self.url = f"ws://127.0.0.1:{port}/{path}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.set()
        await self._http.close()
        await self._runner.cleanup()

    def blackhole(self, dark: bool) -> None:
        """Stop (or go on) moving frames either way, with every connection left open."""
        if dark:
            self._open.clear()
        else:
            self._open.set()

    async def cut(self) -> None:
        """Close every connection now."""
        for socket in list(self._sockets):
            await socket.close()

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        client = web.WebSocketResponse(protocols=SUBPROTOCOLS, max_msg_size=SERVER_FRAME_BYTES_MAX)
        await client.prepare(request)
        codec = CODECS[client.ws_protocol or SUBPROTOCOLS[0]]
        passage = Passage(len(self.passages))
        self.passages.append(passage)
        try:
            server = await self._http.ws_connect(
                self._upstream, protocols=(codec.subprotocol,), max_msg_size=SERVER_FRAME_BYTES_MAX
            )
        except aiohttp.ClientError:
            await client.close(code=1013)
            return client
        ends = {client, server}
        self._sockets |= ends

        def to_client(data: bytes) -> int:
            frame = codec.decode_server(data)
            times = self.to_client(passage, frame)
            passage.to_client.append(frame)
            return times

        def to_server(data: bytes) -> int:
            frame = codec.decode_client(data, SERVER_FRAME_BYTES_MAX)
            times = self.to_server(passage, frame)
            passage.to_server.append(frame)
            return times

        pumps = [
            asyncio.create_task(self._pump(server, client, to_client)),
            asyncio.create_task(self._pump(client, server, to_server)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            self._sockets -= ends
            code = server.close_code if server.closed else None
            await server.close()
            await client.close(code=code if code and 3000 <= code < 5000 else 1000)
        for pump in pumps:
            if not pump.cancelled() and pump.exception() is not None:
                raise pump.exception()  # type: ignore[misc]
        return client

    async def _pump(
        self,
        source: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
        sink: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
        judge: Callable[[bytes], int],
    ) -> None:
        while True:
            await self._open.wait()
            message = await source.receive()
            if message.type not in DATA:
                return
            await self._open.wait()
            data = message.data
            raw = data if isinstance(data, bytes) else data.encode()
            for _ in range(judge(raw)):
                try:
                    if isinstance(data, bytes):
                        await sink.send_bytes(data)
                    else:
                        await sink.send_str(data)
                except (ConnectionError, aiohttp.ClientError):
                    return
