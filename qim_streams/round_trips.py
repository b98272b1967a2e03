"""Round trips of one event loop: what is asked while one is under way goes together in the next.

The first ask leaves in the same turn of the loop, so a quiet process has the latency of one round trip and a
busy one pays per batch. Invariants: asks are carried in the order in which they came, one batch at a time.
`carry` answers every ask of its batch and raises nothing.

What it does not do: bound what waits; each caller waits for its own answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundTrips(Generic[T]):
    """`count(waiting)` says how many of those at the front go in the next batch, at least one."""

    def __init__(self, count: Callable[[list[T]], int], carry: Callable[[list[T]], Awaitable[None]]) -> None:
        self._count, self._carry = count, carry
        self._waiting: list[T] = []
        self._sender: asyncio.Task[None] | None = None

    def add(self, ask: T) -> None:
        """Have `ask` carried; never waits."""
        self._waiting.append(ask)
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._carry_all())

    async def _carry_all(self) -> None:
        try:
            while self._waiting:
                size = self._count(self._waiting)
                batch, self._waiting = self._waiting[:size], self._waiting[size:]
                await self._carry(batch)
        finally:
            self._sender = None
