"""Errors as JSON: ``{code, name, temporary, detail, field, retry_after_ms}``, one form for everything.

Codes below 600 are those of the clients' table (``wire.codes``); 6xx exist only here. The HTTP status
follows from the name. What a foreign exception says is logged and never sent.
"""

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from qim_streams.console.refusals import ConsoleRefusal
from qim_streams.errors import POLICY, Policy, ProtocolError, QimError
from qim_streams.wire import answers

log = logging.getLogger(__name__)


class ApiRefusal(QimError):
    """A request that HTTP itself refuses; `name` is a key of `OWN_CODES`."""

    def __init__(self, name: str, detail: str, *, field: str | None = None) -> None:
        super().__init__(f"{name}: {detail}")
        self.name, self.detail, self.field = name, detail, field


POLICY[ApiRefusal] = Policy.CRASH  # a row for the table: it never reaches a stream stage


class OwnCode(NamedTuple):
    """An error that only the API has."""

    code: int
    status: int
    temporary: bool = False


OWN_CODES: Final = {
    "API_KEY_REQUIRED": OwnCode(600, 401),
    "NO_SUCH_ROUTE": OwnCode(601, 404),
    "METHOD_NOT_ALLOWED": OwnCode(602, 405),
    "REQUEST_TOO_LARGE": OwnCode(603, 413),
    "REQUEST_TOO_SLOW": OwnCode(604, 408),
    "TOKENS_NOT_CONFIGURED": OwnCode(605, 409),
    "MESSAGE_NOT_FOUND": OwnCode(606, 404),
    "TOO_MANY_TRACES": OwnCode(607, 429, temporary=True),
    "BAD_REQUEST": OwnCode(608, 400),
    "ROLE_REQUIRED": OwnCode(609, 403),
    "API_BUSY": OwnCode(610, 503, temporary=True),
    "NO_USER": OwnCode(620, 404),
    "NO_LETTER": OwnCode(621, 404),
    "LETTER_DONE": OwnCode(622, 409),
}
_STATUS: Final = {
    "NO_CONVERSATION": 404,
    "NO_ROOM": 404,
    "NOT_ALLOWED": 403,
    "RATE_LIMITED": 429,
    "TOO_MANY_IN_FLIGHT": 429,
    "QUOTA_EXCEEDED": 429,
    "CONVERSATION_BUSY": 429,
    "INTERNAL": 500,
}
_STATUS_OF_CLASS: Final = {1: 422, 4: 409, 5: 503}  # by the hundreds of the code
_OF_HTTP: Final = {404: "NO_SUCH_ROUTE", 405: "METHOD_NOT_ALLOWED"}
TRACE_RETRY_MS: Final = 2_000
DETAIL_MAX: Final = 200


def answer(failure: BaseException) -> JSONResponse:
    """The answer to a request that ended with `failure`."""
    if isinstance(failure, ApiRefusal | ConsoleRefusal):
        return own(failure.name, failure.detail, failure.field)
    frame = answers.error_for(failure)
    body = {
        "code": frame.code,
        "name": frame.name,
        "temporary": frame.temporary,
        "detail": frame.detail,
        "field": frame.field,
        "retry_after_ms": frame.retry_after_ms,
    }
    status = _STATUS.get(frame.name) or _STATUS_OF_CLASS.get(frame.code // 100, 500)
    return _response(status, body)


def own(
    name: str, detail: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The answer for an error of `OWN_CODES`. `headers` go beside it."""
    row = OWN_CODES[name]
    body = {
        "code": row.code,
        "name": name,
        "temporary": row.temporary,
        "detail": detail,
        "field": field,
        "retry_after_ms": TRACE_RETRY_MS if row.temporary else None,
    }
    return _response(row.status, body, headers)


def _response(status: int, body: dict[str, Any], more: Mapping[str, str] | None = None) -> JSONResponse:
    headers = {"Cache-Control": "no-store", **(more or {})}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if body["retry_after_ms"] is not None:
        headers["Retry-After"] = str(max(1, -(-body["retry_after_ms"] // 1000)))
    return JSONResponse(body, status, headers)


def _allow(request: Request, failure: HTTPException) -> dict[str, str]:
    """The header Allow of a 405: of all routes of the path, of which the framework names the first one's."""
    own = (failure.headers or {}).get("Allow", "")
    found = {one for one in own.split(", ") if one}
    for path, verbs in request.app.openapi()["paths"].items():
        if _matching(path).fullmatch(request.scope["path"]):
            found |= {verb.upper() for verb in verbs}
    return {"Allow": ", ".join(sorted(found))}


@cache
def _matching(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))


def install(app: FastAPI) -> None:
    """Give every error of the application this form."""

    async def ours(request: Request, failure: Exception) -> JSONResponse:
        return answer(failure)

    async def unforeseen(request: Request, failure: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=failure)
        return answer(failure)

    async def invalid(request: Request, failure: Exception) -> JSONResponse:
        assert isinstance(failure, RequestValidationError)
        first = failure.errors()[0]
        # The place of a syntax error is a number of characters, not a field.
        path = () if first["type"] == "json_invalid" else first["loc"][1:]
        field = ".".join(str(part) for part in path) or str(first["loc"][0])
        return answer(ProtocolError("FIELD_INVALID", str(first["msg"]), field=field))

    async def http(request: Request, failure: Exception) -> JSONResponse:
        assert isinstance(failure, HTTPException)
        name = _OF_HTTP.get(failure.status_code, "BAD_REQUEST")
        # Not `request.url`: it is made from the Host header, too, and a line feed is not in it.
        asked = f"{request.method} {request.scope['path']}"
        detail = answers.shown(str(failure.detail) if name == "BAD_REQUEST" else asked, DETAIL_MAX)
        return own(name, detail, headers=_allow(request, failure) if failure.status_code == 405 else None)

    app.add_exception_handler(QimError, ours)
    app.add_exception_handler(TimeoutError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unforeseen)
