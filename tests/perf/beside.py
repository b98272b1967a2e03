"""A part of a measurement in a process of its own, spoken with in lines of JSON: a question, an answer.

So what the measuring program does at that moment is in nobody's figures. The end of its input is its end.
"""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from typing import Any

from tests.perf.processes import ROOT, MeasurementError

LINE_BYTES_MAX = 1 << 20
STOP_S = 10.0


class Beside:
    """The process, as the measurement sees it."""

    def __init__(self, process: asyncio.subprocess.Process, module: str) -> None:
        self._process, self._module = process, module

    @classmethod
    async def start(cls, module: str) -> "Beside":
        """Start `python -m module`."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, stdin=PIPE, stdout=PIPE, cwd=ROOT, limit=LINE_BYTES_MAX
        )
        return cls(process, module)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Its answer. MeasurementError when it has ended; what it said of that is on stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise MeasurementError(f"{self._module} has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def questions() -> AsyncIterator[dict[str, Any]]:
    """In the process: what is asked; `answer` each."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        yield json.loads(line)


def answer(what: dict[str, Any]) -> None:
    """In the process: the answer to the last question."""
    print(json.dumps(what), flush=True)
