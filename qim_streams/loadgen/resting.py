"""A stack that comes to rest: what a run left behind (archive, lists, flushes) is not the next one's load."""

import asyncio
import time
from collections.abc import Awaitable, Callable

IDLE_CORES = 0.5  # of all processes together; nothing to do costs them a quarter of one
LOOK_S = 2.0
WAIT_MAX_S = 120.0


async def until_idle(
    cpu_s: Callable[[], float],
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bool:
    """Wait until `cpu_s`, seconds of CPU used so far, hardly grows any more; False after two minutes."""
    deadline_s = monotonic() + WAIT_MAX_S
    used, at_s = cpu_s(), monotonic()
    while at_s < deadline_s:
        await sleep(LOOK_S)
        now_used, now_s = cpu_s(), monotonic()
        if now_used - used < IDLE_CORES * (now_s - at_s):
            return True
        used, at_s = now_used, now_s
    return False
