"""The files of an audit log: the one that is written, and those that it was continued from.

A file that has reached its bound is renamed to ``<name>.<number of its last line>``, twelve digits, so names
sort by age; the oldest ones are dropped. Reading takes as much memory as what is asked for, however large a
file is and whatever is in it.

Invariants: a file is renamed before it is older, and the new one has its first line before it gets the name;
between the two steps there is no file of the name, which `tail_position` understands.

Spec: §14.9.
"""

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from qim_streams.admin.audit_lines import BEGINNING, LINE_MAX, Position, position

TAIL_BYTES: Final = 64 * 1024  # where a log is taken up again: many lines
_DIGITS: Final = 12

log = logging.getLogger(__name__)


def older(path: Path) -> list[Path]:
    """The files that `path` was continued from, the oldest first."""
    ours = re.compile(re.escape(path.name) + rf"\.[0-9]{{{_DIGITS}}}")
    with contextlib.suppress(FileNotFoundError):
        return sorted(one for one in path.parent.iterdir() if ours.fullmatch(one.name))
    return []


def all_files(path: Path) -> list[Path]:
    """All files of a log, the oldest first."""
    return [*older(path), *([path] if path.exists() else [])]


def lock_beside(path: Path) -> Path:
    """The file whose lock says who continues the log."""
    return path.with_name(f".{path.name}.lock")


def tail(path: Path, size: int) -> tuple[bytes, bool]:
    """The last `size` bytes of a file, and whether these are all of it."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - size))
        return file.read(size), length <= size


def tail_position(path: Path) -> Position | None:
    """Where a log stands; None: the end of its newest file is none of ours."""
    files = [one for one in all_files(path) if one.stat().st_size]
    return position(*tail(files[-1], TAIL_BYTES)) if files else BEGINNING


def lines_of(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Every line and its place; a line that is too long for one of ours comes in pieces."""
    for path in files:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_MAX + 1):
                number += 1
                yield (f"line {number}" if len(files) == 1 else f"{path.name}, line {number}"), line


def newest(files: Sequence[Path], count: int) -> list[bytes]:
    """The last `count` lines, the oldest of them first."""
    found: list[bytes] = []
    for path in reversed(files):
        if len(found) >= count:
            break
        data, whole = tail(path, (count - len(found)) * (LINE_MAX + 1))
        lines = data.splitlines()
        found[:0] = lines if whole else lines[1:]
    return found[-count:] if count else []


def replace(path: Path, last_number: int, first_line: bytes) -> int:
    """Continue the log in a new file that begins with `first_line`; its descriptor, for appending.

    OSError: the file goes on under its name, or (after a crash only) under the older one.
    """
    coming, former = path.with_name(f".{path.name}.next"), path.with_name(f"{path.name}.{last_number:012}")
    descriptor = os.open(coming, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before anybody can know it by its name
        if os.write(descriptor, first_line) != len(first_line):
            raise OSError(0, "a line was cut off")
        os.fsync(descriptor)
        path.rename(former)
        try:
            coming.rename(path)
        except OSError:
            former.rename(path)
            raise
    except OSError:
        os.close(descriptor)
        raise
    _sync(path.parent)
    return descriptor


def drop(path: Path, kept: int) -> None:
    """Remove all but the newest `kept` older files; one that cannot be removed is logged."""
    for one in older(path)[: -kept or None]:
        try:
            one.unlink()
        except OSError as error:
            log.error("the audit log: %s stays: %s", one.name, error.strerror)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)  # the renames themselves
    finally:
        os.close(descriptor)
