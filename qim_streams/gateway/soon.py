"""What is to be done for a key a moment later, once for all that came meanwhile, a few keys together.

Invariants: `put` never waits; as long as something waits one task runs, and it ends when nothing does; what
`handle` raises ends that task, so it must not raise.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Soon(Generic[K, V]):
    """At most `most` keys wait, each for at least `moment_s`; `together` of them are handled at once."""

    def __init__(
        self,
        name: str,
        handle: Callable[[K, V], Awaitable[None]],
        *,
        moment_s: float,
        together: int,
        most: int,
    ) -> None:
        self._name, self._handle = name, handle
        self._moment_s, self._together, self._most = moment_s, together, most
        self._waiting: dict[K, V] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether something was put, and all of it is handled."""
        return self._task is not None and self._task.done()

    def waiting(self, key: K) -> V | None:
        """What waits for a key."""
        return self._waiting.get(key)

    def put(self, key: K, value: V) -> None:
        """`value` instead of what waits for `key`; left out when too many keys wait."""
        if key not in self._waiting and len(self._waiting) >= self._most:
            return
        self._waiting[key] = value
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def close(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._moment_s)
            keys = list(self._waiting)[: self._together]
            await asyncio.gather(*(self._handle(key, self._waiting.pop(key)) for key in keys))
