"""The generator processes of a run, seen from the process that commands them.

Invariants: a command goes to all processes and is over when all have answered; a process that dies fails
the command with its number; `close` leaves no process behind.
"""

import asyncio
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from qim_streams.client.discovery import StackAddress
from qim_streams.errors import ConfigError
from qim_streams.loadgen.options import BenchOptions
from qim_streams.loadgen.plan import Plan
from qim_streams.loadgen.worker import Task, main

JOIN_S = 5.0

OnProgress = Callable[[int, dict[str, Any]], None]


class Fleet:
    """Use as an async context manager. `on_progress(process, what it says)` is called in the event loop."""

    def __init__(
        self,
        options: BenchOptions,
        plan: Plan,
        address: StackAddress,
        run: int,
        mailbox_shards: int,
        on_progress: OnProgress,
    ) -> None:
        self._tasks = [
            Task(options, plan, process, address, run, mailbox_shards) for process in range(plan.processes)
        ]
        self._on_progress = on_progress
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []

    async def __aenter__(self) -> "Fleet":
        context = multiprocessing.get_context("spawn")
        for task in self._tasks:
            ours, theirs = context.Pipe()
            process = context.Process(target=main, args=(theirs, task), name=f"qim-bench-{task.process}")
            process.daemon = True
            await asyncio.to_thread(process.start)
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for process in self._processes:
                process.kill()  # it may be in the middle of a command; its end also ends our readers
        for pipe in self._pipes:
            pipe.close()  # a process that reads the end of its pipe stops
        for process in self._processes:
            await asyncio.to_thread(process.join, JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid for process in self._processes if process.pid]

    async def all(self, name: str, *arguments: Any) -> list[Any]:
        """Give every process the same command; their answers in order of their numbers."""
        return await self.each(name, [arguments] * len(self._pipes))

    async def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Give every process the command with arguments of its own."""
        calls = (self._call(number, name, arguments[number]) for number in range(len(self._pipes)))
        return list(await asyncio.gather(*calls))

    async def _call(self, number: int, name: str, arguments: tuple[Any, ...]) -> Any:
        pipe = self._pipes[number]
        try:
            pipe.send((name, arguments))
            while True:
                kind, value = await asyncio.to_thread(pipe.recv)
                if kind != "progress":
                    break
                self._on_progress(number, value)
        except (EOFError, OSError):
            code = self._processes[number].exitcode
            raise ConfigError(
                f"generator process {number} ended (exit code {code}) during {name}; see its traceback above"
            ) from None
        if kind == "failed":
            raise ConfigError(f"generator process {number}, {name}: {value}")
        return value
