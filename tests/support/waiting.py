"""Wait on a condition with a deadline. The only place in the tests that sleeps."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
STEP_S = 0.02


async def eventually(condition: Callable[[], T | Awaitable[T]], within_s: float = 20.0, what: str = "") -> T:
    """The first truthy value of `condition` (sync or async); AssertionError with `what` after `within_s`."""
    deadline = time.monotonic() + within_s
    seen: object = None
    while time.monotonic() < deadline:
        value = condition()
        seen = await value if isinstance(value, Awaitable) else value
        if seen:
            return seen  # type: ignore[return-value]
        await asyncio.sleep(STEP_S)
    raise AssertionError(f"not within {within_s} s: {what or condition!r} (last value: {seen!r})")


def eventually_sync(condition: Callable[[], T], within_s: float = 20.0, what: str = "") -> T:
    """`eventually` for tests without a loop."""
    deadline = time.monotonic() + within_s
    seen: object = None
    while time.monotonic() < deadline:
        seen = condition()
        if seen:
            return seen  # type: ignore[return-value]
        time.sleep(STEP_S)
    raise AssertionError(f"not within {within_s} s: {what or condition!r} (last value: {seen!r})")
