"""What stands before every route: the API key, and how large and how slow a request may be.

The key is compared by digest in constant time, so neither its length nor a common prefix shows in the
time of the answer. A body is read whole before a route runs: at most `limits.API_BODY_BYTES_MAX`
bytes, within `BODY_SECONDS_MAX`; what announces more is refused before it is read.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Depends
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qim_streams import limits
from qim_streams.api.failures import ApiRefusal, answer

BODY_SECONDS_MAX: Final = 10.0
_BEARER = HTTPBearer(auto_error=False, description="the key of QIM_ADMIN_API_KEY")
_HEADER = APIKeyHeader(name="X-Api-Key", auto_error=False, description="the same key")


def require_key(key: bytes) -> Callable[..., Awaitable[None]]:
    """A dependency that lets only requests with `key` pass, by Authorization: Bearer or X-Api-Key."""
    expected = hashlib.sha256(key).digest()

    async def check(
        bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
        header: Annotated[str | None, Depends(_HEADER)],
    ) -> None:
        given = bearer.credentials if bearer is not None else header
        digest = hashlib.sha256((given or "").encode("utf-8", "surrogateescape")).digest()
        if not hmac.compare_digest(digest, expected) or given is None:
            raise ApiRefusal("API_KEY_REQUIRED", "send the admin key as Authorization: Bearer or X-Api-Key")

    return check


class BodyLimit:
    """ASGI middleware: the whole body first, bounded in size and time, then the application."""

    def __init__(self, app: ASGIApp, *, bytes_max: int = limits.API_BODY_BYTES_MAX) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection's request; other scopes pass untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_announced(scope)
            async with asyncio.timeout(BODY_SECONDS_MAX):
                body = await self._read(receive)
        except TimeoutError:
            refusal = ApiRefusal("REQUEST_TOO_SLOW", f"no whole body within {BODY_SECONDS_MAX:.0f} s")
            await answer(refusal)(scope, receive, send)
            return
        except ApiRefusal as refusal:
            await answer(refusal)(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    def _check_announced(self, scope: Scope) -> None:
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._bytes_max:
            raise ApiRefusal("REQUEST_TOO_LARGE", f"a body may have {self._bytes_max} bytes")

    async def _read(self, receive: Receive) -> bytes | None:
        """The body; None when the client has gone."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > self._bytes_max:
                raise ApiRefusal("REQUEST_TOO_LARGE", f"a body may have {self._bytes_max} bytes")
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
