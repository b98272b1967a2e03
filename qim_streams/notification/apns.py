"""Apple Push Notification service: HTTP/2, token authentication.

One request per notification to ``/3/device/<token>``. `apns-id` is made of the notification's id and is the
same in each attempt; `apns-collapse-id` makes a repeat replace what the device shows.

Spec: §6.
"""

import json
import uuid
from typing import Any, Final
from urllib.parse import quote

from qim_streams.notification.credentials import ApnsTokens
from qim_streams.notification.httpx_calls import HttpCalls, Reply, Unreachable
from qim_streams.notification.payloads import apns_payload
from qim_streams.notification.ports import Answer, Notification, Result
from qim_streams.notification.retry_after import retry_after_ms

DEAD: Final = frozenset({"BadDeviceToken", "DeviceTokenNotForTopic", "Unregistered", "ExpiredToken"})
EXPIRED: Final = "ExpiredProviderToken"
# The operator's to mend: until then nothing gets through, so nothing is tried at full speed.
OURS: Final = frozenset(
    {EXPIRED, "InvalidProviderToken", "MissingProviderToken", "TooManyProviderTokenUpdates", "Forbidden"}
)
_KEY_BYTES_MAX: Final = 64  # of apns-collapse-id


class Apns:
    """`Provider` of one APNs host. `app` of a device is its topic; empty: `topic`."""

    name = "apns"

    def __init__(self, url: str, topic: str, tokens: ApnsTokens, calls: HttpCalls) -> None:
        self._url, self._topic, self._tokens, self._calls = url.rstrip("/"), topic, tokens, calls

    async def send(self, notification: Notification) -> Answer:
        """See `Provider.send`. A provider token that is called expired is renewed and tried once more."""
        answer = await self._once(notification)
        if answer.reason == EXPIRED and self._tokens.renew():
            answer = await self._once(notification)
        return answer

    async def close(self) -> None:
        """See `Provider.close`."""
        await self._calls.close()

    async def _once(self, one: Notification) -> Answer:
        headers = {
            "authorization": f"bearer {self._tokens.current()}",
            "apns-topic": one.app or self._topic,
            "apns-push-type": "alert",
            "apns-priority": "10",
            "apns-id": str(uuid.UUID(bytes=one.notification_id)),
            "apns-expiration": str(one.expires_at),
            "apns-collapse-id": one.collapse_key[:_KEY_BYTES_MAX],
            "content-type": "application/json",
        }
        url = f"{self._url}/3/device/{quote(one.token, safe='')}"
        try:
            return answer_of(await self._calls.post(url, headers, apns_payload(one)))
        except Unreachable as error:
            return Answer(Result.DOWN, str(error))


def answer_of(reply: Reply) -> Answer:
    """What an answer of APNs means."""
    if reply.status == 200:
        return Answer(Result.SENT)
    reason, dead_since = _body(reply.body)
    reason = reason or f"HTTP {reply.status}"
    wait = retry_after_ms(reply.headers)
    if reply.status == 410 or reason in DEAD:
        return Answer(Result.DEAD, reason, dead_since_ms=dead_since)
    if reason in OURS or reply.status >= 500:
        return Answer(Result.DOWN, reason, wait)
    if reply.status == 429:
        return Answer(Result.BUSY, reason, wait)  # "too many requests for the same device token"
    return Answer(Result.REFUSED, reason)


def _body(data: bytes) -> tuple[str, int | None]:
    try:
        found: Any = json.loads(data)
    except ValueError:
        return "", None
    if not isinstance(found, dict):
        return "", None
    reason, at = found.get("reason"), found.get("timestamp")
    return (reason[:64] if isinstance(reason, str) else "", at if type(at) is int else None)
