"""One socket: frames of a session out, frames of the server in, and the session's clock.

Invariants: `run` returns when the socket ends, when the session wants it closed, when a write fails or
when `end` is called, and leaves no task or timer behind; the socket is not read while `room` waits, so
a slow application slows its server down instead of filling memory. It knows no frame.

Spec: §6, §7.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp

from qim_streams.client.session import Session
from qim_streams.errors import ProtocolError
from qim_streams.wire.answers import error
from qim_streams.wire.codec import Codec
from qim_streams.wire.codes import BY_CODE, WS_CLOSE_BASE

_DATA = (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)


def monotonic_ms() -> int:
    """The clock of sessions."""
    return time.monotonic_ns() // 1_000_000


class Link:
    """Joins a session and a connected socket. `received` is called after each frame and tick;
    `room` is awaited before each read when it is not None."""

    def __init__(
        self,
        session: Session,
        codec: Codec,
        socket: aiohttp.ClientWebSocketResponse,
        received: Callable[[], None],
        room: Callable[[], Awaitable[None] | None],
        tick_s: float,
    ) -> None:
        self._session, self._codec, self._socket = session, codec, socket
        self._received, self._room, self._tick_s = received, room, tick_s
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._scope = asyncio.timeout(None)
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None  # of a tick

    def wake(self) -> None:
        """Frames are queued in the session: write them."""
        self._wake.set()

    def end(self) -> None:
        """Make `run` return soon. Safe to repeat."""
        if not self._over:
            self._over = True
            self._scope.reschedule(self._loop.time())

    async def run(self) -> None:
        """Move frames until the connection ends; the socket is closed afterwards.

        ProtocolError when the server breaks the protocol; OSError and aiohttp's errors of the socket.
        """
        writer = asyncio.create_task(self._write())
        writer.add_done_callback(lambda _: self.end())
        try:
            async with self._scope:
                self._tick()
                await self._read()
                self._over = True
        except TimeoutError:
            if not self._over:
                raise
        finally:
            self._over = True
            if self._timer is not None:
                self._timer.cancel()
            writer.cancel()
            await asyncio.wait([writer])
            await self._socket.close()
            self._take_close_code()
        failure = self._failure or (None if writer.cancelled() else writer.exception())
        if failure is not None:
            raise failure

    async def _read(self) -> None:
        session, decode = self._session, self._codec.decode_server
        async for message in self._socket:
            if message.type not in _DATA:
                raise ProtocolError("BAD_FRAME", f"a WebSocket message of type {message.type.name}")
            data = message.data
            session.receive(decode(data if type(data) is bytes else data.encode()), monotonic_ms())
            if not self._after():
                return
            wait = self._room()
            if wait is not None:
                await wait

    def _after(self) -> bool:
        """Hand on what the session has; False when the connection should end."""
        self._received()
        if self._session.frames:
            self._wake.set()
        return self._session.broken is None and self._session.ended is None

    async def _write(self) -> None:
        session, encode = self._session, self._codec.encode
        send = self._socket.send_bytes if self._codec.binary else self._send_text
        while True:
            await self._wake.wait()
            self._wake.clear()
            frames, session.frames = session.frames, []
            for frame in frames:
                await send(encode(frame))

    async def _send_text(self, data: bytes) -> None:
        await self._socket.send_str(data.decode())

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        try:
            self._session.tick(monotonic_ms())
            if not self._after():
                self.end()
        except Exception as failure:  # noqa: BLE001 - a timer has no caller: `run` raises it
            self._failure = failure
            self.end()

    def _take_close_code(self) -> None:
        """The close code repeats the last ERROR: it counts when that frame was lost."""
        session, code = self._session, self._socket.close_code
        row = BY_CODE.get(code - WS_CLOSE_BASE) if code else None
        if row is not None and not row.temporary and session.ended is None and session.broken is None:
            session.ended = error(row.name, row.meaning)
