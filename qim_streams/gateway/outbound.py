"""What waits to be written to one socket, and the corks that write it once per turn of the event loop.

Frames of a turn are joined and written in one system call. A socket whose transport still holds more
than `TRANSPORT_BYTES_MAX` unsent bytes is not written to; its queue grows until the owner stops adding to
it (`is_full`), and goes on once the transport was drained.

WebSocket headers are made here, because the server side of a data frame is a few constant bytes: frames
of a server are not masked and nothing is compressed.

Invariants: order is kept; nothing is written after `close`; `size` counts every byte that is not in the
kernel yet.

Spec: reliability of §6 (a slow reader costs itself).
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

TRANSPORT_BYTES_MAX: Final = 64 * 1024
_RECHECK_S: Final = 0.02
OPCODE_TEXT: Final = 0x81  # with the FIN bit
OPCODE_BINARY: Final = 0x82
_HEADER_16 = struct.Struct(">BBH").pack
_HEADER_64 = struct.Struct(">BBQ").pack


class Transport(Protocol):
    """What is needed of an asyncio transport."""

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport."""

    def get_write_buffer_size(self) -> int:
        """Bytes that the transport holds."""

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""


class Cork:
    """Flushes every queue that was added to, once per turn of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._dirty: list[Outbound] = []

    def add(self, outbound: "Outbound") -> None:
        """Flush `outbound` at the end of this turn."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(outbound)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for outbound in dirty:
            outbound.flush()


class Outbound:
    """The queue of one socket. `drain` waits until the transport has room again."""

    __slots__ = (
        "_bytes",
        "_closed",
        "_cork",
        "_corked",
        "_drain",
        "_opcode",
        "_parts",
        "_room",
        "_stalled",
        "_transport",
        "bytes_max",
        "stalled_at",
    )

    def __init__(
        self,
        transport: Transport,
        drain: Callable[[], Awaitable[object]],
        cork: Cork,
        *,
        binary: bool,
        bytes_max: int,
    ) -> None:
        self._transport, self._drain, self._cork = transport, drain, cork
        self._opcode = OPCODE_BINARY if binary else OPCODE_TEXT
        self.bytes_max = bytes_max
        self.stalled_at: float | None = None  # loop time since when nothing could be written
        self._parts: list[bytes] = []
        self._bytes = 0
        self._corked = self._closed = False
        self._stalled: asyncio.Task[None] | None = None
        self._room: asyncio.Event | None = None

    @property
    def size(self) -> int:
        """Bytes that wait, those in the transport included."""
        return self._bytes + (0 if self._closed else self._transport.get_write_buffer_size())

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be added than answers that are owed."""
        return self.size >= self.bytes_max

    def put(self, payload: bytes) -> None:
        """Queue a frame."""
        if self._closed:
            return
        size = len(payload)
        self._parts += (
            _HEADER_16(self._opcode, 126, size) if 126 <= size < 65_536 else _header(self._opcode, size),
            payload,
        )
        self._bytes += size + 10
        if not self._corked:
            self._corked = True
            self._cork.add(self)

    def flush(self) -> None:
        """Write what waits, if the transport takes it."""
        self._corked = False
        if not self._parts or self._closed or self._stalled is not None:
            return
        transport = self._transport
        if transport.is_closing():
            self.close()
            return
        if transport.get_write_buffer_size() > TRANSPORT_BYTES_MAX:
            self._stall()
            return
        parts, self._parts, self._bytes = self._parts, [], 0
        self.stalled_at = None
        transport.write(b"".join(parts))
        if self._room is not None and not self.is_full:
            self._room.set()

    async def room(self) -> None:
        """Return once the queue is no longer full, or closed."""
        while not self._closed:
            self.flush()
            if self.size < self.bytes_max:
                return
            self._room = self._room or asyncio.Event()
            self._room.clear()
            if self._stalled is None:
                self._stall()
            await self._room.wait()

    def close(self) -> None:
        """Drop what waits; nothing is written any more. Safe to repeat."""
        self._closed = True
        self._parts, self._bytes = [], 0
        if self._room is not None:
            self._room.set()
        if self._stalled is not None:
            self._stalled.cancel()

    def _stall(self) -> None:
        loop = asyncio.get_running_loop()
        self.stalled_at = self.stalled_at or loop.time()
        self._stalled = loop.create_task(self._unstall())

    async def _unstall(self) -> None:
        try:
            await self._drain()
            if self._transport.get_write_buffer_size() > TRANSPORT_BYTES_MAX:
                await asyncio.sleep(_RECHECK_S)  # the transport resumes earlier than we do
        except (ConnectionError, OSError):
            self.close()  # the peer is gone; the reader of the socket ends the session
        finally:
            self._stalled = None
        self.flush()
        if self._room is not None:
            self._room.set()


def _header(opcode: int, size: int) -> bytes:
    if size < 126:
        return bytes((opcode, size))
    if size < 65_536:
        return _HEADER_16(opcode, 126, size)
    return _HEADER_64(opcode, 127, size)
