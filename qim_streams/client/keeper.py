"""Keeps one device connected: one connection after another, with delays that spread clients out.

Invariants: a terminal answer ends it, everything else is tried again for ever; the delay is never below
what the server asked for and always has jitter; an endpoint without TLS is never followed from one with.
Tokens and bodies are never logged.

Spec: §7. Scenarios A13 I10 I13.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import random

import aiohttp

from qim_streams.client.backoff import retry_ms
from qim_streams.client.link import Link, monotonic_ms
from qim_streams.client.options import ClientOptions
from qim_streams.client.session import Broken, Phase, Session
from qim_streams.errors import ClientStopped, ConfigError, ProtocolError
from qim_streams.limits import SERVER_FRAME_BYTES_MAX
from qim_streams.wire import JSON, MSGPACK

FOLLOW_ATTEMPTS = 3
log = logging.getLogger("qim.client")
TokenSource = str | Callable[[], Awaitable[str]]
_SCHEMES = {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}


def websocket_url(url: str) -> str:
    """The URL with a WebSocket scheme; ConfigError for anything that is not one."""
    scheme, separator, rest = url.partition("://")
    if scheme not in _SCHEMES or not separator or not rest:
        raise ConfigError(f"url: {url!r} is no WebSocket address; use ws://HOST:PORT/PATH")
    return f"{_SCHEMES[scheme]}://{rest}"


class Keeper:
    """Connects `session` again and again. `received` and `room`: see `link.Link`."""

    def __init__(
        self,
        session: Session,
        options: ClientOptions,
        url: str,
        token: TokenSource,
        received: Callable[[], None],
        room: Callable[[], Awaitable[None] | None],
    ) -> None:
        self.url = self._home = url
        self.connections = 0  # that came online
        self._session, self._options, self._token = session, options, token
        self._received, self._room = received, room
        self._codec = MSGPACK if options.encoding == "msgpack" else JSON
        self._link: Link | None = None
        self._phase = Phase.OFFLINE
        self._ending = False

    def wake(self) -> None:
        """Frames are queued in the session: write them."""
        if self._link is not None:
            self._link.wake()

    def end(self, task: asyncio.Task[None]) -> None:
        """Make `run`, which is running in `task`, return soon."""
        self._ending = True
        if self._link is not None:
            self._link.end()
        else:  # it sleeps or connects
            task.cancel()

    async def run(self, http: aiohttp.ClientSession) -> ClientStopped:
        """Stay connected until `end` or a terminal answer; returns which."""
        attempt = 0
        options, session = self._options, self._session
        while True:
            before = self.connections
            reason = await self._connection(http)
            if session.ended is not None:
                return ClientStopped(session.ended.name, session.ended.detail)
            if self._ending:
                return ClientStopped("CLOSED", "the client was closed")
            attempt = 1 if self.connections > before else attempt + 1
            if attempt > FOLLOW_ATTEMPTS:
                self.url = self._home  # the preferred endpoint does not work out
            asked = reason.retry_after_ms
            delay = retry_ms(attempt, options.backoff_base_ms, options.backoff_cap_ms, asked, random())
            log.info("disconnected: %s; next try in %d ms", reason.reason, delay)
            await asyncio.sleep(delay / 1_000)

    async def _connection(self, http: aiohttp.ClientSession) -> Broken:
        """One connection from start to end; returns why it ended and when another may be tried."""
        session = self._session
        session.broken = None
        try:
            token = self._token if isinstance(self._token, str) else await self._token()
            socket = await self._open_socket(http)
            link = Link(session, self._codec, socket, self._heard, self._room, self._options.tick_s)
            session.open(token, monotonic_ms())
            link.wake()
            self._link = link
            await link.run()
        except (aiohttp.ClientError, OSError, TimeoutError, ProtocolError) as failure:
            session.broken = session.broken or Broken(f"{type(failure).__name__}: {failure}", 0)
        finally:
            self._link, self._phase = None, Phase.OFFLINE
            self._follow()
            session.closed()
            self._received()
        return session.broken or Broken("the server closed the connection", 0)

    async def _open_socket(self, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        async with asyncio.timeout(self._options.connect_timeout_s):
            socket = await http.ws_connect(
                self.url,
                protocols=(self._codec.subprotocol,),
                max_msg_size=SERVER_FRAME_BYTES_MAX,
                timeout=aiohttp.ClientWSTimeout(ws_close=self._options.close_timeout_s),
            )
        if socket.protocol != self._codec.subprotocol:
            await socket.close()
            raise ProtocolError("BAD_FRAME", f"the server does not speak {self._codec.subprotocol}")
        return socket

    def _heard(self) -> None:
        phase = self._session.phase
        if phase is Phase.ONLINE and self._phase is not Phase.ONLINE:
            self.connections += 1
        self._phase = phase
        self._received()

    def _follow(self) -> None:
        """Take over where the server wants this client next time."""
        session = self._session
        wanted = session.goodbye.preferred_endpoint if session.goodbye else None
        if wanted is None and session.auth is not None:
            wanted = session.auth.preferred_endpoint
        if not wanted or not self._options.follow_endpoint or not wanted.startswith(("ws://", "wss://")):
            return
        if self.url.startswith("wss://") and not wanted.startswith("wss://"):
            log.warning("the server prefers an endpoint without TLS: not followed")
        else:
            self.url = wanted
