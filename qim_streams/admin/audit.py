"""The record of admin actions: who did what, when, from where, with what outcome. Append-only, no payload.

A line of JSON per step. An action has one before it is done (`begun`), synced to the disk, and one with its
outcome (`ended`): there is no action without a line, and one whose end is missing has an unknown outcome.
Each line names the digest of the one before it, so that a line that was changed, removed or put in between
shows (`problems`); who can write the whole file anew can forge it, so ship it elsewhere.

Invariants: one process writes a file (a lock); lines are under `LINE_MAX` bytes; what strangers are refused
takes at most `REFUSALS_PER_S` lines a second, the rest is counted in the next one.

Spec: §14.9.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from qim_streams.errors import ConfigError, Outcome, StoreUnavailable

LINE_MAX: Final = 4_096
TEXT_MAX: Final = 512
REFUSALS_PER_S: Final = 10
START: Final = "0" * 64


class Action(NamedTuple):
    """What somebody does. `origin`: an address, or the name of a terminal's user."""

    who: str
    role: str
    what: str
    origin: str


class AuditLog:
    """Appends to `path`. `now_ms` is the wall clock. Close it after use."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        """ConfigError when the file cannot be written, or another process writes it."""
        self._path, self._now_ms = path, now_ms
        self._lock = asyncio.Lock()
        self._second, self._refusals, self._untold = 0, 0, 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"audit_file: {path}: {error.strerror}; name a file that can be written"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise ConfigError(f"audit_file: {path}: another process writes it; name another file") from None
        self._number, self._before = self._resume()

    def _resume(self) -> tuple[int, str]:
        """Number and digest of the last line; a line that a crash cut off is ended."""
        number, before, cut = 0, START, False
        with self._path.open("rb") as file:
            for line in file:
                number, before, cut = number + 1, _digest(line.rstrip(b"\n")), not line.endswith(b"\n")
        if cut:
            os.write(self._file, b"\n")
        return number, before

    async def begin(self, action: Action) -> int:
        """Note that an action begins; its number. StoreUnavailable: it must not be done."""
        return await self._append({"step": "begun", **action._asdict()})

    async def end(self, number: int, outcome: int | str) -> None:
        """Note how action `number` ended: an HTTP status or a word."""
        await self._append({"step": "ended", "of": number, "outcome": outcome})

    async def refused(self, action: Action, outcome: int | str) -> None:
        """Note somebody who was refused; of many in a second only the first, and how many more."""
        second = self._now_ms() // 1_000
        if second != self._second:
            self._second, self._refusals = second, 0
        self._refusals += 1
        if self._refusals > REFUSALS_PER_S:
            self._untold += 1
            return
        untold, self._untold = self._untold, 0
        more = {"untold": untold} if untold else {}
        await self._append({"step": "refused", **action._asdict(), "outcome": outcome, **more})

    def close(self) -> None:
        """Give the file up."""
        os.close(self._file)

    async def _append(self, fields: dict[str, Any]) -> int:
        async with self._lock:
            number = self._number + 1
            shown = {name: _short(value) for name, value in fields.items()}
            row = {"n": number, "at_ms": self._now_ms(), **shown, "before": self._before}
            line = json.dumps(row, separators=(",", ":")).encode()
            assert len(line) <= LINE_MAX
            try:
                # Shielded: a request that goes away must not leave half a step.
                await asyncio.shield(asyncio.to_thread(self._write, line))
            except OSError as error:
                raise StoreUnavailable(f"the audit log: {error.strerror}", Outcome.NOT_APPLIED) from error
            self._number, self._before = number, _digest(line)
            return number

    def _write(self, line: bytes) -> None:
        written = os.write(self._file, line + b"\n")
        if written != len(line) + 1:
            with contextlib.suppress(OSError):
                os.write(self._file, b"\n")
            raise OSError(0, "a line was cut off")
        os.fsync(self._file)


def problems(lines: Iterator[bytes]) -> Iterator[str]:
    """What is wrong with the lines of a file: each is to name the one before it."""
    before, number = START, 0
    for number, line in enumerate(lines, 1):
        text = line.rstrip(b"\n")
        try:
            row = json.loads(text)
            if row["before"] != before:
                yield f"line {number}: does not follow the line before it"
            elif row["n"] != number:
                yield f"line {number}: has the number {row['n']}"
        except (ValueError, KeyError, TypeError):
            yield f"line {number}: is none of ours, or was cut off"
        before = _digest(text)


def _short(value: object) -> object:
    """A text as far as it takes `TEXT_MAX` bytes in a line: a character may take twelve."""
    if not isinstance(value, str):
        return value
    kept = value[:TEXT_MAX]
    while len(json.dumps(kept)) > TEXT_MAX + 2:
        kept = kept[: len(kept) * 3 // 4]
    return kept


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
