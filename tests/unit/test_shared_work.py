"""Work whose callers may all be gone: a failure is theirs, and no line in a log when there are none."""

import asyncio
import gc
from typing import Any

import pytest

from qim_streams.shared_work import shared


async def failing(begun: asyncio.Event, go: asyncio.Event) -> None:
    """Fails when it is told to."""
    begun.set()
    await go.wait()
    raise ValueError("no")


@pytest.mark.parametrize("stays", [True, False])
async def test_a_failure_is_its_callers(stays: bool) -> None:
    """Who stays gets it, who went away ended nothing; when nobody stayed nothing is said."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    begun, go = asyncio.Event(), asyncio.Event()
    task = shared(failing(begun, go), "work")

    async def caller(work: "asyncio.Task[None]") -> None:
        await asyncio.shield(work)

    callers = [asyncio.ensure_future(caller(task)) for _ in range(3)]
    await begun.wait()
    for one in callers[stays:]:
        one.cancel()
    await asyncio.sleep(0)
    go.set()
    ends = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(one) for one in ends] == [
        ValueError if stays else asyncio.CancelledError,
        *[asyncio.CancelledError] * 2,
    ]
    await asyncio.wait([task])
    del task, callers, ends
    gc.collect()
    await asyncio.sleep(0)
    assert said == []
