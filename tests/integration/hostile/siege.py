"""Clients that take their time: blocking sockets and one thread, so that it goes on over tests and loops.

Each kind connects and then never gets anywhere: it says nothing, or a byte now and then, or does not read.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from qim_streams.wire import MSGPACK
from qim_streams.wire.frames import Auth
from tests.support.raw_websocket import masked, upgrade

DRIP_S: Final = 0.5
_LONG = b"X-Filler: " + b"a" * 4_000
_AUTH = masked(MSGPACK.encode(Auth(1, "x" * 4_000, "phone")))


@dataclass(slots=True)
class Attempt:
    """A connection of a kind. `at`: how much of `drip` was sent."""

    kind: str
    socket: socket.socket
    drip: bytes
    again: bool = False
    at: int = 0
    ended: bool = False


_ENDLESS = masked(b"", 2, fin=False) + masked(b"", 0, fin=False)
_POST = b"POST /v1/tenants/a/groups HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n"


class Kind(NamedTuple):
    """`at` a server `first` is sent at once, `drip` byte by byte, `again` and again."""

    at: str
    first: bytes
    drip: bytes = b""
    again: bool = False


GATEWAY, API, WRITER = "gateway", "API", "writer"
KINDS: Final = {
    "gateway: no word": Kind(GATEWAY, b""),
    "gateway: half a handshake": Kind(GATEWAY, upgrade()[:60], _LONG),
    "gateway: a handshake, no AUTH": Kind(GATEWAY, upgrade()),
    "gateway: a handshake, pings only": Kind(GATEWAY, upgrade(), masked(b"", 9), True),
    "gateway: a frame byte by byte": Kind(GATEWAY, upgrade(), _AUTH),
    "gateway: fragments without an end": Kind(GATEWAY, upgrade(), _ENDLESS, True),
    "API: no word": Kind(API, b""),
    "API: half a head": Kind(API, b"GET /healthz HTTP/1.1\r\nHost: x\r\n", _LONG),
    "API: a body byte by byte": Kind(API, _POST, b"x" * 9_000),
    "writer: no word": Kind(WRITER, b""),
    "writer: half a handshake": Kind(WRITER, b"GET /rpc HTTP/1.1\r\nX-Qim-Rpc: 1\r\n", _LONG),
}


class Siege:
    """`each` connections of every kind. A context: they are closed at its end."""

    def __init__(self, ports: Mapping[str, int], each: int, drip_s: float = DRIP_S) -> None:
        self._ports, self._each, self._drip_s = ports, each, drip_s
        self.attempts: list[Attempt] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drip, name="siege", daemon=True)

    def __enter__(self) -> Self:
        for name, kind in KINDS.items():
            for _ in range(self._each):
                line = socket.create_connection(("127.0.0.1", self._ports[kind.at]), timeout=30)
                line.sendall(kind.first)
                line.setblocking(False)
                self.attempts.append(Attempt(name, line, kind.drip, kind.again))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        for one in self.attempts:
            one.socket.close()

    def open(self) -> dict[str, int]:
        """Connections that nobody has ended, by kind."""
        found: dict[str, int] = {}
        for one in self.attempts:
            if not one.ended:
                found[one.kind] = found.get(one.kind, 0) + 1
        return found

    def _drip(self) -> None:
        while not self._stop.is_set():
            for one in self.attempts:
                if not one.ended:
                    one.ended = _is_over(one)
                    _next_byte(one)
            self._stop.wait(self._drip_s)


def _is_over(one: Attempt) -> bool:
    """Whether the server has ended it; what it says until then is read and forgotten."""
    try:
        while data := one.socket.recv(65_536):
            del data
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _next_byte(one: Attempt) -> None:
    if one.ended or (one.at >= len(one.drip) and not (one.again and one.drip)):
        return
    place = one.at % len(one.drip)
    with contextlib.suppress(OSError):  # seen by the next look
        one.socket.send(one.drip[place : place + 1])
        one.at += 1


def wait_over(siege: Siege, within_s: float) -> dict[str, int]:
    """What is still open when all are ended, or after that time."""
    deadline = time.monotonic() + within_s
    while siege.open() and time.monotonic() < deadline:
        time.sleep(0.05)
    return siege.open()
