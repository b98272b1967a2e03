"""A request, its answer, and its repeats: while the answer is "not now", and over any number of connections.

Invariants: a request that is repeated is safe to repeat (the caller's choice of frames); the delay is
never below what the server asked for; an answer of another kind is a broken server.

Spec: §7.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from qim_streams.client.backoff import retry_ms
from qim_streams.errors import AdmissionRefused, ProtocolError
from qim_streams.wire.frames import ClientFrame, Error, ServerFrame

if TYPE_CHECKING:
    from qim_streams.client.client import QimClient

RETRY_BASE_MS = 50
RETRY_CAP_MS = 5_000
F = TypeVar("F", bound=ServerFrame)


class Requests:
    """Requests of one client. `timeout_s` bounds each with its repeats, unless it has its own."""

    def __init__(self, client: "QimClient", random: Callable[[], float], timeout_s: float = 60.0) -> None:
        self._client, self._random, self._timeout_s = client, random, timeout_s

    def wake(self) -> None:
        """Frames were queued in the session: write them."""
        self._client.wake()

    async def ready(self) -> None:
        """Wait until requests can be sent. ClientStopped when that will never be."""
        await self._client.wait_authenticated()

    async def ask(
        self, make: Callable[[int], ClientFrame], kind: type[F], timeout_s: float | None = None
    ) -> F:
        """The answer to the frame that `make` makes of a request id.

        AdmissionRefused: refused for good. ClientStopped. TimeoutError: no answer, outcome unknown.
        """
        attempt = 0
        async with asyncio.timeout(self._timeout_s if timeout_s is None else timeout_s):
            while True:
                attempt += 1
                answer = await self._once(make)
                if isinstance(answer, kind):
                    return answer
                if answer is not None and not isinstance(answer, Error):
                    raise ProtocolError("UNKNOWN_FRAME", f"{type(answer).__name__} is no answer to this")
                if answer is not None and not answer.temporary:
                    raise AdmissionRefused(answer.name, answer.detail)
                asked = answer.retry_after_ms if answer is not None else None
                delay = retry_ms(attempt, RETRY_BASE_MS, RETRY_CAP_MS, asked, self._random())
                await asyncio.sleep(delay / 1_000)

    async def _once(self, make: Callable[[int], ClientFrame]) -> ServerFrame | None:
        await self.ready()
        future: asyncio.Future[ServerFrame | None] = asyncio.get_running_loop().create_future()

        def answered(answer: ServerFrame | None) -> None:
            if not future.done():
                future.set_result(answer)

        session = self._client.session
        rid = session.call(make, answered)
        self._client.wake()
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                session.forget_call(rid)
