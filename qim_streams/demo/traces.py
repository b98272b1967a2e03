"""Room traces: what happened in a real group chat, read from CSV and turned into steps to play.

A trace says who joined, left and wrote, when and how much, without any text. `read_trace` checks every
row; `steps` turns the rows into runs of membership changes and runs of messages; `expected_mailboxes`
says from the rows alone which messages every user must find in his mailbox.

Invariants: rows are numbered from 0 without the header, as ``target_row`` counts; the first act of a
user who is not a member counts as a join (also after a leave); a join of a member and a leave of a
non-member change nothing. Messages and replies are played. Edits, recalls and reactions are counted
but not played: the pipeline does not carry them yet.

Spec: §4 (a member from join to leave gets each message in between).
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from qim_streams.errors import ConfigError
from qim_streams.limits import BODY_BYTES_MAX

COLUMNS = ("at_ms", "kind", "user", "target_row", "body_bytes")
SENDS = frozenset({"message", "reply"})
CHANGES = frozenset({"join", "leave"})
NOT_PLAYED = frozenset({"edit", "recall", "reaction"})
KINDS = SENDS | CHANGES | NOT_PLAYED
TARGETED = frozenset({"reply"}) | NOT_PLAYED
ROWS_MAX = 1_000_000
LINE_CHARACTERS_MAX = 1_000
NUMBER_MAX = 2**53 - 1


class TraceRow(NamedTuple):
    """One row. `at_ms` counts from the room's first event; `target_row` is None where there is none."""

    row: int
    at_ms: int
    kind: str
    user: int
    target_row: int | None
    body_bytes: int


class Trace(NamedTuple):
    """A whole room, rows in file order (which is time order)."""

    name: str
    rows: tuple[TraceRow, ...]

    def prefix(self, share: float) -> "Trace":
        """The first `share` (0 < share <= 1) of the rows, at least one."""
        return Trace(self.name, self.rows[: max(1, int(len(self.rows) * share))])

    def counts(self) -> Counter[str]:
        """How many rows of each kind."""
        return Counter(row.kind for row in self.rows)


class Step(NamedTuple):
    """Changes that come one after the other, then the messages up to the next change.

    `changes` are (user, joins) in trace order: True for a join, False for a leave.
    """

    changes: tuple[tuple[int, bool], ...]
    sends: tuple[TraceRow, ...]


def read_trace(path: Path) -> Trace:
    """The trace of a CSV file; ConfigError names the row, the column and what is wrong."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return Trace(path.stem, tuple(_rows(path, _bounded(path, file))))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: is not a UTF-8 CSV file ({error})") from None


def _bounded(path: Path, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_CHARACTERS_MAX:
            raise ConfigError(f"{path} line {number}: longer than {LINE_CHARACTERS_MAX} characters")
        yield line


def _rows(path: Path, lines: Iterator[str]) -> Iterator[TraceRow]:
    reader = csv.reader(lines)
    header = next(reader, [])
    if tuple(header) != COLUMNS:
        raise ConfigError(f"{path}: the header is {','.join(header)!r}, expected {','.join(COLUMNS)!r}")
    kinds: list[str] = []
    before_ms = 0
    for row, cells in enumerate(reader):
        where = f"{path} row {row} (line {reader.line_num})"
        if row >= ROWS_MAX:
            raise ConfigError(f"{where}: more than {ROWS_MAX} rows; split the file")
        if len(cells) != len(COLUMNS):
            raise ConfigError(f"{where}: {len(cells)} columns, expected {len(COLUMNS)}")
        parsed = _row(where, row, cells, kinds)
        if parsed.at_ms < before_ms:
            raise ConfigError(f"{where}, column at_ms: {parsed.at_ms} is before the row above ({before_ms})")
        before_ms = parsed.at_ms
        kinds.append(parsed.kind)
        yield parsed
    if not kinds:
        raise ConfigError(f"{path}: has no rows")


def _row(where: str, row: int, cells: Sequence[str], kinds: Sequence[str]) -> TraceRow:
    at_ms = _number(where, "at_ms", cells[0], NUMBER_MAX)
    kind = cells[1]
    if kind not in KINDS:
        raise ConfigError(f"{where}, column kind: {kind!r} is not one of {', '.join(sorted(KINDS))}")
    user = _number(where, "user", cells[2], NUMBER_MAX)
    body_bytes = _number(where, "body_bytes", cells[4], BODY_BYTES_MAX)
    target = _target(where, kind, cells[3], kinds)
    return TraceRow(row, at_ms, kind, user, target, body_bytes)


def _target(where: str, kind: str, cell: str, kinds: Sequence[str]) -> int | None:
    if kind not in TARGETED:
        if cell:
            raise ConfigError(f"{where}, column target_row: must be empty for {kind}, is {cell!r}")
        return None
    target = _number(where, "target_row", cell, NUMBER_MAX)
    if target >= len(kinds) or kinds[target] not in SENDS:
        raise ConfigError(f"{where}, column target_row: row {target} is not an earlier message or reply")
    return target


def _number(where: str, column: str, cell: str, high: int) -> int:
    if not (cell.isascii() and cell.isdigit()) or len(cell) > len(str(high)) or int(cell) > high:
        raise ConfigError(f"{where}, column {column}: {cell!r} is not an integer from 0 to {high}")
    return int(cell)


def steps(trace: Trace) -> list[Step]:
    """The trace as alternating runs: changes in their order, then the messages that follow them."""
    result: list[Step] = []
    changes: list[tuple[int, bool]] = []
    sends: list[TraceRow] = []
    members: set[int] = set()

    def change(user: int, joins: bool) -> None:
        if sends:
            result.append(Step(tuple(changes), tuple(sends)))
            changes.clear()
            sends.clear()
        (members.add if joins else members.discard)(user)
        changes.append((user, joins))

    for row in trace.rows:
        if row.kind == "leave":
            if row.user in members:
                change(row.user, False)
            continue
        if row.user not in members:
            change(row.user, True)
        if row.kind in SENDS:
            sends.append(row)
    result.append(Step(tuple(changes), tuple(sends)))
    return result


def expected_mailboxes(trace: Trace) -> dict[int, list[int]]:
    """Per user (everybody who was ever a member) the rows he must have received, ascending."""
    members: set[int] = set()
    mailboxes: dict[int, list[int]] = defaultdict(list)
    for row in trace.rows:
        if row.kind == "leave":
            members.discard(row.user)
            continue
        if row.user not in members:
            members.add(row.user)
            mailboxes[row.user]  # a member without a message has an empty mailbox
        if row.kind in SENDS:
            for user in members:
                mailboxes[user].append(row.row)
    return dict(mailboxes)


def body_of(row: TraceRow) -> bytes:
    """The text that is played for a row: `body_bytes` bytes that begin with the row's number."""
    text = f"#{row.row} "
    words = f"{text}from user {row.user}: " + text * (row.body_bytes // len(text) + 1)
    return words.encode()[: row.body_bytes]
