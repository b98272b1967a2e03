"""Firebase Cloud Messaging, HTTP v1: access tokens by a service account's signed assertion.

One request per notification. One access token at a time, fetched by whoever needs it first and shared; it is
renewed before it ends, and at once when FCM does not take it.

Spec: §6.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

from qim_streams.notification.credentials import GRANT_TYPE, ServiceAccount
from qim_streams.notification.httpx_calls import HttpCalls, Reply, Unreachable
from qim_streams.notification.payloads import fcm_payload
from qim_streams.notification.ports import Answer, Notification, Result
from qim_streams.notification.retry_after import retry_after_ms

MARGIN_S: Final = 300.0  # an access token is renewed this long before its end
ERROR_TYPE: Final = "FcmError"
UNAUTHENTICATED: Final = "UNAUTHENTICATED"
QUOTA_MS: Final = 60_000  # what FCM asks to wait at least where it says nothing


class Fcm:
    """`Provider` of one Firebase project."""

    name = "fcm"

    def __init__(
        self,
        url: str,
        account: ServiceAccount,
        calls: HttpCalls,
        now_s: Callable[[], float],
        *,
        collapse: bool,
    ) -> None:
        self._send_url = f"{url.rstrip('/')}/v1/projects/{account.project_id}/messages:send"
        self._account, self._calls, self._now_s, self._collapse = account, calls, now_s, collapse
        self._token, self._good_until = "", 0.0
        self._fetching = asyncio.Lock()
        account.assertion(now_s())  # a key that cannot sign is found at the start

    async def send(self, notification: Notification) -> Answer:
        """See `Provider.send`. An access token that is not taken is renewed and tried once more."""
        try:
            token = await self._access_token("")
            if isinstance(token, Answer):
                return token
            answer = await self._once(notification, token)
            if answer.reason == UNAUTHENTICATED:
                token = await self._access_token(token)
                if isinstance(token, Answer):
                    return token
                answer = await self._once(notification, token)
        except Unreachable as error:
            return Answer(Result.DOWN, str(error))
        return answer

    async def close(self) -> None:
        """See `Provider.close`."""
        await self._calls.close()

    async def _once(self, one: Notification, token: str) -> Answer:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        body = fcm_payload(one, int(self._now_s()), collapse=self._collapse)
        return answer_of(await self._calls.post(self._send_url, headers, body))

    async def _access_token(self, refused: str) -> str | Answer:
        """A token other than `refused`, or why there is none."""
        async with self._fetching:
            if self._token != refused and self._now_s() < self._good_until:
                return self._token
            form = {"grant_type": GRANT_TYPE, "assertion": self._account.assertion(self._now_s())}
            headers = {"content-type": "application/x-www-form-urlencoded"}
            reply = await self._calls.post(self._account.token_uri, headers, urlencode(form).encode())
            found = _json(reply.body)
            token, lives_s = found.get("access_token"), found.get("expires_in")
            if reply.status != 200 or not isinstance(token, str) or type(lives_s) is not int:
                said = found.get("error")
                reason = f"token: {said[:64]}" if isinstance(said, str) else f"token: HTTP {reply.status}"
                return Answer(Result.DOWN, reason, retry_after_ms(reply.headers))
            self._token, self._good_until = token, self._now_s() + max(1.0, lives_s - MARGIN_S)
            return token


def answer_of(reply: Reply) -> Answer:
    """What an answer of FCM means."""
    if reply.status == 200:
        return Answer(Result.SENT)
    error = _json(reply.body).get("error")
    error = error if isinstance(error, dict) else {}
    status = error.get("status")
    code = _code(error) or (status if isinstance(status, str) else f"HTTP {reply.status}")
    wait = retry_after_ms(reply.headers)
    if code in ("UNREGISTERED", "SENDER_ID_MISMATCH") or (code == "INVALID_ARGUMENT" and _names_token(error)):
        return Answer(Result.DEAD, code)
    if reply.status == 401:
        return Answer(Result.DOWN, UNAUTHENTICATED, wait)
    if reply.status == 429:
        return Answer(Result.DOWN, code, QUOTA_MS if wait is None else wait)  # the project's quota
    if reply.status >= 500 or reply.status == 403:
        return Answer(Result.DOWN, code, wait)
    return Answer(Result.REFUSED, code)


def _code(error: dict[str, Any]) -> str:
    """The errorCode of FCM's own detail."""
    for one in _details(error):
        if str(one.get("@type", "")).endswith(ERROR_TYPE) and isinstance(one.get("errorCode"), str):
            return str(one["errorCode"])[:64]
    return ""


def _names_token(error: dict[str, Any]) -> bool:
    """Whether a bad request is about the token and not about what we made."""
    return any(
        isinstance(field, dict) and field.get("field") == "message.token"
        for one in _details(error)
        for field in (one.get("fieldViolations") or ())
    )


def _details(error: dict[str, Any]) -> list[dict[str, Any]]:
    found = error.get("details")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _json(data: bytes) -> dict[str, Any]:
    try:
        found: Any = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
