"""Ask a role whether it serves: over TCP, over HTTP, or by a function of its own; and why it does not.

A probe ends within its time-out and says what is missing. A `ConfigError` out of a role's own function
passes through: waiting does not heal it. What this does not do: decide how long to wait, that is the
supervisor's.
"""

import asyncio
import contextlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from qim_streams.embedded.ports import LOOPBACK
from qim_streams.embedded.roles import Ready
from qim_streams.errors import ConfigError
from qim_streams.tls import loopback_context

CONNECT_TIMEOUT_S = 2.0
SILENCE_S = 8.0  # of a role that writes every second
REASONS_MAX, REASON_MAX, REASONS_BYTES_MAX = 8, 200, 64 * 1024
CALL_TIMEOUT_S = 20.0  # a function may do some work, such as creating topics


Health = Callable[[], list[str]]
"""Why a role that runs does not serve as it should; empty when it does. Run on another thread; may wait."""


def told_by_page(url: str) -> Health:
    """The reasons that a page gives in the form ``{"ready": ..., "reasons": [...]}``."""

    tls = loopback_context() if url.startswith("https:") else None

    def ask() -> list[str]:
        try:
            with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S, context=tls) as answer:  # noqa: S310 - our own URL
                return _reasons(answer.read(REASONS_BYTES_MAX))
        except urllib.error.HTTPError as refusal:
            with refusal:
                return _reasons(refusal.read(REASONS_BYTES_MAX)) or [f"answers {refusal.code}"]
        except (OSError, http.client.HTTPException) as error:
            return [f"does not answer: {error}"]

    return ask


def told_by_file(path: Path, wall_s: Callable[[], float] = time.time) -> Health:
    """The reasons in a file that the role writes again every second; silence is one."""

    def ask() -> list[str]:
        try:
            raw = path.read_bytes()
            silent_s = wall_s() - int(json.loads(raw)["at_ms"]) / 1_000
        except (OSError, ValueError, KeyError, TypeError):
            return ["has not said yet how it is"]
        if silent_s > SILENCE_S:
            return [f"has said nothing for {silent_s:.0f} s"]
        return _reasons(raw)

    return ask


def _reasons(raw: bytes) -> list[str]:
    try:
        said = json.loads(raw)
        return [str(reason)[:REASON_MAX] for reason in said["reasons"][:REASONS_MAX]]
    except (ValueError, KeyError, TypeError):
        return ["does not say how it is in a form that is understood"]


async def probe(ready: Ready) -> str | None:
    """None when the role is ready, else what was missing; ConfigError when waiting is in vain."""
    if ready is None:
        return None
    try:
        if isinstance(ready, int):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await _accepts(LOOPBACK, ready)
            return None
        if isinstance(ready, str):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await _answers_2xx(ready)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await _says_true(ready)
    except TimeoutError:
        return "no answer in time"
    except (OSError, EOFError) as error:
        return str(error) or type(error).__name__


async def _says_true(call: Callable[[], bool]) -> str | None:
    try:
        return None if await asyncio.to_thread(call) else "not yet"
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - somebody else's code; what it raised is shown to the operator
        return f"{type(error).__name__}: {error}"


async def _accepts(host: str, port: int) -> None:
    _, writer = await asyncio.open_connection(host, port)
    await _close(writer)


async def _answers_2xx(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ConfigError(f"readiness URL {url!r}: must be http://host:port/path")
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        first_line = (await reader.readline()).decode("latin-1").strip()
        code = first_line.partition(" ")[2]
        return None if code.startswith("2") else f"answered {first_line[:80]!r}"
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
