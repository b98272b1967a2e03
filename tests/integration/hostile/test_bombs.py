"""Small messages that stand for large ones: refused before anything is built or buffered. T-X2; P16, P17."""

import asyncio
import gzip
import json
import socket
import struct
import zlib
from collections.abc import Iterator

import pytest

from qim_streams import limits
from qim_streams.wire.codes import TABLE, WS_CLOSE_BASE
from tests.support.battlefield import GROWTH_MAX, Battlefield
from tests.support.honest import Honest
from tests.support.raw_websocket import Ending, header, masked, provoke, upgrade

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

LIMIT = limits.FRAME_BYTES_MAX
CODED = {WS_CLOSE_BASE + row.code for row in TABLE if row.closes}
PROTOCOL = {1002, 1003, 1007, 1009}  # of RFC 6455: the frames are none, whatever is in them
MSGPACK, JSON = "qim.v1+msgpack", "qim.v1+json"


def unread() -> Iterator[tuple[str, list[bytes]]]:
    """Frames that must end the connection before they are there."""
    yield "a length of 2^63 - 1", [header(2**63 - 1), b"x" * 4_096]
    yield "a length of 2^32 - 1", [header(2**32 - 1), b"x" * 4_096]
    yield "one byte over the limit", [masked(b"x" * (LIMIT + 1))]
    yield (
        "fragments of a small size, together too large",
        [
            masked(b"x" * 1_000, fin=False),
            *[masked(b"x" * 1_000, 0, fin=False)] * (LIMIT // 1_000 + 2),
        ],
    )
    yield "a control frame with 4 kB", [header(4_000, 9) + b"x" * 4_000]
    yield "a control frame in pieces", [masked(b"", 9, fin=False)]
    yield "a continuation of nothing", [masked(b"x", 0)]
    yield "a message inside a message", [masked(b"x", 2, fin=False), masked(b"x", 2)]
    yield "an opcode that is none", [masked(b"x", 5)]
    yield "compressed, 20 MB of zeros", [masked(zlib.compress(bytes(20_000_000), 9)[2:-4], rsv=0x40)]


def refused_binary() -> Iterator[tuple[str, bytes]]:
    """msgpack that claims or nests more than it may."""
    yield "a list of 2^32 - 1", b"\xdd\xff\xff\xff\xff" + b"\xc0" * 1_000
    yield "a map of 2^32 - 1", b"\xdf\xff\xff\xff\xff" + b"\xa1a\xc0" * 1_000
    yield "a text of 2^32 - 1", b"\x81\xa1t\xdb\xff\xff\xff\xff" + b"x" * 1_000
    yield "bytes of 2^32 - 1", b"\x81\xa1t\xc6\xff\xff\xff\xff" + b"x" * 1_000
    yield "an extension of 2^32 - 1", b"\x81\xa1t\xc9\xff\xff\xff\xff\x01" + b"x" * 1_000
    yield "lists in lists", b"\x91" * (LIMIT - 8)
    yield "lists in lists, each of the rest", b"\xdd\x00\x03\x00\x00" * (LIMIT // 5)
    yield "maps in maps", b"\x81\xa1a" * (LIMIT // 3 - 8)
    yield "1,000 deep in a field", b"\x82\xa1t\xa4PING\xa3rid" + b"\x91" * 1_000 + b"\xc0"


def refused_text() -> Iterator[tuple[str, bytes]]:
    """JSON that claims or nests more than it may."""
    yield "lists in lists", b"[" * (LIMIT - 8)
    yield "maps in maps", b'{"a":' * (LIMIT // 5 - 8)
    yield "1,000 deep in a field", b'{"t":"PING","rid":' + b"[" * 1_000 + b"]" * 1_000 + b"}"
    yield "a number of 200,000 digits", b'{"t":"PING","rid":' + b"9" * 200_000 + b"}"
    yield "quotes without an end", b'"' * (LIMIT - 8)
    yield "escapes without an end", b'{"t":"' + b"\\u0000" * 40_000
    yield "a name a hundred thousand times", b'{"t":1,' * 1 + b",".join([b'"t":1'] * 40_000) + b"}"


def is_coded(ending: Ending) -> bool:
    """A code of our table or of the WebSocket protocol, or an end without any: what was unread resets."""
    return ending.close_code in CODED | PROTOCOL | {0} and ending.status == 0


async def test_frames_that_are_too_large_are_not_read(field: Battlefield, honest: Honest) -> None:
    """Ten at once of each: none is buffered, none is answered with anything but its end."""
    for name, parts in unread():
        ends = await asyncio.gather(*(provoke(field.gateway_port, *parts) for _ in range(10)))
        assert all(map(is_coded, ends)), (name, ends)
        assert all(not one.frames or b"BAD_FRAME" in one.frames[0] for one in ends), (name, ends)
    print(f"the gateway grew by {field.growth('gateway') / 2**20:.1f} MB")


@pytest.mark.parametrize("subprotocol", [MSGPACK, JSON])
async def test_messages_that_claim_or_nest_too_much(
    field: Battlefield, honest: Honest, subprotocol: str
) -> None:
    """What lists of 2^32 would take, and what a recursive reader would do, is not taken and not done."""
    bombs, opcode = (refused_binary(), 2) if subprotocol == MSGPACK else (refused_text(), 1)
    for name, data in bombs:
        sent = masked(data, opcode)
        ends = await asyncio.gather(
            *(provoke(field.gateway_port, sent, hello=upgrade(subprotocol)) for _ in range(5))
        )
        assert {one.close_code for one in ends} <= CODED, (name, ends)
    assert field.growth("gateway") < GROWTH_MAX


async def test_nothing_is_compressed_because_a_client_wants_it(field: Battlefield) -> None:
    """So there is no message that grows when it is unpacked."""
    hello = upgrade(MSGPACK, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
    reader, writer = await asyncio.open_connection("127.0.0.1", field.gateway_port)
    writer.write(hello)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    writer.close()
    assert head.startswith(b"HTTP/1.1 101")
    assert b"extensions" not in head.lower()


async def test_fifty_thousand_empty_fragments(field: Battlefield, honest: Honest) -> None:
    """A message that never ends and never grows: its sender is shown out when he does not sign on."""
    flood = masked(b"", 2, fin=False) + masked(b"", 0, fin=False) * 50_000
    ending = await provoke(field.gateway_port, flood, masked(b"", 0))
    assert ending.close_code in CODED | PROTOCOL, ending


def https(port: int, *parts: bytes) -> bytes:
    """What an HTTP server answers to bytes, until it ends the connection or has said its head."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
        try:
            for part in parts:
                line.sendall(part)
        except ConnectionError:
            pass  # it said enough before
        line.settimeout(60)
        found = b""
        try:
            while b"\r\n\r\n" not in found and (data := line.recv(65_536)):
                found += data
        except ConnectionError:
            pass  # it was ended with bytes unread
        return found


_POST = b"POST /v1/tenants/a/groups HTTP/1.1\r\nHost: x\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"


def heads() -> Iterator[tuple[str, list[bytes]]]:
    """Requests whose head is the bomb."""
    yield "a header of 1 MB", [b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n"]
    yield "20,000 headers", [b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 20_000 + b"\r\n"]
    yield "a target of 1 MB", [b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"]
    yield "two lengths", [_POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"]
    yield (
        "length and chunks",
        [_POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n"],
    )
    yield "a chunk of 2^63", [_CHUNKED + b"7fffffffffffffff\r\n", b"x" * 100_000]
    yield "a length of 2^63", [_POST + b"Content-Length: 9223372036854775807\r\n\r\n", b"x" * 100_000]


@pytest.mark.parametrize("server", ["gateway", "API"])
async def test_requests_that_are_too_large(field: Battlefield, honest: Honest, server: str) -> None:
    """An answer, or the end; never a 5xx, never a body that is waited for."""
    port = field.gateway_port if server == "gateway" else field.api_port
    for name, parts in heads():
        said = await asyncio.to_thread(https, port, *parts)
        status = int(said[9:12] or 0)
        assert status in (0, 200, 400, 401, 404, 405, 413, 431), (name, said[:200])
        assert (status == 200) <= (name == "20,000 headers"), (name, said[:200])


async def test_bodies_of_the_api(field: Battlefield, honest: Honest) -> None:
    """With a key: nested, packed, too long. Packed bodies are not unpacked."""
    bodies = {
        "lists in lists": (b"[" * 1_000_000, {}),
        "maps in maps": (b'{"name":' * 120_000, {}),
        "a number of 1 MB": (b'{"members":' + b"9" * 1_000_000 + b"}", {}),
        "gzip": (gzip.compress(bytes(GROWTH_MAX), 1), {"Content-Encoding": "gzip"}),
        "deflate": (zlib.compress(bytes(GROWTH_MAX), 1), {"Content-Encoding": "deflate"}),
        "one byte too long": (b" " * (limits.API_BODY_BYTES_MAX + 1), {}),
        "utf-32": (json.dumps({"name": "x" * 100_000}).encode("utf-32"), {}),
        "5,001 members": (json.dumps({"members": ["u"] * 5_001}).encode(), {}),
    }

    def ask() -> None:
        with field.api() as api:
            for name, (body, headers) in bodies.items():
                answer = api.post(
                    "/v1/tenants/bombs/groups",
                    content=body,
                    headers={"Content-Type": "application/json", **headers},
                )
                assert 400 <= answer.status_code < 500, (name, answer.text[:300])
                assert {"code", "name", "detail"} <= set(answer.json()), (name, answer.text[:300])

    await asyncio.to_thread(ask)
    print(f"the API grew by {field.growth('api') / 2**20:.1f} MB")


async def test_a_stranger_makes_a_writer_hold_nothing(field: Battlefield) -> None:
    """The links between roles have a port, too: no frame is larger than their limit, no secret no service."""
    for port in field.internal_ports():
        hello = upgrade().replace(b"GET /ws", b"GET /rpc").replace(b"Host: x", b"Host: x\r\nX-Qim-Rpc: 1")
        hello = hello.replace(b"Sec-WebSocket-Protocol: qim.v1+msgpack\r\n", b"")
        for data in (
            header(2**63 - 1),
            masked(b"\xdd\xff\xff\xff\xff" * 200),
            masked(b"\x91" * 100_000),
            masked(b"x" * 2_000_000),
            masked(struct.pack(">BB32s", 0x92, 1, b"n" * 32)),
        ):
            ending = await provoke(port, data, hello=hello)
            assert ending.close_code in {0, 1002, 1009, 4401}, ending
            assert len(ending.frames) <= 1, "only the challenge"
