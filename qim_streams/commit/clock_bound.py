"""The durable bound of a writer's clock: ids are issued only below a time that was stored before.

`ReservedClock` wraps the hybrid clock of the process: it stores a bound `RESERVE_MS` ahead, issues ids
below it and moves the bound on in good time, in the background. After a crash the next boot starts at the
stored bound, so its ids exceed every id issued before, whatever the wall clock does meanwhile. A clean stop
stores the bound close behind the last id.

Invariants: no id at or above the stored bound leaves this module.

Spec: §2.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from qim_streams.durable_file import write_durably
from qim_streams.errors import ConfigError
from qim_streams.hlc import HybridClock
from qim_streams.ids import MessageId

log = logging.getLogger(__name__)

RESERVE_MS = 5_000  # how far a restarted clock may be ahead of the wall clock
REFILL_MS = 2_500
Offload = Callable[[Callable[[int], None], int], Awaitable[None]]


class ClockBound(Protocol):
    """Where the bound is kept."""

    def load(self) -> int:
        """The stored bound in milliseconds, 0 when there is none. Blocking."""

    def store(self, bound_ms: int) -> None:
        """Make the bound durable. Blocking; OSError leaves the old one."""


class FileClockBound:
    """A `ClockBound` in one small file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> int:
        """See the port. ConfigError when the file is damaged: guessing could repeat ids."""
        try:
            text = self.path.read_text().strip()
        except FileNotFoundError:
            return 0
        if not text.isdigit():
            raise ConfigError(
                f"{self.path}: expected milliseconds since the epoch, found {text[:40]!r}; "
                "write a time later than the last run of this writer"
            )
        return int(text)

    def store(self, bound_ms: int) -> None:
        """See the port."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.path, f"{bound_ms}\n".encode())


class ReservedClock:
    """The clock of a process. `now_ms` is the wall clock; `node` a random u64, new at each boot."""

    def __init__(
        self, bound: ClockBound, node: int, now_ms: Callable[[], int], offload: Offload = asyncio.to_thread
    ) -> None:
        """`offload` runs the blocking store of a bound."""
        self._bound, self._now_ms, self._offload = bound, now_ms, offload
        self._clock = HybridClock(node=node, millis=bound.load())
        self._turn = asyncio.Lock()
        self._refill: asyncio.Task[None] | None = None

    async def ids(self, count: int) -> list[MessageId]:
        """`count` ids, increasing, above all ids issued or observed before.

        OSError when the bound cannot be stored and nothing is left below the old one.
        """
        now_ms = self._now_ms()
        if self._clock.needs_reserve(now_ms, REFILL_MS):
            if self._clock.needs_reserve(now_ms, 1 + count // 0xFFFF):
                await self._reserve()
            elif self._refill is None or self._refill.done():
                self._refill = asyncio.create_task(self._reserve_quietly())
        return [self._clock.next(now_ms) for _ in range(count)]

    def observe(self, message_id: bytes) -> None:
        """Move past an id of another writer; ClockDriftError if it is too far ahead."""
        self._clock.observe(message_id, self._now_ms())

    async def close(self) -> None:
        """Store a bound just above the last id, so that the next boot starts near the wall clock."""
        if self._refill is not None:
            await self._refill
        async with self._turn:
            await self._offload(self._bound.store, self._clock.millis + 1)

    async def _reserve(self) -> None:
        async with self._turn:
            bound_ms = max(self._now_ms(), self._clock.millis) + RESERVE_MS
            await self._offload(self._bound.store, bound_ms)
            self._clock.reserve(bound_ms)

    async def _reserve_quietly(self) -> None:
        try:
            await self._reserve()
        except OSError as error:
            log.error("clock bound not stored, trying again: %s", error)
