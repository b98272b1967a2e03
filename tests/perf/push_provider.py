"""The provider of a measurement of notifications, in a process of its own: APNs over TLS and HTTP/2.

    python -m tests.perf.push_provider (started by `tests.perf.notifications`)

It is the one that the tests have (`tests.support.push_servers`), but for the check of each request's JWT,
which would take longer than the rest. A question may say "forget", and "closely"; the answer is what has come
since the last "forget": how many requests, with "closely" how many notifications (token and message) these
were, when the first and the last of them came (monotonic seconds, which all processes share), and the
environment that leads here.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from tests.perf.beside import answer, questions
from tests.support.push_servers import Authority, FakeProviders, Reply, Request


class CountedProvider:
    """Answers 200, and counts."""

    def __init__(self, fake: FakeProviders) -> None:
        self._fake, self._first_s, self._last_s = fake, 0.0, 0.0
        fake.script = self._reply
        self._environment = {f"QIM_{name.upper()}": str(v) for name, v in fake.settings("apns").items()}

    def _reply(self, request: Request) -> Reply:
        self._last_s = time.monotonic()
        self._first_s = self._first_s or self._last_s
        return Reply(200, None, {"apns-id": request.headers["apns-id"]})

    def look(self, *, forget: bool, closely: bool) -> dict[str, Any]:
        """See the module text. Only a close look tells notifications apart, which takes a while."""
        if forget:
            self._fake.requests.clear()
            self._first_s = self._last_s = 0.0
        return {
            "requests": len(self._fake.requests),
            "notifications": len(self._fake.per_message) if closely else 0,
            "first_s": self._first_s,
            "last_s": self._last_s,
            "environment": self._environment,
        }


async def _serve() -> None:
    with tempfile.TemporaryDirectory(prefix="qim-provider-") as folder:
        async with FakeProviders(Authority(Path(folder))) as fake:
            provider = CountedProvider(fake)
            async for question in questions():
                closely = bool(question.get("closely"))
                answer(provider.look(forget=bool(question.get("forget")), closely=closely))


if __name__ == "__main__":
    uvloop.run(_serve())
