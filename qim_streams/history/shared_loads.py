"""Loads that concurrent callers share, and that are never older than the call that they answer.

A caller may share a load that begins after he asked, not one that is under way already: what that one
read may be older than what the caller knows (an edit that he has seen acknowledged). So of one key at
most two loads exist, one under way and one to follow; a rush of readers costs two reads instead of one
each.

Invariants: every value was read after its caller asked; a caller that goes away stops nobody else's
load; an error reaches every caller of the failed load and nobody else; at most `keys_max` keys wait or
are being read, more are refused with AdmissionRefused OVERLOADED.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from qim_streams.errors import AdmissionRefused

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedLoads(Generic[K, V]):
    """Coalesces `load`, which returns a value for each of its keys, in their order."""

    def __init__(self, load: Callable[[Sequence[K]], Awaitable[Sequence[V]]], keys_max: int) -> None:
        self._load, self._keys_max = load, keys_max
        self._running: dict[K, asyncio.Future[V]] = {}
        self._next: dict[K, asyncio.Future[V]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.shared = 0  # keys that joined a load of somebody else

    async def get(self, keys: Sequence[K]) -> list[V]:
        """A value for each of `keys` (distinct). Raises what `load` raised, or AdmissionRefused."""
        if not keys:
            return []
        if len(self._running) + len(self._next) + len(keys) > self._keys_max:
            raise AdmissionRefused("OVERLOADED", "too many pages are being read", retry_after_ms=200)
        now: list[K] = []
        later: list[K] = []
        waited: list[asyncio.Future[V]] = []
        loop = asyncio.get_running_loop()
        for key in keys:
            queued = self._next.get(key)
            if queued is not None:
                self.shared += 1
            elif key in self._running:
                queued = self._next[key] = loop.create_future()
                later.append(key)
            else:
                queued = self._running[key] = loop.create_future()
                now.append(key)
            waited.append(queued)
        if now:
            self._spawn(self._run(now))
        if later:
            self._spawn(self._follow(later, [self._running[key] for key in later]))
        await asyncio.wait(waited)  # not gather: that would cancel what others wait for with this caller
        return [one.result() for one in waited]

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, keys: Sequence[K], before: "Sequence[asyncio.Future[V]]") -> None:
        """Read `keys` as soon as the loads of them that were under way have ended."""
        await asyncio.wait(before)
        for key in keys:
            self._running[key] = self._next.pop(key)
        await self._run(keys)

    async def _run(self, keys: Sequence[K]) -> None:
        futures = [self._running[key] for key in keys]
        try:
            values = await self._load(keys)
        except BaseException as error:
            self._leave(keys)
            for future in futures:
                if isinstance(error, Exception):
                    future.set_exception(error)
                    future.exception()  # the callers may all be gone
                else:
                    future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        self._leave(keys)
        for future, value in zip(futures, values, strict=True):
            future.set_result(value)

    def _leave(self, keys: Sequence[K]) -> None:
        for key in keys:
            del self._running[key]
