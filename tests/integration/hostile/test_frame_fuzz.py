"""Frames that are almost right, on live sessions of the real gateway, in both encodings. T-F1; P17.

Whatever comes: an answer of the table, or the end with a code of the table; and every frame that the server
sends is one that a client can read.
"""

import asyncio
import contextlib
import json
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterator

import aiohttp
import msgpack
import pytest

from qim_streams.errors import ProtocolError
from qim_streams.wire import CODECS
from qim_streams.wire.codec import Codec
from qim_streams.wire.codes import TABLE, WS_CLOSE_BASE
from qim_streams.wire.examples import CLIENT_EXAMPLES
from qim_streams.wire.frames import Auth, AuthOk, Error, Goodbye, Ping, Pong, ServerFrame
from tests.support.battlefield import Battlefield
from tests.support.honest import Honest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

NAMES = {row.name for row in TABLE}
CLOSING = {WS_CLOSE_BASE + row.code for row in TABLE if row.closes}
PROTOCOL = {1002, 1003, 1007, 1009}
ANSWER_S = 60.0
ODD = (
    None, True, -1, 0, 2**31, 2**53, 2**64 - 1, -(2**63), 1.5, float("inf"), "", "\0", "x" * 70_000,
    "\u202ea", "\U0001f600", b"", b"\xff" * 16, b"x" * 70_000, [], [[]], {}, {"t": "PING"}, ["a"] * 6_000,
    [None] * 300,
)  # fmt: skip


class Fuzzed:
    """A session that gets odd frames, opened anew when it was ended."""

    def __init__(self, field: Battlefield, http: aiohttp.ClientSession, codec: Codec, user: str) -> None:
        self._field, self._http, self._codec, self._user = field, http, codec, user
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._rid = 2**31
        self.seen: Counter[str] = Counter()

    async def open(self) -> aiohttp.ClientWebSocketResponse:
        """The socket, signed on."""
        if self._socket is None or self._socket.closed:
            self._socket = await self._http.ws_connect(
                self._field.client["gateway_url"], protocols=[self._codec.subprotocol], max_msg_size=2**22
            )
            token = self._field.token("fuzz", self._user)
            await self._write(self._codec.encode(Auth(1, token, "phone")))
            assert type(await self._next()) is AuthOk
            self.seen["opened"] += 1
        return self._socket

    async def _write(self, data: bytes) -> None:
        assert self._socket is not None
        if self._codec.binary:
            await self._socket.send_bytes(data)
        else:
            # As text that may be no UTF-8: what a client of another make would send.
            await self._socket.send_frame(data, aiohttp.WSMsgType.TEXT)

    async def _next(self) -> ServerFrame | int:
        """A frame, or the close code. Every frame must be one that a client can read."""
        assert self._socket is not None
        message = await self._socket.receive(ANSWER_S)
        if message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            data = message.data if isinstance(message.data, bytes) else message.data.encode()
            return self._codec.decode_server(data)
        return int(self._socket.close_code or 0)

    async def give(self, data: bytes) -> None:
        """Send bytes and look at what comes until a PING behind them is answered."""
        await self.open()
        self._rid += 1
        try:
            await self._write(data)
            await self._write(self._codec.encode(Ping(self._rid)))
        except ConnectionError:
            pass  # it was ended: `_next` says how
        while True:
            answer = await self._next()
            if isinstance(answer, int):
                assert answer in CLOSING | PROTOCOL | {0, 1006}, (answer, data[:200])
                self.seen[f"closed {answer}"] += 1
                with contextlib.suppress(Exception):
                    await self._socket.close()  # type: ignore[union-attr]
                self._socket = None
                return
            assert not isinstance(answer, Goodbye)
            if isinstance(answer, Error):
                assert answer.name in NAMES, answer
                assert "Traceback" not in answer.detail, answer
                self.seen[answer.name] += 1
            if isinstance(answer, Pong) and answer.rid == self._rid:
                return


def mutated(rng: random.Random, codec: Codec) -> bytes:
    """The bytes of an example that something was done to: to its fields, to its bytes, or to both."""
    frame = rng.choice(list(CLIENT_EXAMPLES.values()))
    data = codec.encode(frame)
    if rng.random() < 0.6:
        raw = msgpack.unpackb(data) if codec.binary else json.loads(data)
        for _ in range(rng.randrange(1, 3)):
            _change_a_field(rng, raw)
        packed = msgpack.packb(raw) if codec.binary else json.dumps(raw, default=str, allow_nan=True).encode()
        data = packed or b""
        if rng.random() < 0.7:
            return data
    return _with_odd_bytes(rng, bytearray(data), list(CLIENT_EXAMPLES.values()), codec)


def _change_a_field(rng: random.Random, raw: dict[str, object]) -> None:
    name = rng.choice(list(raw))
    match rng.randrange(5):
        case 0:
            del raw[name]
            raw.setdefault("t", "PING")
        case 1:
            raw[name] = [raw[name]]
        case 2:
            raw["x" * rng.randrange(1, 300)] = rng.choice(ODD)
        case _:
            raw[name] = rng.choice(ODD)


def _with_odd_bytes(rng: random.Random, data: bytearray, frames: list[object], codec: Codec) -> bytes:
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case _:
                data[at:at] = codec.encode(rng.choice(frames))  # type: ignore[arg-type]
    return bytes(data)


def seeded() -> Iterator[random.Random]:
    """A generator whose seed is printed."""
    seed = time.time_ns()
    print(f"seed {seed}")
    yield random.Random(seed)


async def fuzz(field: Battlefield, subprotocol: str, frames: int, sessions: int) -> Counter[str]:
    """Give so many odd frames to so many sessions; what came of them."""
    codec, total = CODECS[subprotocol], Counter[str]()
    rng = next(seeded())
    async with aiohttp.ClientSession() as http:
        fuzzed = [Fuzzed(field, http, codec, f"f{secrets.token_hex(3)}") for _ in range(sessions)]
        parts = [[mutated(rng, codec) for _ in range(frames // sessions)] for _ in fuzzed]

        async def one(session: Fuzzed, part: list[bytes]) -> None:
            for data in part:
                try:
                    await session.give(data)
                except ProtocolError as error:
                    raise AssertionError(
                        f"a frame of the server is none: {error}; after {data[:200]!r}"
                    ) from error

        await asyncio.gather(*(one(session, part) for session, part in zip(fuzzed, parts, strict=True)))
    for session in fuzzed:
        total += session.seen
    print(subprotocol, dict(total))
    return total


@pytest.mark.parametrize("subprotocol", list(CODECS))
async def test_frames_that_are_almost_right(field: Battlefield, honest: Honest, subprotocol: str) -> None:
    """A coded answer or an end with a code; the gateway lives and serves the honest."""
    seen = await fuzz(field, subprotocol, 120, 6)
    assert seen["FIELD_INVALID"] > 5
    assert sum(count for name, count in seen.items() if name.startswith("closed")) > 5


@pytest.mark.slow
@pytest.mark.parametrize("subprotocol", list(CODECS))
async def test_many_frames_that_are_almost_right(
    field: Battlefield, honest: Honest, subprotocol: str
) -> None:
    """The long form."""
    seen = await fuzz(field, subprotocol, 4_000, 12)
    assert seen["FIELD_INVALID"] > 200
