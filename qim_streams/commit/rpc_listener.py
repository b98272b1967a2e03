"""The owner's side of the internal RPC: an aiohttp WebSocket server that knows no operation.

`RpcListener` does handshakes, bounds and answers; what a request means is `take` of the role that listens.

Invariants: no request is read before the handshake; at most `CONNECTIONS_MAX` connections, of which few may
be without authentication, and those end in 3 seconds; what connects and asks for nothing is ended after
`LOITER_S`; a peer that does not read its answers is not read from; commands run to their end even when their
connection is gone.

Spec: §3.
"""

import asyncio
import logging
import secrets
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from aiohttp import WSMsgType, web

from qim_streams.commit import rpc_protocol
from qim_streams.errors import ProtocolError
from qim_streams.loiterers import Loiterers
from qim_streams.readiness import Source, document, status_of
from qim_streams.server_header import name_servers
from qim_streams.tls import shows_certificate

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 3.0
CONNECTIONS_MAX = 1_024
STRANGERS_MAX = 64  # connections that have not authenticated yet
ANSWERS_MAX = 20_000  # unsent answers of one connection, from where on it is not read
HEARTBEAT_S = 10.0
LOITER_S = 10.0  # a connection that has not become a peer; who asks whether we are ready is done before
LOOK_S = 1.0
READY_PATH = "/readyz"


class RpcRequest(NamedTuple):
    """A request of a peer. `deadline_s` is loop time; `reply` takes the fields of the answer, once."""

    op: int
    args: object
    deadline_s: float
    reply: Callable[[Any], object]


class RpcListener(ABC):
    """The listening server of a role that owns partitions."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.tls: ssl.SSLContext | None = None  # set it before `start`
        self.more_reasons: Source = tuple  # of the role around it
        self.stands_by: Callable[[], bool] = lambda: False  # the others hold every partition, and rightly
        self._runner: web.AppRunner | None = None
        self._peers: set[_Peer] = set()
        self._strangers = 0
        self._loiterers = Loiterers()
        self._looking: asyncio.Task[None] | None = None
        self._commands: set[asyncio.Task[None]] = set()

    @abstractmethod
    def take(self, requests: Sequence[RpcRequest]) -> None:
        """Begin with the requests of one frame; ProtocolError ends the connection."""

    @abstractmethod
    def served(self) -> int:
        """How many partitions are served now."""

    def spawn(self, work: Awaitable[None]) -> None:
        """Run `work`, which answers a request, to its end, whatever becomes of the connection."""
        task = asyncio.ensure_future(work)
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    @property
    def working(self) -> int:
        """Commands that are under way."""
        return len(self._commands)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (`port` 0: any free one). OSError when it is taken."""
        name_servers()
        app = web.Application()
        app.router.add_get(rpc_protocol.PATH, self._accept)
        app.router.add_get(READY_PATH, self._ready)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=256, ssl_context=self.tls)
        await site.start()
        self._looking = asyncio.create_task(self._look(), name="rpc-loiterers")
        return int(self._runner.addresses[0][1])

    async def close(self, timeout_s: float = 5.0) -> None:
        """Wait for group commands and unsent answers, at most `timeout_s`, then close all connections."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._commands:
            await asyncio.wait(list(self._commands), timeout=timeout_s)
        for peer in list(self._peers):
            await peer.finish(timeout_s)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _accept(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get(rpc_protocol.VERSION_HEADER) != str(rpc_protocol.VERSION):
            return web.Response(status=400, text=f"this writer speaks RPC version {rpc_protocol.VERSION}\n")
        # Whether this process is ready, anybody may ask; requests are for peers with a certificate of ours.
        if self.tls is not None and not shows_certificate(request.transport):
            log.warning("connection from %s refused: no certificate", request.remote)
            return web.Response(status=403, text="a client certificate is needed\n")
        if len(self._peers) >= CONNECTIONS_MAX or self._strangers >= STRANGERS_MAX:
            return web.Response(status=503, text="too many connections\n")
        socket = web.WebSocketResponse(
            max_msg_size=rpc_protocol.FRAME_BYTES_MAX, heartbeat=HEARTBEAT_S, compress=False
        )
        await socket.prepare(request)
        self._strangers += 1
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                node = await self._handshake(socket)
        except (ProtocolError, TimeoutError, ConnectionError, TypeError) as error:
            log.warning("connection from %s refused: %s", request.remote, error)
            await socket.close(code=4401, message=b"not authenticated")
            return socket
        finally:
            self._strangers -= 1
        peer = _Peer(self, socket, node)
        self._peers.add(peer)
        self._loiterers.became(request.protocol)
        try:
            await peer.serve()
        finally:
            self._peers.discard(peer)
            self._loiterers.left(request.protocol)
        return socket

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            self.end_loiterers(loop.time())

    @property
    def loitering(self) -> int:
        """Connections that were no peers at the last look."""
        return len(self._loiterers.present)

    def end_loiterers(self, now_s: float) -> int:
        """End connections that have not become peers for `LOITER_S`; how many."""
        return self._loiterers.look(None if self._runner is None else self._runner.server, now_s, LOITER_S)

    def reasons(self) -> list[str]:
        """Why this process is not ready; one that serves no partition is not, unless it stands by."""
        return [] if self.served() or self.stands_by() else ["no partition is served"]

    async def _ready(self, _request: web.Request) -> web.Response:
        reasons = [*self.reasons(), *self.more_reasons()]
        said = document(reasons) | {"partitions": self.served()}
        answer = web.json_response(said, status=status_of(reasons))
        answer.force_close()  # kept open it would be ended as one that loiters
        return answer

    async def _handshake(self, socket: web.WebSocketResponse) -> str:
        nonce = secrets.token_bytes(rpc_protocol.NONCE_BYTES)
        await socket.send_bytes(rpc_protocol.pack((rpc_protocol.VERSION, nonce)))
        node, proof = rpc_protocol.check_client(self._secret, nonce, await socket.receive_bytes())
        await socket.send_bytes(rpc_protocol.pack((rpc_protocol.VERSION, proof)))
        return node


class _Peer:
    """One authenticated connection."""

    def __init__(self, server: RpcListener, socket: web.WebSocketResponse, node: str) -> None:
        self._server, self._socket, self._node = server, socket, node
        self._answers: list[bytes] = []
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._closed = False

    async def serve(self) -> None:
        """Read requests until the connection ends."""
        log.info("connected: %s", self._node)
        sender = asyncio.create_task(self._send())
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.BINARY:
                    break
                self._handle(message.data)
                if len(self._answers) > ANSWERS_MAX:
                    self._drained.clear()
                    await self._drained.wait()
        except ProtocolError as error:
            log.warning("%s broke the protocol: %s", self._node, error)
            await self._socket.close(code=1002, message=b"protocol error")
        finally:
            self._closed = True
            self._drained.set()
            sender.cancel()
            log.info("disconnected: %s", self._node)

    async def finish(self, timeout_s: float) -> None:
        """Send what is answered, then close."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._answers and not self._closed:
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            log.warning("%s did not read its last answers", self._node)
        await self._socket.close(code=1001, message=b"stopping")

    def _handle(self, data: object) -> None:
        now_s = asyncio.get_running_loop().time()
        requests = []
        for item in rpc_protocol.unpack(data):
            rid, op, left_ms, args = _item(item)
            requests.append(RpcRequest(op, args, now_s + left_ms / 1_000, _Reply(self, rid)))
        self._server.take(requests)

    def answer(self, rid: int, fields: tuple[object, ...]) -> None:
        """Queue an answer; what is queued in one turn of the loop goes as one frame."""
        if self._closed:
            return  # the caller is gone; it repeats the request and gets the same answer
        if not self._answers:
            self._wake.set()
        self._answers.append(rpc_protocol.pack((rid, *fields)))

    async def _send(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._answers:
                    await self._socket.send_bytes(rpc_protocol.frame_of(_slice(self._answers)))
                self._drained.set()
        except (ConnectionError, RuntimeError) as error:
            # The reader sees the end of the connection too and cleans up.
            log.info("answers to %s not sent: %s", self._node, error)
            self._closed = True
            self._drained.set()


class _Reply:
    """The way back of one request."""

    __slots__ = ("_peer", "_rid")

    def __init__(self, peer: _Peer, rid: int) -> None:
        self._peer, self._rid = peer, rid

    def __call__(self, outcome: tuple[object, ...]) -> None:
        self._peer.answer(self._rid, outcome)


def _item(item: Any) -> tuple[int, int, int, object]:
    if not isinstance(item, list) or len(item) < 4:
        raise ProtocolError("BAD_FRAME", "a request has four parts")
    rid, op, left_ms, args = item[:4]
    if type(rid) is not int or type(op) is not int or type(left_ms) is not int:
        raise ProtocolError("BAD_FRAME", "rid, operation and time left are numbers")
    return rid, op, left_ms, args


def _slice(packed: list[bytes]) -> list[bytes]:
    """Take what fits one frame off the front of `packed`."""
    size = count = 0
    while count < len(packed) and size < rpc_protocol.FRAME_TARGET_BYTES:
        size += len(packed[count])
        count += 1
    taken = packed[:count]
    del packed[:count]
    return taken
