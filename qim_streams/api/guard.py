"""What stands before every route: keys and roles, and how large and how slow a request may be.

Keys are compared by digest in constant time, so neither a length nor a common prefix shows in the time of
the answer; what each may do and what is noted of it is `admin.http`. A body is read whole before a route
runs: at most `limits.API_BODY_BYTES_MAX` bytes, within `BODY_SECONDS_MAX`; what announces more is refused
before it is read. The body of who shows no key is not read at all, and does not count: `limits.
API_REQUESTS_MAX` requests of those who do are worked on at once. A path with a control character is none of
ours: a router that matches up to the last line feed sees another path than who decides about roles.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qim_streams import limits
from qim_streams.admin.http import Gatekeeper
from qim_streams.admin.rules import Role
from qim_streams.api.failures import ApiRefusal, answer
from qim_streams.ids import has_control

BODY_SECONDS_MAX: Final = 10.0
_BEARER = HTTPBearer(auto_error=False, description="the key of QIM_ADMIN_API_KEY")
_HEADER = APIKeyHeader(name="X-Api-Key", auto_error=False, description="the same key")


def require_key(gate: Gatekeeper) -> Callable[..., Awaitable[None]]:
    """A dependency that lets pass whom `gate` lets, by a key in Authorization: Bearer or X-Api-Key."""

    async def check(
        request: Request,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
        header: Annotated[str | None, Depends(_HEADER)],
    ) -> None:
        given = bearer.credentials if bearer is not None else header
        wanted = await gate.enter(request.scope, given)
        if wanted is Role.READER:
            raise ApiRefusal("API_KEY_REQUIRED", "send an admin key as Authorization: Bearer or X-Api-Key")
        if wanted is not None:
            raise ApiRefusal("ROLE_REQUIRED", f"this needs a key of role {wanted.name.lower()}")

    return check


class BodyLimit:
    """ASGI middleware: the whole body first, bounded in size and time, then the application.

    `knows` says whether a request shows a key.
    """

    def __init__(
        self,
        app: ASGIApp,
        knows: Callable[[Scope], bool],
        *,
        bytes_max: int = limits.API_BODY_BYTES_MAX,
        requests_max: int = limits.API_REQUESTS_MAX,
    ) -> None:
        self._app, self._knows = app, knows
        self._bytes_max, self._requests_max = bytes_max, requests_max
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection's request; other scopes pass untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if has_control(scope["path"]):
            await answer(ApiRefusal("NO_SUCH_ROUTE", "no path has a control character"))(scope, receive, send)
        elif self._announces_too_much(scope):
            await answer(self._too_large())(scope, receive, send)
        elif not self._knows(scope):
            await self._app(scope, _replay(b"", receive), send)
        elif self._running >= self._requests_max:
            await answer(ApiRefusal("API_BUSY", f"{self._running} requests are worked on"))(
                scope, receive, send
            )
        else:
            self._running += 1
            try:
                await self._read_and_run(scope, receive, send)
            finally:
                self._running -= 1

    async def _read_and_run(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
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

    def _announces_too_much(self, scope: Scope) -> bool:
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        return announced.isdigit() and (len(announced) > 18 or int(announced) > self._bytes_max)

    def _too_large(self) -> ApiRefusal:
        return ApiRefusal("REQUEST_TOO_LARGE", f"a body may have {self._bytes_max} bytes")

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
                raise self._too_large()
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
