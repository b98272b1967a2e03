"""A signed webhook: for vendors' channels that an operator reaches through a service of his own.

``POST`` with the notification as JSON. ``X-QIM-Timestamp`` is the time of the attempt in seconds,
``X-QIM-Signature`` is ``v1=`` and the HMAC-SHA256, in hex, of the timestamp, a dot and the body. The receiver
checks both (and refuses old timestamps). ``Idempotency-Key`` is the same in each attempt.

Any 2xx: taken. 410: the token is good no more. 408, 425, 429: later, for this device. Other 4xx: never. The
rest: the receiver is down.

Spec: §6. Scenario H11.
"""

import hashlib
import hmac
from collections.abc import Callable

from qim_streams.notification.httpx_calls import HttpCalls, Reply, Unreachable
from qim_streams.notification.payloads import webhook_payload
from qim_streams.notification.ports import Answer, Notification, Result
from qim_streams.notification.retry_after import retry_after_ms


class Webhook:
    """`Provider` of one address."""

    name = "webhook"

    def __init__(self, url: str, secret: bytes, calls: HttpCalls, now_s: Callable[[], float]) -> None:
        self._url, self._secret, self._calls, self._now_s = url, secret, calls, now_s

    async def send(self, notification: Notification) -> Answer:
        """See `Provider.send`."""
        body = webhook_payload(notification)
        at = str(int(self._now_s()))
        headers = {
            "content-type": "application/json",
            "idempotency-key": notification.notification_id.hex(),
            "x-qim-timestamp": at,
            "x-qim-signature": f"v1={signature(self._secret, at, body)}",
        }
        try:
            return answer_of(await self._calls.post(self._url, headers, body))
        except Unreachable as error:
            return Answer(Result.DOWN, str(error))

    async def close(self) -> None:
        """See `Provider.close`."""
        await self._calls.close()


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """The hex digits of the signature."""
    return hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def answer_of(reply: Reply) -> Answer:
    """What an answer of the receiver means."""
    status, wait = reply.status, retry_after_ms(reply.headers)
    if 200 <= status < 300:
        return Answer(Result.SENT)
    reason = f"HTTP {status}"
    if status == 410:
        return Answer(Result.DEAD, reason)
    if status in (408, 425, 429):
        return Answer(Result.BUSY, reason, wait)
    if 400 <= status < 500:
        return Answer(Result.REFUSED, reason)
    return Answer(Result.DOWN, reason, wait)
