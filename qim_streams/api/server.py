"""The admin API on a socket: uvicorn, with bounds (`connections`), in the event loop of its role.

Loopback unless told otherwise. Whoever binds to another address without a certificate puts a proxy that
speaks TLS in front, and is told so once.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from qim_streams import limits
from qim_streams.api.connections import LOOK_S, Watch
from qim_streams.errors import ConfigError

KEEP_ALIVE_S = 5
HEADER_BYTES_MAX = 16 * 1024
STOP_SECONDS_MAX = 5

log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the role."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers as they are."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one. ConfigError names the setting when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(limits.API_CONNECTIONS_MAX)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"QIM_API_HOST, QIM_API_PORT: cannot listen on {host} port {port} ({error.strerror}); "
            "free the port, or set another one, or 0 for any"
        ) from error
    return listener


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve(
    app: ASGIApp, listener: socket.socket, stop: asyncio.Event, tls: ssl.SSLContext | None = None
) -> None:
    """Serve until `stop` is set; requests in progress get five seconds to end."""
    host, port = listener.getsockname()[:2]
    if tls is None and not is_loopback(host):
        log.warning("the admin API listens on %s without TLS: put a proxy in front of it", host)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http="h11",
        proxy_headers=False,
        limit_concurrency=None,  # it counts connections, so idle ones would keep everybody out: see `guard`
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_SECONDS_MAX,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    watching = asyncio.create_task(_watch(server))
    log.info("admin API on %s://%s:%d", "http" if tls is None else "https", host, port)
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        stopping.cancel()
        await serving
        watching.cancel()
        await asyncio.wait([watching])


async def _watch(server: uvicorn.Server) -> None:
    """End connections that take too long, or are too many, until it is cancelled."""
    loop, watch = asyncio.get_running_loop(), Watch(limits.API_CONNECTIONS_MAX)
    while True:
        await asyncio.sleep(LOOK_S)
        known = [one for one in server.server_state.connections if isinstance(one, H11Protocol)]
        ended = watch.look(known, loop.time())
        if ended:
            log.info("%d connections ended: they asked for nothing, or did not read, for too long", ended)
