"""Blocking calls of a driver, off the event loop: one thread, in order, a bounded number of callers.

A thread does not make calls run in parallel where a driver keeps the interpreter lock; what it does is
to keep the loop free while disk or network are waited for, to use a driver from one thread only, and
to bound what can pile up in front of it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from qim_streams.errors import Outcome, StoreError, StoreUnavailable

CALLS_MAX = 1_024
P = ParamSpec("P")
T = TypeVar("T")


class BoundedCalls:
    """Runs blocking calls one after the other; more than `calls_max` outstanding ones are refused."""

    def __init__(self, name: str, *, calls_max: int = CALLS_MAX) -> None:
        self.name = name
        self._calls_max = calls_max
        self._outstanding = 0
        self._closed = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function(*args)`. StoreUnavailable when too many calls wait already.

        A cancelled caller does not stop a call that has begun: its outcome is unknown.
        """
        if self._closed:
            raise StoreError(f"{self.name} is closed", Outcome.NOT_APPLIED)
        if self._outstanding >= self._calls_max:
            raise StoreUnavailable(
                f"{self.name}: {self._outstanding} calls wait already", Outcome.NOT_APPLIED
            )
        self._outstanding += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))
        future.add_done_callback(self._done)
        return await asyncio.shield(future)

    def _done(self, future: "asyncio.Future[T]") -> None:
        self._outstanding -= 1
        if not future.cancelled():
            future.exception()  # the caller may be gone; an error nobody awaits is not worth a warning

    async def close(self, last: Callable[[], object]) -> None:
        """Refuse new calls, let the waiting ones end, then run `last` and release the thread."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._executor, last)
        self._executor.shutdown(wait=True)
