"""The lines of an audit log: each names the digest of the one before it. Pure.

A log may be cut into files (`audit_files`): then a file but the first begins with a line `continued`, which
follows the last line of the file before it like any other line.

Invariants: a line that was changed, removed or put in between shows, unless everything after it was made
anew; that whole files at the beginning are missing is said, and is no problem: the oldest ones are dropped.

Spec: §14.9.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

LINE_MAX: Final = 4_096
START: Final = "0" * 64
CONTINUED: Final = "continued"


class Position(NamedTuple):
    """Where a log stands: number and digest of its last line, and whether that one has no end."""

    number: int
    before: str
    cut: bool


BEGINNING: Final = Position(0, START, False)


def digest(line: bytes) -> str:
    """What the next line names of this one; without its line feed."""
    return hashlib.sha256(line).hexdigest()


def position(tail: bytes, whole: bool) -> Position | None:
    """Where a log stands whose last bytes are `tail` (`whole`: all of it). None: these are no lines of ours.

    Lines that a crash cut off count: the number is that of the last whole line and one for each since.
    """
    lines = tail.split(b"\n")
    cut = bool(lines[-1])
    if not cut:
        lines.pop()
    if not whole:
        del lines[:1]  # it may begin anywhere
    for since, line in enumerate(reversed(lines)):
        number = _number(line)
        if number is not None:
            return Position(number + since, digest(lines[-1]), cut)
    if not whole:
        return None
    return Position(len(lines), digest(lines[-1]), cut) if lines else BEGINNING


def first_number(line: bytes) -> int | None:
    """The number of a log's first line: above 1 where older files are gone. None: it is none of ours."""
    return _number(line.rstrip(b"\n"))


def problems(lines: Iterable[tuple[str, bytes]]) -> Iterator[str]:
    """What is wrong with lines, each with the name of its place; of a log that begins with them."""
    before, number, begins = START, 0, True
    for place, line in lines:
        text = line.rstrip(b"\n")
        number += 1
        try:
            row = json.loads(text)
            if begins and row["step"] == CONTINUED:
                before, number = str(row["before"]), int(row["n"])
            if row["before"] != before:
                yield f"{place}: does not follow the line before it"
            elif row["n"] != number:
                yield f"{place}: has the number {row['n']}"
        except (ValueError, KeyError, TypeError, RecursionError):
            yield f"{place}: is none of ours, or was cut off"
        before, begins = digest(text), False


def _number(line: bytes) -> int | None:
    try:
        number = json.loads(line)["n"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return number if type(number) is int and number > 0 else None
