"""Whether a process serves, and if not, why: the same answer for every role and for whoever asks.

The one form is ``{"ready": bool, "reasons": [text, ...]}``, ready exactly when there is no reason against it.
A reason names what is wrong and since when, for a person; it holds no secret and no id of a user.

Invariants: asking costs no I/O, what needs some is looked at by a task of its own (`StoreWatch`); a single
failure of a store is no reason yet.

Spec: §11 rule 3 (never serve what has not caught up), §13 (a stall is seen).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
PATIENCE_S: Final = 1.5
FAILURES_MIN: Final = 2  # in a row
OK, UNAVAILABLE = 200, 503

Source = Callable[[], Sequence[str]]
"""Reasons against being ready, as of now; empty when there are none."""


class Readiness:
    """The reasons of one process, from all of its parts."""

    def __init__(self, *sources: Source) -> None:
        self._sources = list(sources)

    def add(self, source: Source) -> None:
        """Ask `source`, too. It must not wait."""
        self._sources.append(source)

    def reasons(self) -> list[str]:
        """All of them, as of now."""
        return [reason for source in self._sources for reason in source()]


def document(reasons: Sequence[str]) -> dict[str, Any]:
    """The answer in its one form."""
    return {"ready": not reasons, "reasons": list(reasons)}


def status_of(reasons: Sequence[str]) -> int:
    """The HTTP status that goes with it."""
    return UNAVAILABLE if reasons else OK


class StoreWatch:
    """Asks a store every two seconds whether it answers. `run` is its task, `reasons` a `Source`."""

    def __init__(
        self,
        name: str,
        ask: Callable[[], Awaitable[object]],
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`ask` raises when the store does not answer; it is given 1.5 seconds."""
        self._name, self._ask = name, ask
        self._monotonic, self._sleep = monotonic, sleep
        self._answered_s = monotonic()
        self._failures = 0

    def reasons(self) -> list[str]:
        """Why the store cannot be used; empty when it answered."""
        if self._failures < FAILURES_MIN:
            return []
        return [f"{self._name} has not answered for {self._monotonic() - self._answered_s:.0f} s"]

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await self._sleep(LOOK_S)

    async def look(self) -> None:
        """Ask once."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._ask()
        except Exception as error:  # noqa: BLE001 - whatever it is, the store has not answered
            self._failures += 1
            if self._failures == FAILURES_MIN:
                log.warning("%s does not answer: %s", self._name, type(error).__name__)
            return
        self._failures, self._answered_s = 0, self._monotonic()
