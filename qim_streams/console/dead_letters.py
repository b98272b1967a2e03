"""Dead letters for an operator: look at them, give a record back to its log, or put it aside.

The log keeps every letter until its retention; what was done with one is a mark beside it. Giving back
appends the original key and value to the original partition once more: the stage dedups by what the record
names, so giving back twice is harmless. Only records that mean the same at a later place may be given back
(`refusal`).

Invariants: a mark is set before the record is appended, so a letter is never open after it may have been
given back; after a crash in between it says that the outcome is unknown, and may be given back again.

Spec: §11.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from qim_streams.console.refusals import ConsoleRefusal
from qim_streams.errors import AdmissionRefused, ProtocolError
from qim_streams.streaming.dead_letter_record import DeadLetter

VALUE_SHOWN_MAX: Final = 4_096
KEY_SHOWN_MAX: Final = 256
OPEN, GIVING, GIVEN, DISCARDED = "open", "giving_back", "given_back", "discarded"
_WHERE_AGAIN: Final = {
    "qim.dispatch.v1": "a dispatch is known by its dispatch_id",
    "qim.push-task.v1": "a task is known by its id",
}
_WHY_NOT: Final = {
    "qim.outbox.v1": (
        "the Outbox takes records of its partition's owner only: readers would drop this one by its epoch; "
        "`qim repair run` brings back what is missing"
    ),
}


class Mark(NamedTuple):
    """What was done with a letter, and when (ms)."""

    state: str
    at_ms: int


class Stored(NamedTuple):
    """A letter in its log; `letter` None: the record is none."""

    partition: int
    offset: int
    letter: DeadLetter | None


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A letter. `id`: its place in the log of dead letters. `may_give_back` false: `why_not` says why."""

    id: str
    topic: str
    partition: int
    offset: int
    role: str
    cause: str
    message: str
    at_ms: int
    key: str | None
    value_bytes: int
    truncated: bool
    state: str
    state_at_ms: int | None
    may_give_back: bool
    why_not: str | None


@dataclass(frozen=True, slots=True)
class LetterView(LetterRow):
    """A letter with the beginning of its value, in hex."""

    value_hex: str
    value_shown: int


@dataclass(frozen=True, slots=True)
class LetterPage:
    """The newest first; `next_cursor` null: there are no more. A page with a filter may be short."""

    letters: list[LetterRow]
    next_cursor: str | None


class LetterLog(Protocol):
    """The log of dead letters, and the logs that records are given back to. StoreUnavailable."""

    async def ranges(self) -> list[tuple[int, int]]:
        """Begin and end (next offset) of each partition."""

    async def read(self, spans: Mapping[int, tuple[int, int]]) -> list[Stored]:
        """The letters of [begin, end) per partition, in any order."""

    async def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        """Append a record and wait for its acknowledgement; its offset. Outcome UNKNOWN on an error."""


class LetterMarks(Protocol):
    """What was done with letters. StoreUnavailable."""

    async def read(self, places: Sequence[tuple[int, int]]) -> list[Mark | None]:
        """Of each (partition, offset)."""

    async def move(self, place: tuple[int, int], expected: str, mark: Mark) -> bool:
        """Set a mark if the state is `expected` still; whether it was."""

    async def forget(self, partition: int, below: int) -> None:
        """Marks of letters that the log has lost."""


class DeadLetters:
    """Reads the log backwards, newest first over all partitions."""

    def __init__(self, log: LetterLog, marks: LetterMarks, now_ms: Callable[[], int]) -> None:
        self._log, self._marks, self._now_ms = log, marks, now_ms

    async def page(self, cursor: str | None, limit: int, state: str | None, contains: str) -> LetterPage:
        """A page. ProtocolError: not a cursor of ours."""
        ranges = await self._log.ranges()
        befores = _places(cursor, ranges)
        spans = {
            p: (max(begin, before - limit), before)
            for p, ((begin, _), before) in enumerate(zip(ranges, befores, strict=True))
            if before > begin
        }
        stored = await self._log.read(spans) if spans else []
        stored.sort(
            key=lambda one: (one.letter.at_ms if one.letter else 0, one.partition, one.offset), reverse=True
        )
        # What a partition did not show whole limits how far back this page may go.
        part = _mergeable(stored, spans, ranges)[:limit]
        following = list(befores)
        for one in part:
            following[one.partition] = min(following[one.partition], one.offset)
        for p, (begin, _) in spans.items():
            if not any(one.partition == p for one in stored):
                following[p] = begin  # compacted or lost: nothing there
        more = any(at > begin for at, (begin, _) in zip(following, ranges, strict=True))
        marks = await self._marks.read([(one.partition, one.offset) for one in part])
        rows = [_row(one, mark) for one, mark in zip(part, marks, strict=True)]
        wanted = [
            row
            for row in rows
            if state in (None, row.state) and (not contains or contains.lower() in _text(row))
        ]
        return LetterPage(wanted, ".".join(map(str, following)) if more else None)

    async def view(self, letter_id: str) -> LetterView:
        """One letter with the beginning of its value. ConsoleRefusal NO_LETTER."""
        stored = await self._one(letter_id)
        (mark,) = await self._marks.read([stored[:2]])
        row = _row(stored, mark)
        value = (stored.letter.value or b"")[:VALUE_SHOWN_MAX] if stored.letter else b""
        fields = {name: getattr(row, name) for name in LetterRow.__dataclass_fields__}
        return LetterView(**fields, value_hex=value.hex(), value_shown=len(value))

    async def give_back(self, letter_id: str) -> LetterView:
        """Append the record to its log once more. AdmissionRefused: it may not, or was dealt with already."""
        stored = await self._one(letter_id)
        letter = stored.letter
        why = refusal(letter)
        if why is not None or letter is None:
            raise AdmissionRefused("NOT_ALLOWED", why or "the record is no dead letter")
        await self._take(stored[:2], GIVING)
        await self._log.append(letter.topic, letter.partition, letter.key, letter.value)
        await self._marks.move(stored[:2], GIVING, Mark(GIVEN, self._now_ms()))
        return await self.view(letter_id)

    async def discard(self, letter_id: str) -> LetterView:
        """Put a letter aside: it is dealt with. AdmissionRefused: it was dealt with already."""
        stored = await self._one(letter_id)
        await self._take(stored[:2], DISCARDED)
        return await self.view(letter_id)

    async def _take(self, place: tuple[int, int], state: str) -> None:
        (before,) = await self._marks.read([place])
        now = before.state if before is not None else OPEN
        if now not in (OPEN, GIVING) or not await self._marks.move(place, now, Mark(state, self._now_ms())):
            raise ConsoleRefusal("LETTER_DONE", f"the letter was dealt with already ({now})")

    async def _one(self, letter_id: str) -> Stored:
        partition, _, offset = letter_id.partition("-")
        ranges = await self._log.ranges()
        where, at = int(partition), int(offset)
        if where < len(ranges) and ranges[where][0] <= at < ranges[where][1]:
            await self._marks.forget(where, ranges[where][0])
            for one in await self._log.read({where: (at, at + 1)}):
                if one.offset == at:
                    return one
        raise ConsoleRefusal("NO_LETTER", "the log has no such letter (any more)")


def refusal(letter: DeadLetter | None) -> str | None:
    """Why a letter's record may not be given back; None: it may."""
    if letter is None:
        return "the record is no dead letter"
    if letter.truncated:
        return "only the beginning of the value was kept"
    if letter.role.startswith("webhook-"):
        return "the endpoint refused it, and the log is others' too: have the endpoint ask for it by its id"
    if letter.topic in _WHERE_AGAIN:
        return None
    return _WHY_NOT.get(letter.topic, "a record of this log may not mean the same at a later place")


def _row(stored: Stored, mark: Mark | None) -> LetterRow:
    letter, why = stored.letter, refusal(stored.letter)
    now = mark or Mark(OPEN, 0)
    may = why is None and now.state in (OPEN, GIVING)
    if letter is None:
        letter = DeadLetter("?", 0, 0, None, None, 0, "RecordError", "the record is no dead letter", "?", 0)
    return LetterRow(
        f"{stored.partition}-{stored.offset}",
        letter.topic,
        letter.partition,
        letter.offset,
        letter.role,
        letter.cause,
        letter.message,
        letter.at_ms,
        _shown_key(letter.key),
        letter.value_bytes,
        letter.truncated,
        now.state,
        now.at_ms or None,
        may,
        why,
    )


def _shown_key(key: bytes | None) -> str | None:
    """A key as text where it is text, else in hex."""
    if key is None:
        return None
    try:
        text = key[:KEY_SHOWN_MAX].decode()
    except UnicodeDecodeError:
        return key[:KEY_SHOWN_MAX].hex()
    return text.replace("\0", " / ") if text.replace("\0", "").isprintable() else key[:KEY_SHOWN_MAX].hex()


def _text(row: LetterRow) -> str:
    return (
        f"{row.topic} {row.partition} {row.role} {row.cause} {row.message} {row.key or ''} {row.id}".lower()
    )


def _places(cursor: str | None, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Per partition the offset below which the page begins."""
    if cursor is None:
        return [end for _, end in ranges]
    words = cursor.split(".")
    if len(words) != len(ranges) or not all(one.isdecimal() and len(one) < 19 for one in words):
        raise ProtocolError("FIELD_INVALID", "cursor: is not one of ours", field="cursor")
    return [min(end, int(word)) for word, (_, end) in zip(words, ranges, strict=True)]


def _mergeable(
    stored: Sequence[Stored], spans: Mapping[int, tuple[int, int]], ranges: Sequence[tuple[int, int]]
) -> list[Stored]:
    """Those that nothing unread can be newer than: down to the newest end of what was read of a partition."""
    floor: tuple[int, int, int] | None = None
    for p, (begin, _) in spans.items():
        of_one = [one for one in stored if one.partition == p]
        if begin > ranges[p][0] and of_one:
            last = min(of_one, key=lambda one: one.offset)
            place = (last.letter.at_ms if last.letter else 0, last.partition, last.offset)
            floor = place if floor is None else max(floor, place)
    if floor is None:
        return list(stored)
    return [
        one for one in stored if (one.letter.at_ms if one.letter else 0, one.partition, one.offset) >= floor
    ]
