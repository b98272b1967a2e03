"""The WebSocket server: sockets in, sessions beside them, nothing decided here.

``GET /ws`` with the subprotocol ``qim.v1+msgpack`` or ``qim.v1+json``; ``/healthz`` (the process runs)
and ``/readyz`` (it serves: 200, else 503 and why) on the same port.

Bounds: a message over `frame_bytes_max` ends the connection (1009) before it is buffered; nothing is
compressed; a connection that is no session within `auth_deadline_s` is closed, one that never became a
WebSocket too; what waits to be written is bounded per socket, and a full socket is not read. While too many
sign on, newcomers are answered 503 with Retry-After.

Spec: §6, §7; reliability P16, P17.
"""

import asyncio
import logging
import math
import ssl
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.abc import AbstractStreamWriter

from qim_streams.gateway.acceptor import Acceptor
from qim_streams.gateway.door import Door, DoorBounds, networks
from qim_streams.gateway.outbound import TRANSPORT_BYTES_MAX, Cork, Outbound
from qim_streams.gateway.services import Services
from qim_streams.gateway.session import ClientSession
from qim_streams.loiterers import Loiterers
from qim_streams.readiness import Source, document, status_of
from qim_streams.server_header import name_servers
from qim_streams.settings import Settings
from qim_streams.wire import CODECS, SUBPROTOCOLS
from qim_streams.wire.codec import Codec

log = logging.getLogger(__name__)

PATH: Final = "/ws"
CLOSE_TIMEOUT_S: Final = 2.0
GOODBYE_MIN_MS: Final = 500
GOODBYE_SPREAD_MS: Final = 3_000  # many clients come back within this time, by chance
GOODBYE_PER_CLIENT_MS: Final = 5  # few within less: so many sign-ons a gateway does in a row
DRAIN_ANSWERS_S: Final = 3.0
DRAIN_STEP_S: Final = 0.02
_ENDS: Final = frozenset({WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR})


class Socket:
    """One WebSocket and its session."""

    __slots__ = ("_closing", "_codec", "_ws", "session", "transport")

    def __init__(
        self,
        services: Services,
        codec: Codec,
        ws: Any,
        transport: Any,
        writer: AbstractStreamWriter,
        cork: Cork,
    ) -> None:
        self._ws, self._codec, self.transport = ws, codec, transport
        transport.set_write_buffer_limits(high=TRANSPORT_BYTES_MAX)
        outbound = Outbound(
            transport,
            writer.drain,
            cork,
            binary=codec.binary,
            bytes_max=services.settings.outbound_queue_bytes_max,
        )
        self.session = ClientSession(services, codec, outbound, self._hang_up)
        self._closing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Read until the connection ends; the session is closed afterwards."""
        session, outbound = self.session, self.session.outbound
        wanted = WSMsgType.BINARY if self._codec.binary else WSMsgType.TEXT
        try:
            while True:
                message = await self._ws.receive()
                if message.type is not wanted:
                    if message.type not in _ENDS:
                        session.fail("BAD_FRAME", f"this subprotocol has {wanted.name} messages only")
                    break
                session.receive(message.data)
                if not session.is_open:
                    break
                if outbound.is_full:
                    await outbound.room()
        finally:
            session.close()
            if self._closing is not None:
                await asyncio.wait([self._closing])

    def _hang_up(self, code: int) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(code))

    async def _close(self, code: int) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._ws.close(code=code, drain=False)
        except (TimeoutError, ConnectionError, RuntimeError):
            # The peer does not read or answer: there is nobody to say more to.
            log.debug("a peer did not answer the close")
        self.transport.close()

    def abort(self) -> None:
        """End the connection at once: the peer takes nothing any more."""
        self.transport.abort()

    async def close(self, code: int = WSCloseCode.GOING_AWAY) -> None:
        """Close the connection and wait until it is."""
        self.session.end(code)
        if self._closing is not None:
            await asyncio.wait([self._closing])


def goodbye_ms(clients: int, chance: float) -> int:
    """After how many milliseconds one of so many clients is to come back; `chance` is in [0, 1)."""
    return int(GOODBYE_MIN_MS + chance * min(GOODBYE_SPREAD_MS, clients * GOODBYE_PER_CLIENT_MS))


def door_bounds(settings: Settings) -> DoorBounds:
    """What one address may do before it has signed on; ConfigError for networks that are none."""
    return DoorBounds(
        settings.door_handshakes_per_s,
        settings.door_handshakes_burst,
        settings.door_strangers_max,
        networks(settings.door_trusted),
    )


class GatewayServer:
    """The listening server. `reasons` says why /readyz must not answer 200; none: it may."""

    def __init__(self, services: Services, reasons: Source, tls: ssl.SSLContext | None = None) -> None:
        self._all, self._reasons, self._tls = services, reasons, tls
        self._door = Door(door_bounds(services.settings), asyncio.get_running_loop().time)
        self._cork = Cork(asyncio.get_running_loop())
        self.sockets: set[Socket] = set()
        self._loiterers = Loiterers()
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen; `port` is set afterwards. OSError when the address is taken."""
        name_servers()
        app = web.Application()
        app.router.add_get(PATH, self._connect)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._readiness)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=CLOSE_TIMEOUT_S
        )
        await self._runner.setup()
        settings = self._all.settings
        assert self._runner.server is not None
        self._acceptor = Acceptor(
            self._runner.server,
            PATH,
            self._all.crowded_ms,
            self._refused,
            admits=self._admits,
            tls=self._tls,
            handshake_s=settings.auth_deadline_s,
        )
        self.port = await self._acceptor.start(settings.gateway_host, settings.gateway_port)

    def refuse_new(self) -> None:
        """Nobody is let in any more; not ready."""
        self._all.draining = True

    async def drain(self, endpoints: Sequence[str] = ()) -> None:
        """Say GOODBYE, let answers that are owed go out, close every socket. Nobody is let in any more.

        `endpoints`: other gateways; clients are spread over them, and over the time in which they come back.
        """
        self.refuse_new()
        for socket in self.sockets:
            delay = goodbye_ms(len(self.sockets), self._all.random())
            where = endpoints[int(self._all.random() * len(endpoints))] if endpoints else None
            socket.session.say_goodbye(delay, where)
        for _ in range(round(DRAIN_ANSWERS_S / DRAIN_STEP_S)):
            if not any(socket.session.connection.requests for socket in self.sockets):
                break
            await asyncio.sleep(DRAIN_STEP_S)
        await asyncio.gather(*(socket.close() for socket in list(self.sockets)))

    async def close(self) -> None:
        """Stop listening."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def close_strangers(self, now: float) -> int:
        """Close connections that have not become a WebSocket within the AUTH deadline; how many."""
        if self._runner is None or self._runner.server is None:
            return 0
        ended = self._loiterers.look(self._runner.server, now, self._all.settings.auth_deadline_s)
        self._door.recount(self._strangers())
        return ended

    def _strangers(self) -> dict[str, int]:
        """How many connections of an address have not signed on; some never became a WebSocket."""
        transports = [one.transport for one in self._loiterers.present if one.transport is not None]
        transports += [one.transport for one in self.sockets if not one.session.connection.authenticated]
        peers = (transport.get_extra_info("peername") for transport in transports)
        hosts = [str(peer[0]) for peer in peers if peer]
        hosts += [] if self._acceptor is None else self._acceptor.shaking
        callers = map(self._door.caller, hosts)
        return Counter(caller for caller in callers if caller is not None)

    def strangers_of(self, host: str) -> int:
        """Connections of an address that count as strangers, as of the last sweep and since."""
        return self._door.strangers_of(host)

    def _admits(self, host: str) -> bool:
        admitted = self._door.admits(host)
        self._all.counters.door_refused += not admitted
        return admitted

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        settings, counters = self._all.settings, self._all.counters
        wait_ms = self._all.crowded_ms()
        if wait_ms:
            self._refused()
            raise web.HTTPServiceUnavailable(headers={"Retry-After": str(math.ceil(wait_ms / 1_000))})
        ws = web.WebSocketResponse(
            protocols=SUBPROTOCOLS,
            max_msg_size=settings.frame_bytes_max,
            compress=False,
            timeout=CLOSE_TIMEOUT_S,
            decode_text=False,
        )
        codec = CODECS.get(ws.can_prepare(request).protocol or "")
        if codec is None:
            raise web.HTTPBadRequest(text=f"offer a subprotocol: {', '.join(SUBPROTOCOLS)}\n")
        writer = await ws.prepare(request)
        if request.transport is None:
            return ws  # gone during the handshake
        counters.connections += 1
        counters.sockets += 1
        socket = Socket(self._all, codec, ws, request.transport, writer, self._cork)
        self._loiterers.became(request.protocol)
        self.sockets.add(socket)
        try:
            if len(self.sockets) > settings.connections_max:
                counters.connections_refused += 1
                socket.session.fail("TOO_MANY_CONNECTIONS", "this gateway is full")
            await socket.run()
        finally:
            self.sockets.discard(socket)
            self._loiterers.left(request.protocol)
            counters.sockets -= 1
        return ws

    def _refused(self) -> None:
        self._all.counters.connections_refused += 1

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _: web.Request) -> web.Response:
        reasons = [*self._reasons(), *self._all.readiness.reasons()]
        if self._all.draining:
            reasons = ["this gateway is about to stop"]
        return web.json_response(document(reasons), status=status_of(reasons))
