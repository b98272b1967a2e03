"""Turns: sign-ons ask the stores in the order in which they came, a bounded number at once.

If thousands went side by side, all would end late together, past the deadline of AUTH, and what was read
for them would be read again and again. Whoever has not got his turn within `IN_LINE_S` is sent away with a
place in line (`crowd`) instead of being served when his client has given up: so a machine that turns out to
be slower than the crowd was measured against loses a few seconds, not everybody's.

Invariants: a turn that was taken is given back; whoever leaves the line takes none.

Spec: §7; reliability P16, T-X7.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from qim_streams.errors import AdmissionRefused
from qim_streams.gateway.crowd import Crowd

AT_ONCE_MAX: Final = 64
IN_LINE_S: Final = 5.0  # half of what a client gives an AUTH


class Turns:
    """One per gateway."""

    def __init__(self, crowd: Crowd, in_line_s: float = IN_LINE_S) -> None:
        self.crowd, self._in_line_s = crowd, in_line_s
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)

    def refuse_crowd(self) -> None:
        """AdmissionRefused OVERLOADED, with the time to come again, when too many wait already."""
        wait_ms = self.crowd.again_ms()
        if wait_ms:
            raise _overloaded(wait_ms)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn and have it; AdmissionRefused OVERLOADED when that takes too long."""
        self.crowd.enter()
        try:
            try:
                async with asyncio.timeout(self._in_line_s):
                    await self._slots.acquire()
            except TimeoutError:
                raise _overloaded(self.crowd.line_up_ms()) from None
            try:
                yield
            finally:
                self._slots.release()
        finally:
            self.crowd.leave()


def _overloaded(wait_ms: int) -> AdmissionRefused:
    return AdmissionRefused("OVERLOADED", "too many sign on at once", retry_after_ms=wait_ms)
