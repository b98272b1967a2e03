"""The record of admin actions: who did what, when, from where, with what outcome. Append-only, no payload.

A line of JSON per step (`audit_lines`). An action has one before it is done (`begun`), synced to the disk,
and one with its outcome (`ended`): there is no action without a line, and one whose end is missing has an
unknown outcome. Who can write the files anew can forge them, so ship them elsewhere.

Invariants: one process writes a log (a lock beside it); lines are under `LINE_MAX` bytes; what strangers are
refused takes at most `REFUSALS_PER_S` lines a second, the rest is counted in the next one; a log takes at
most `AuditBounds` on the disk and a few kilobytes of memory, also when it is taken up again. A file that
cannot be renamed grows on, which is logged: a full file is no reason to note nothing.

Spec: §14.9.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from qim_streams.admin import audit_files
from qim_streams.admin.audit_lines import CONTINUED, LINE_MAX, digest
from qim_streams.errors import ConfigError, Outcome, StoreUnavailable

TEXT_MAX: Final = 512
REFUSALS_PER_S: Final = 10

log = logging.getLogger(__name__)


class Action(NamedTuple):
    """What somebody does. `origin`: an address, or the name of a terminal's user."""

    who: str
    role: str
    what: str
    origin: str


class AuditBounds(NamedTuple):
    """A file is continued in another one at `bytes_max` (0: never); `files_max` older ones are kept."""

    bytes_max: int = 64 * 1024 * 1024
    files_max: int = 10


BOUNDS: Final = AuditBounds()


class AuditLog:
    """Appends to `path`. `now_ms` is the wall clock. Close it after use."""

    def __init__(self, path: Path, now_ms: Callable[[], int], bounds: AuditBounds = BOUNDS) -> None:
        """ConfigError when the file cannot be written, is none of ours, or another process writes it."""
        self._path, self._now_ms, self._bounds = path, now_ms, bounds
        self._turn = asyncio.Lock()
        self._appends: set[asyncio.Task[int]] = set()
        self._second, self._refusals, self._untold = 0, 0, 0
        self._stuck = False  # it could not be continued; logged once
        with contextlib.ExitStack() as opened:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._locks = []
                if bounds.bytes_max:  # else nothing is renamed, and the directory need not be ours
                    self._locks.append(_held(audit_files.lock_beside(path), path))
                    opened.callback(os.close, self._locks[0])
                self._file = _held(path, path)
                opened.callback(os.close, self._file)
                self._resume()
            except OSError as error:
                raise ConfigError(
                    f"audit_file: {path}: {error.strerror}; name a file that can be written"
                ) from None
            opened.pop_all()

    def _resume(self) -> None:
        """Take the log up where it stands; a line that a crash cut off is ended by the next one."""
        stands = audit_files.tail_position(self._path)
        if stands is None:
            raise ConfigError(f"audit_file: {self._path}: is no audit log; name another file")
        self._number, self._before, self._cut = stands
        self._size = os.fstat(self._file).st_size
        if not self._size:
            self._cut = False
            if self._number:  # continued, but for a crash in between
                self._write(self._row({"step": CONTINUED}))

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
        for one in (self._file, *self._locks):
            os.close(one)

    async def _append(self, fields: dict[str, Any]) -> int:
        """Shielded: a request that goes away leaves neither half a step nor a line that nobody follows."""
        task = asyncio.ensure_future(self._append_in_turn(fields))
        self._appends.add(task)
        task.add_done_callback(self._appends.discard)
        return await asyncio.shield(task)

    async def _append_in_turn(self, fields: dict[str, Any]) -> int:
        async with self._turn:
            if self._bounds.bytes_max and self._size + LINE_MAX > self._bounds.bytes_max:
                await asyncio.to_thread(self._continue)
            line = self._row(fields)
            try:
                await asyncio.to_thread(self._write, line)
            except OSError as error:
                raise StoreUnavailable(f"the audit log: {error.strerror}", Outcome.NOT_APPLIED) from error
            return self._number

    def _row(self, fields: dict[str, Any]) -> bytes:
        shown = {name: _short(value) for name, value in fields.items()}
        row = {"n": self._number + 1, "at_ms": self._now_ms(), **shown, "before": self._before}
        line = json.dumps(row, separators=(",", ":")).encode()
        assert len(line) < LINE_MAX
        return line

    def _write(self, line: bytes) -> None:
        """Write a line. OSError: it is not there, or a piece of it is, which the next one ends."""
        start = b"\n" if self._cut else b""
        written = os.write(self._file, start + line + b"\n")
        self._size += written
        if written:
            self._cut = False
        if written < len(start) + len(line) + 1:
            piece = line[: max(0, written - len(start))]
            if piece:
                self._cut, self._number, self._before = True, self._number + 1, digest(piece)
            raise OSError(0, "a line was cut off")
        os.fsync(self._file)
        self._number, self._before = self._number + 1, digest(line)

    def _continue(self) -> None:
        """Begin the next file, and drop the oldest ones. Where that cannot be, this one grows on."""
        if self._cut or not self._size:
            return  # the piece is ended by a line first
        line = self._row({"step": CONTINUED})
        try:
            following = audit_files.replace(self._path, self._number, line + b"\n")
        except OSError as error:
            if not self._stuck:
                log.error("the audit log cannot be continued and grows: %s", error.strerror)
            self._stuck = True
            return
        os.close(self._file)
        self._file, self._size, self._stuck = following, len(line) + 1, False
        self._number, self._before = self._number + 1, digest(line)
        audit_files.drop(self._path, self._bounds.files_max)


def _held(path: Path, log_path: Path) -> int:
    """The descriptor of a file that this process holds: the log's, and of the lock beside it.

    The one beside it stays when the log is continued. ConfigError when another process has it.
    """
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        what = "another process writes it; name another file"
        raise ConfigError(f"audit_file: {log_path}: {what}") from None
    return file


def _short(value: object) -> object:
    """A text as far as it takes `TEXT_MAX` bytes in a line: a character may take twelve."""
    if not isinstance(value, str):
        return value
    kept = value[:TEXT_MAX]
    while len(json.dumps(kept)) > TEXT_MAX + 2:
        kept = kept[: len(kept) * 3 // 4]
    return kept
