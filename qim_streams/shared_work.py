"""Work that several callers wait for: who goes away ends it for nobody else, a failure is the callers'.

asyncio logs an exception that nobody has asked for, with a traceback. Of shared work that is no defect: its
callers may all have gone away meanwhile, which a client brings about whenever it likes.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def shared(work: Coroutine[Any, Any, T], name: str | None = None) -> "asyncio.Task[T]":
    """Begin `work`; await it through `asyncio.shield`. The caller keeps the task."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_ask)
    return task


def _ask(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
