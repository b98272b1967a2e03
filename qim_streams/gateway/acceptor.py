"""Acceptor: takes connections off the listen queue as fast as they come, and turns a crowd away for little.

The event loop that production uses (uvloop) takes one connection per turn, and a turn of a busy gateway
lasts milliseconds. So when thousands came at once, a few hundred a second were taken; the kernel dropped
what did not fit into the queue, clients sent their SYN again after 1, 3 and 7 seconds, and what was taken
at last had often been given up by its client. Here a turn takes up to `TURN_MAX`.

While too many sign on, whoever asks for a WebSocket is answered 503 with Retry-After from the bytes that
lie in the socket already, without a handler, a parser or a task: about a tenth of what a handshake costs.
Anything else (health checks, requests that are still on their way) goes to the HTTP server as always, which
refuses too. Under TLS nothing can be read or said before the handshake: a crowd is left to the HTTP server.

Whom the door does not let in (`door`) gets the same answer, or none where there is TLS.

Invariants: a connection that was taken is either answered and closed here or belongs to the HTTP server; when
descriptors run out, the queue waits for `PAUSE_S` instead of turning the loop.

Spec: §7; reliability P16, P17.
"""

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

BACKLOG: Final = 4_096  # the kernel's own bound (somaxconn) counts where it is lower
TURN_MAX: Final = 64
PAUSE_S: Final = 1.0
_PEEK: Final = 16
_REQUEST_MAX: Final = 65_536
DOOR_AGAIN_MS: Final = 1_000


class Acceptor:
    """Listens. `factory` makes the HTTP protocols; `crowded_ms` says when a newcomer is to come again (0: now
    is fine); `refused` is told of everybody who was turned away. `path` is where the WebSocket is; `admits`
    says of an address whether it may come in."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        path: str,
        crowded_ms: Callable[[], int],
        refused: Callable[[], object],
        *,
        admits: Callable[[str], bool] | None = None,
        tls: ssl.SSLContext | None = None,
        handshake_s: float = 10.0,
    ) -> None:
        self._admits, self._tls, self._handshake_s = admits, tls, handshake_s
        self._factory, self._crowded_ms, self._refused = factory, crowded_ms, refused
        self._wanted = f"GET {path}".encode()[:_PEEK]
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._taken: dict[asyncio.Task[object], str] = {}  # TLS handshakes under way: from where

    async def start(self, host: str, port: int) -> int:
        """Listen on every address of `host`; the port. OSError when one is taken."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, proto, _, address in dict.fromkeys(found):
            bound = (address[0], port, *address[2:])
            listening = socket.socket(family, kind, proto)
            self._listening.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listening.bind(bound)
            except OSError:
                self.close()
                raise
            port = listening.getsockname()[1]
            listening.setblocking(False)
            listening.listen(BACKLOG)
        for listening in self._listening:
            self._watch(listening)
        return port

    def close(self) -> None:
        """Take nobody any more. Safe to repeat."""
        listening, self._listening = self._listening, []
        for one in listening:
            self._loop.remove_reader(one.fileno())
            one.close()

    @property
    def shaking(self) -> list[str]:
        """Hosts whose handshakes are under way, one entry for each."""
        return list(self._taken.values())

    def _watch(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._take, listening)

    def _take(self, listening: socket.socket) -> None:
        for _ in range(TURN_MAX):
            try:
                taken, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                log.error("no connection can be taken for %g s: %s", PAUSE_S, error)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(PAUSE_S, self._watch, listening)
                return
            taken.setblocking(False)
            if self._admits is not None and not self._admits(str(address[0])):
                self._turn_away(taken, DOOR_AGAIN_MS)
            elif self._tls is not None or not self._is_one_too_many(taken):
                self._hand_over(taken, str(address[0]))

    def _hand_over(self, taken: socket.socket, host: str) -> None:
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._connect(taken))
        self._taken[task] = host
        task.add_done_callback(self._taken.pop)

    async def _connect(self, taken: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._factory,
                taken,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._handshake_s,
            )
        except OSError as error:
            taken.close()
            log.debug("a connection ended before it began: %s", error)

    def _is_one_too_many(self, taken: socket.socket) -> bool:
        """Whether a newcomer was refused, which needs his request to be here already."""
        try:
            if not self._is_crowd(taken):
                return False
        except OSError:
            taken.close()  # it is gone, which is what we wanted
            return True
        wait_ms = self._crowded_ms()
        if wait_ms:
            self._turn_away(taken, wait_ms)
        return bool(wait_ms)

    def _turn_away(self, taken: socket.socket, wait_ms: int) -> None:
        try:
            if self._tls is None:
                # What is left unread would make the close a reset, and lose the answer.
                with contextlib.suppress(BlockingIOError):
                    taken.recv(_REQUEST_MAX)
                taken.send(refusal(wait_ms))
                taken.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is gone, which is what we wanted
        taken.close()
        self._refused()

    def _is_crowd(self, taken: socket.socket) -> bool:
        try:
            return taken.recv(_PEEK, socket.MSG_PEEK).startswith(self._wanted)
        except BlockingIOError:
            return False


def refusal(wait_ms: int) -> bytes:
    """The whole answer 503."""
    after = math.ceil(wait_ms / 1_000)
    return (
        f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {after}\r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n"
    ).encode()
