"""Operation histories: one JSON line per event, written while a test runs and read by its checkers.

A line is ``{time_ns, process, op, phase, value, error, call}``. Phases: ``invoke`` opens a call, ``ok``
and ``fail`` close it with a known outcome, ``info`` closes it with an unknown one (it may or may not
have happened). ``call`` joins a completion to its invocation, because one client has many sends in
flight. Marks (``measure``, ``injecting``, ``injected``, ``healing``, ``healed``) are lines of process
``nemesis`` with phase ``info``.

Invariants: a call has one invocation and at most one completion; a call without completion counts as
``info``; a line is written whole or not at all (a torn last line of a killed writer is ignored).
Bytes in values are written as hex by the caller. It checks nothing about messages: see ``oracle``.

Spec: §3.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from qim_streams.errors import ConfigError

PHASES = ("invoke", "ok", "fail", "info")
MARKS = ("measure", "injecting", "injected", "healing", "healed")
NEMESIS = "nemesis"
LINE_BYTES_MAX = 1_048_576


class Line(NamedTuple):
    """One line of a history. `value` and `error` are plain JSON values."""

    time_ns: int
    process: str
    op: str
    phase: str
    value: Any
    error: str | None
    call: int


@dataclass(slots=True)
class Operation:
    """An invocation and how it ended; `phase` is ok, fail or info, `result` the completion's value."""

    process: str
    op: str
    value: Any
    phase: str
    result: Any
    error: str | None
    start_ns: int
    end_ns: int | None


class HistoryWriter:
    """Appends lines to a file. One writer per file; `clock_ns` is a clock that never goes back."""

    def __init__(self, path: Path, clock_ns: Callable[[], int]) -> None:
        self._file: IO[str] = path.open("a", encoding="utf-8")
        self._clock_ns = clock_ns
        self._calls = 0

    def invoke(self, process: str, op: str, value: Any) -> int:
        """Write the start of a call; returns the number that its completion is given."""
        self._calls += 1
        self._write(process, op, "invoke", value, None, self._calls)
        return self._calls

    def complete(
        self, call: int, process: str, op: str, phase: str, value: Any = None, error: str | None = None
    ) -> None:
        """Write the end of a call. `phase`: ok, fail (it did not happen) or info (unknown)."""
        if phase not in PHASES[1:]:
            raise ValueError(f"phase {phase!r} does not end a call; use ok, fail or info")
        self._write(process, op, phase, value, error, call)

    def mark(self, name: str, value: Any = None) -> None:
        """Write a mark of the fault plan and flush, so that a kill does not lose where we were."""
        if name not in MARKS:
            raise ValueError(f"mark {name!r} is not one of {', '.join(MARKS)}")
        self._write(NEMESIS, name, "info", value, None, 0)
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _write(self, process: str, op: str, phase: str, value: Any, error: str | None, call: int) -> None:
        line = Line(self._clock_ns(), process, op, phase, value, error, call)
        self._file.write(json.dumps(line._asdict(), separators=(",", ":")) + "\n")


def read_history(path: Path) -> Iterator[Line]:
    """The lines of a file in order; ConfigError names the line that is not one.

    A last line without a line end is what a killed writer leaves: it is skipped.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), 1):
            if not raw.endswith(b"\n"):
                if file.read(1):
                    raise ConfigError(f"{path} line {number}: longer than {LINE_BYTES_MAX} bytes")
                return
            yield _line(path, number, raw)


def _line(path: Path, number: int, raw: bytes) -> Line:
    try:
        line = Line(**json.loads(raw))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} line {number}: not a history line ({error})") from None
    if line.phase not in PHASES:
        raise ConfigError(f"{path} line {number}: phase {line.phase!r} is not one of {', '.join(PHASES)}")
    return line


def operations(lines: Iterable[Line]) -> list[Operation]:
    """Every call in the order of its invocation; ConfigError for a completion without an open call."""
    calls: dict[int, Operation] = {}
    open_calls: set[int] = set()
    for line in lines:
        if line.process == NEMESIS:
            continue
        if line.phase == "invoke":
            if line.call in calls:
                raise ConfigError(f"call {line.call} of {line.process} is invoked twice")
            calls[line.call] = Operation(
                line.process, line.op, line.value, "info", None, None, line.time_ns, None
            )
            open_calls.add(line.call)
            continue
        if line.call not in open_calls:
            raise ConfigError(f"call {line.call} of {line.process} is completed without an open invocation")
        open_calls.discard(line.call)
        done = calls[line.call]
        done.phase, done.result, done.error, done.end_ns = line.phase, line.value, line.error, line.time_ns
    return list(calls.values())


def marks(lines: Iterable[Line]) -> list[tuple[str, int, Any]]:
    """The marks of the fault plan: name, time in nanoseconds, value."""
    return [(line.op, line.time_ns, line.value) for line in lines if line.process == NEMESIS]
