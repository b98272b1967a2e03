"""A WebSocket client that costs little: one asyncio protocol, no task, no future per message.

What is sent in a turn of the event loop is written once (`flush`). Frames are masked with the key 0,
which RFC 6455 cannot forbid a server to accept: masking then changes no byte, and the server unmasks as
usual. Messages of a server come in one frame each; a fragmented one ends the connection with an error,
as does anything else that is not understood.

Invariants: `on_message` is called in order of arrival; `on_lost` once, when the connection is over.

Spec: §6.
"""

import asyncio
import base64
import hashlib
import os
import struct
from collections.abc import Callable
from urllib.parse import urlsplit

from qim_streams.errors import ProtocolError
from qim_streams.limits import SERVER_FRAME_BYTES_MAX

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10
_HEAD_16, _HEAD_64 = struct.Struct(">BBHI").pack, struct.Struct(">BBQI").pack
_HEAD_7 = struct.Struct(">BBI").pack
HANDSHAKE_BYTES_MAX = 16_384


def header(opcode: int, size: int) -> bytes:
    """Header of a final client frame, the masking key 0 included."""
    if size < 126:
        return _HEAD_7(0x80 | opcode, 0x80 | size, 0)
    if size < 65_536:
        return _HEAD_16(0x80 | opcode, 0x80 | 126, size, 0)
    return _HEAD_64(0x80 | opcode, 0x80 | 127, size, 0)


class LeanSocket(asyncio.Protocol):
    """One connection. `on_message(payload)`, `on_lost(close code or None)` come from the event loop."""

    def __init__(
        self,
        url: str,
        subprotocol: str,
        binary: bool,
        on_message: Callable[[bytes], None],
        on_lost: Callable[[int | None], None],
    ) -> None:
        self._url, self._subprotocol = urlsplit(url), subprotocol
        self._opcode = _BINARY if binary else _TEXT
        self._on_message, self._on_lost = on_message, on_lost
        self._key = base64.b64encode(os.urandom(16))
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._out: list[bytes] = []
        self._is_open = False
        self._close_code: int | None = None
        self.retry_after_ms: int | None = None  # what a server that let nobody in asked for

    # -- for the owner

    async def open(self, timeout_s: float) -> None:
        """Connect; OSError, TimeoutError or ProtocolError when that fails."""
        loop, url = asyncio.get_running_loop(), self._url
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: self, url.hostname or "127.0.0.1", url.port or 80)
                await self._opened
        except BaseException:
            self._fail()  # an answer that comes later finds nobody
            raise

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent."""
        return self._is_open

    def put(self, payload: bytes) -> None:
        """Queue a message for the next `flush`."""
        self._out += (header(self._opcode, len(payload)), payload)

    def flush(self) -> None:
        """Write what is queued."""
        out, self._out = self._out, []
        if out and self._is_open and self._transport is not None:
            self._transport.write(b"".join(out))

    def close(self) -> None:
        """Close now; `on_lost` follows."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(header(_CLOSE, 0))
            self._transport.close()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP connection stands: ask for the upgrade."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's class is no subclass
        url = self._url
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {url.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {self._key.decode()}",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Protocol: {self._subprotocol}",
        )
        assert self._transport is not None
        self._transport.write("\r\n".join((*lines, "", "")).encode())

    def data_received(self, data: bytes) -> None:
        """Bytes came: hand on every complete message."""
        if self._rest:
            data = self._rest + data
        if not self._is_open:
            data = self._shake(data)
            if not self._is_open:
                self._rest = data
                return
        try:
            self._rest = self._take(data)
        except ProtocolError:
            self._fail()
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._is_open = False
        if not self._opened.done():
            self._opened.set_exception(exc or ConnectionResetError("closed during the handshake"))
        self._on_lost(self._close_code)

    # -- inside

    def _shake(self, data: bytes) -> bytes:
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            if len(data) > HANDSHAKE_BYTES_MAX:
                self._refuse("an endless answer")
            return data
        accept = base64.b64encode(hashlib.sha1(self._key + _GUID, usedforsecurity=False).digest())
        status, _, fields = head.partition(b"\r\n")
        if b" 101 " not in status + b" " or accept not in fields:
            self.retry_after_ms = _retry_after_ms(fields)
            self._refuse(status.decode(errors="replace"))
            return b""
        if self._opened.done():  # given up while this was being read
            self._fail()
            return b""
        self._is_open = True
        self._opened.set_result(None)
        return rest

    def _refuse(self, detail: str) -> None:
        if not self._opened.done():
            self._opened.set_exception(ProtocolError("BAD_FRAME", f"no WebSocket at this address: {detail}"))
        self._fail()

    def _fail(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _take(self, data: bytes) -> bytes:
        """Hand on the complete messages of `data`; what is left."""
        at, end = 0, len(data)
        while end - at >= 2:
            first, size = data[at], data[at + 1]
            start = at + 2
            if size >= 126:
                width = 2 if size == 126 else 8
                start += width
                if end < start:
                    break
                size = int.from_bytes(data[start - width : start], "big")
                if size > SERVER_FRAME_BYTES_MAX:
                    raise ProtocolError("FRAME_TOO_LARGE", f"a frame of {size} bytes")
            stop = start + size
            if stop > end:
                break
            if first == 0x82 or first == 0x81:
                self._on_message(data[start:stop])
            else:
                self._control(first, data[start:stop])
            at = stop
        return data[at:] if at else data

    def _control(self, first: int, payload: bytes) -> None:
        if first == 0x80 | _PING:
            assert self._transport is not None
            self._transport.write(header(_PONG, len(payload)) + payload)
        elif first == 0x80 | _CLOSE:
            self._close_code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else None
            self.close()
        elif first != 0x80 | _PONG:
            raise ProtocolError("BAD_FRAME", f"a WebSocket frame with first byte {first:#x}")


def _retry_after_ms(fields: bytes) -> int | None:
    """The header Retry-After in seconds; None without one."""
    for line in fields.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"retry-after" and value.strip().isdigit():
            return int(value) * 1_000
    return None
