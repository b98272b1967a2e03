"""Ask a role whether it serves: over TCP, over HTTP, or by a function of its own.

A probe answers True or False within `PROBE_TIMEOUT_S`; whatever goes wrong in it means "not yet". What it
does not do: decide how long to wait, that is the supervisor's.
"""

import asyncio
import contextlib
import logging
from urllib.parse import urlsplit

from qim_streams.embedded.ports import LOOPBACK
from qim_streams.embedded.roles import Ready

PROBE_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)


async def is_ready(ready: Ready) -> bool:
    """One probe."""
    if ready is None:
        return True
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            if isinstance(ready, int):
                return await _accepts(LOOPBACK, ready)
            if isinstance(ready, str):
                return await _answers_2xx(ready)
            return await asyncio.to_thread(ready)
    except (OSError, TimeoutError, EOFError):
        return False
    except Exception:  # noqa: BLE001 - a probe of somebody else's making; a bug in it must be seen, not fatal
        _log.warning("readiness probe failed", exc_info=True)
        return False


async def _accepts(host: str, port: int) -> bool:
    _, writer = await asyncio.open_connection(host, port)
    await _close(writer)
    return True


async def _answers_2xx(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        return False
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        status = (await reader.readline()).split(b" ", 2)
        return len(status) >= 2 and status[1].startswith(b"2")
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
