"""A WebSocket whose bytes a test writes itself, to a gateway that runs somewhere.

Only what is needed to be rude: a handshake, frames with any header, one close or error at the end.
"""

import asyncio
import contextlib
import struct
from dataclasses import dataclass
from typing import Final

KEY: Final = "AAAAAAAAAAAAAAAAAAAAAA=="
END_S: Final = 60.0


def upgrade(subprotocol: str = "qim.v1+msgpack", *more: str) -> bytes:
    """The handshake of a client; `more`: further header lines."""
    lines = (
        "GET /ws HTTP/1.1",
        "Host: x",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {KEY}",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: {subprotocol}",
        *more,
    )
    return "\r\n".join((*lines, "", "")).encode()


def header(size: int, opcode: int = 2, *, fin: bool = True, rsv: int = 0) -> bytes:
    """The head of a client's frame that announces `size` bytes, and a mask that changes nothing."""
    first = bytes([(0x80 if fin else 0) | rsv | opcode])
    if size < 126:
        return first + bytes([0x80 | size]) + bytes(4)
    if size < 65_536:
        return first + bytes([0x80 | 126]) + struct.pack(">H", size) + bytes(4)
    return first + bytes([0x80 | 127]) + struct.pack(">Q", size) + bytes(4)


def masked(payload: bytes, opcode: int = 2, *, fin: bool = True, rsv: int = 0) -> bytes:
    """A frame of a client."""
    return header(len(payload), opcode, fin=fin, rsv=rsv) + payload


@dataclass(slots=True)
class Ending:
    """How a connection ended: the close code (0: none came), the HTTP status (0: it was a WebSocket)."""

    close_code: int = 0
    status: int = 0
    frames: tuple[bytes, ...] = ()


async def provoke(port: int, *parts: bytes, hello: bytes | None = None, host: str = "127.0.0.1") -> Ending:
    """Connect, send `hello` (a handshake by default), then the parts, and read to the end.

    AssertionError when the server has not ended the connection within `END_S`.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(END_S):
            writer.write(upgrade() if hello is None else hello)
            sending = asyncio.ensure_future(_send(writer, parts))
            ending = await _read(reader)
            sending.cancel()
            await asyncio.wait([sending])
            return ending
    except TimeoutError:
        raise AssertionError(f"a connection was still open after {END_S} s") from None
    finally:
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, parts: tuple[bytes, ...]) -> None:
    with contextlib.suppress(ConnectionError):  # it was ended meanwhile, which is what is asked for
        for part in parts:
            writer.write(part)
            await writer.drain()


async def _read(reader: asyncio.StreamReader) -> Ending:
    ending, frames = Ending(), list[bytes]()
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status != 101:
            await reader.read()
            return Ending(0, status)
        while True:
            opcode, payload = await _frame(reader)
            if opcode == 8:  # rude: the server's close is not answered
                ending.close_code = int.from_bytes(payload[:2], "big")
                break
            if opcode in (1, 2):
                frames.append(payload)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the end; what the server did not read makes the kernel say it its own way
    ending.frames = tuple(frames)
    return ending


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readexactly(2)
    size = head[1]
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    elif size == 127:
        size = int.from_bytes(await reader.readexactly(8), "big")
    return head[0] & 0x0F, await reader.readexactly(size)
