"""Keeps one device connected: one connection after another, with delays that spread clients out.

Invariants: a terminal answer ends it, everything else is tried again for ever; the delay is never below
what the server asked for and always has jitter. A token that was refused is not sent again: a token
source is asked for others, `token_attempts` times in a row. A preferred endpoint gets the access token,
so it is followed only on the host that the application named or on one that it allows, and never from
TLS to none. Tokens and bodies are never logged.

Spec: §7. Scenarios A13 I10 I13.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import random
from urllib.parse import urlsplit

import aiohttp

from qim_streams.client.backoff import retry_ms
from qim_streams.client.deliveries import Disconnected
from qim_streams.client.link import Link, monotonic_ms
from qim_streams.client.options import ClientOptions
from qim_streams.client.phases import Broken, Phase, ended_here
from qim_streams.client.session import Session
from qim_streams.errors import ClientStopped, ConfigError, ProtocolError
from qim_streams.limits import SERVER_FRAME_BYTES_MAX
from qim_streams.wire import JSON, MSGPACK

FOLLOW_ATTEMPTS = 3
TOKEN_REFUSED = ("TOKEN_EXPIRED", "BAD_TOKEN")
NOT_SPOKEN = (400, 426)  # HTTP answers to a handshake whose subprotocols the server does not know
RETRY_AFTER_MAX_MS = 60_000
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
        self._refused_token: str | None = None
        self._refusals = 0  # of tokens, in a row

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
            if session.ended is not None and not self._may_have_another_token():
                return ClientStopped(session.ended.name, session.ended.detail)
            if self._ending:
                return ClientStopped("CLOSED", "the client was closed")
            attempt = 1 if self.connections > before else attempt + 1
            if attempt > FOLLOW_ATTEMPTS:
                self.url = self._home  # the preferred endpoint does not work out
            asked = reason.retry_after_ms
            delay = retry_ms(attempt, options.backoff_base_ms, options.backoff_cap_ms, asked, random())
            log.info("disconnected: %s; next try in %d ms", reason.reason, delay)
            session.shown.append(Disconnected(reason.reason, delay))
            self._received()
            await asyncio.sleep(delay / 1_000)

    def _may_have_another_token(self) -> bool:
        """The token was refused, and there is a source that may have a better one."""
        refusal = self._session.ended
        if isinstance(self._token, str) or refusal is None or refusal.name not in TOKEN_REFUSED:
            return False
        self._refusals += 1
        return self._refusals < self._options.token_attempts

    async def _get_token(self) -> str:
        if isinstance(self._token, str):
            return self._token
        async with asyncio.timeout(self._options.connect_timeout_s):
            return await self._token()

    async def _connection(self, http: aiohttp.ClientSession) -> Broken:
        """One connection from start to end; returns why it ended and when another may be tried."""
        session, refusal = self._session, self._session.ended
        session.broken = session.ended = None
        try:
            token = await self._get_token()
            if refusal is not None and token == self._refused_token:
                session.ended = refusal
                return Broken(f"{refusal.name}, and the token source gives the same token", 0)
            self._refused_token = token
            socket = await self._open_socket(http)
            link = Link(session, self._codec, socket, self._heard, self._room, self._options.tick_s)
            session.open(token, monotonic_ms())
            link.wake()
            self._link = link
            await link.run()
        except aiohttp.WSServerHandshakeError as failure:
            session.broken = Broken(f"the server answered {failure.status}", _retry_after_ms(failure))
        except (aiohttp.ClientError, OSError, TimeoutError, ProtocolError) as failure:
            session.broken = session.broken or Broken(f"{type(failure).__name__}: {failure}", 0)
        finally:
            self._link, self._phase = None, Phase.OFFLINE
            self._follow()
            session.closed()
            self._received()
        if session.ended is not None:
            return Broken(f"{session.ended.name}: {session.ended.detail}", 0)
        return session.broken or Broken("the server closed the connection", 0)

    async def _open_socket(self, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        """ProtocolError, and `session.ended`, when the server does not speak this protocol."""
        wanted = self._codec.subprotocol
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                socket = await http.ws_connect(
                    self.url,
                    protocols=(wanted,),
                    max_msg_size=SERVER_FRAME_BYTES_MAX,
                    timeout=aiohttp.ClientWSTimeout(ws_close=self._options.close_timeout_s),
                )
        except aiohttp.WSServerHandshakeError as failure:
            if failure.status in NOT_SPOKEN:
                self._session.ended = ended_here("UNSUPPORTED_PROTOCOL", f"{self.url} refuses {wanted}")
            raise
        if socket.protocol != wanted:
            await socket.close()
            self._session.ended = ended_here("UNSUPPORTED_PROTOCOL", f"{self.url} does not speak {wanted}")
            raise ProtocolError("BAD_FRAME", f"the server does not speak {wanted}")
        return socket

    def _heard(self) -> None:
        phase = self._session.phase
        if phase is Phase.ONLINE and self._phase is not Phase.ONLINE:
            self.connections += 1
            self._refusals = 0
        self._phase = phase
        self._received()

    def _follow(self) -> None:
        """Take over where the server wants this client next time."""
        session = self._session
        wanted = session.goodbye.preferred_endpoint if session.goodbye else None
        if wanted is None and session.auth is not None:
            wanted = session.auth.preferred_endpoint
        if wanted and self._options.follow_endpoint and wanted != self.url:
            if self._is_allowed(wanted):
                self.url = wanted
            else:
                log.warning("the server prefers an endpoint that is not allowed here: not followed")

    def _is_allowed(self, wanted: str) -> bool:
        try:
            home, there = urlsplit(self._home), urlsplit(wanted)
            known = {home.hostname, *self._options.endpoint_hosts}
            secure_enough = there.scheme == "wss" or (there.scheme == "ws" and home.scheme == "ws")
            return secure_enough and bool(there.hostname) and there.hostname in known
        except ValueError:  # no URL at all
            return False


def _retry_after_ms(failure: aiohttp.WSServerHandshakeError) -> int:
    """What a server that is too busy asks for, in its header Retry-After; 0 when it does not."""
    asked = "" if failure.headers is None else failure.headers.get("Retry-After", "")
    return min(int(asked) * 1_000, RETRY_AFTER_MAX_MS) if asked.isascii() and asked.isdigit() else 0
