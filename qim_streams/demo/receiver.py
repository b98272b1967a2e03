"""What the demonstration's notifications and webhooks go to: a provider and an application on loopback.

Signatures are checked as a receiver should; what came is counted by message. Only ids and outcomes are kept.

Spec: §6 (offline), §1 (integration).
"""

import hmac
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

from qim_streams.notification.webhook import signature
from qim_streams.webhooks.signature import is_genuine

ENDPOINT: Final = "demo"
GRACE_MS: Final = 300
TOLERANCE_S: Final = 300


class DemoReceiver:
    """`shows.Receiver` on `port` of loopback. Use as an async context manager."""

    def __init__(self, port: int, secret: str) -> None:
        self._port, self._secret = port, secret.encode()
        self._requests: Counter[str] = Counter()
        self._outcomes: dict[str, str] = {}  # event -> outcome
        self._messages: dict[str, list[str]] = {}  # message -> events
        self._forged = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "DemoReceiver":
        app = web.Application()
        app.router.add_post("/push", self._notified)
        app.router.add_post("/events", self._told)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    # -- what came

    def requests(self, message_id: bytes) -> int:
        """See `Receiver.requests`."""
        return self._requests[message_id.hex()]

    def outcomes(self, message_id: bytes) -> list[str]:
        """See `Receiver.outcomes`."""
        return [self._outcomes[event] for event in self._messages.get(message_id.hex(), ())]

    @property
    def forged(self) -> int:
        """See `Receiver.forged`."""
        return self._forged

    # -- requests

    async def _notified(self, request: web.Request) -> web.Response:
        body = await request.read()
        at = request.headers.get("x-qim-timestamp", "")
        signed = request.headers.get("x-qim-signature", "")
        fresh = at.isdecimal() and abs(time.time() - int(at)) <= TOLERANCE_S
        if not fresh or not hmac.compare_digest(signed, f"v1={signature(self._secret, at, body)}"):
            self._forged += 1
            return web.Response(status=401)
        self._requests[json.loads(body)["message_id"]] += 1
        return web.Response(status=204)

    async def _told(self, request: web.Request) -> web.Response:
        body = await request.read()
        if not is_genuine(self._secret, dict(request.headers), body, int(time.time())):
            self._forged += 1
            return web.Response(status=401)
        for event in json.loads(body)["events"]:
            if event["id"] not in self._outcomes:
                self._outcomes[event["id"]] = event["outcome"]
                self._messages.setdefault(event["message_id"], []).append(event["id"])
        return web.Response(status=204)


def environment(folder: Path, port: int, secret: str, tenant: str) -> Mapping[str, str]:
    """Settings of a stack that tells a receiver on `port`; writes the files that they name into `folder`."""
    secret_file, webhooks = folder / "secret", folder / "webhooks.yaml"
    secret_file.write_text(secret, encoding="utf-8")
    endpoint = {
        "name": ENDPOINT,
        "tenant": tenant,
        "url": f"http://127.0.0.1:{port}/events",
        "secret_file": str(secret_file),
        "events": ["push.result"],
    }
    webhooks.write_text(json.dumps({"endpoints": [endpoint]}), encoding="utf-8")  # JSON is YAML
    return {
        "QIM_WEBHOOKS_FILE": str(webhooks),
        "QIM_NOTIFICATION_PROVIDERS": "webhook",
        "QIM_NOTIFICATION_GRACE_MS": str(GRACE_MS),
        "QIM_PUSH_WEBHOOK_URL": f"http://127.0.0.1:{port}/push",
        "QIM_PUSH_WEBHOOK_SECRET_FILE": str(secret_file),
    }
