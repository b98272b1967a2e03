"""Dead letters for an operator: pages, giving back, putting aside, and a crash in between. Spec: §11."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from qim_streams.console.dead_letters import (
    DISCARDED,
    GIVEN,
    GIVING,
    OPEN,
    DeadLetters,
    LetterPage,
    Mark,
    Stored,
    refusal,
)
from qim_streams.console.kafka_letters import decoded
from qim_streams.console.refusals import ConsoleRefusal
from qim_streams.errors import AdmissionRefused, Outcome, ProtocolError, StoreUnavailable
from qim_streams.streaming.dead_letter_record import DeadLetter

LETTER = DeadLetter(
    "qim.dispatch.v1", 3, 77, b"key\0part", b"value", 5, "RecordError", "no dispatch", "mailbox-node", 1_000
)


class Log:
    """Partitions of letters; what was appended."""

    def __init__(self, *partitions: Sequence[DeadLetter | None], begin: int = 0) -> None:
        self.partitions, self.begin = [list(one) for one in partitions], begin
        self.appended: list[tuple[str, int, bytes | None, bytes | None]] = []
        self.failure: Exception | None = None

    async def ranges(self) -> list[tuple[int, int]]:
        return [(self.begin, len(one)) for one in self.partitions]

    async def read(self, spans: Mapping[int, tuple[int, int]]) -> list[Stored]:
        return [
            Stored(p, offset, self.partitions[p][offset])
            for p, (begin, end) in spans.items()
            for offset in range(begin, end)
        ]

    async def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        self.appended.append((topic, partition, key, value))
        if self.failure is not None:
            raise self.failure
        return 99


class Marks:
    """Marks in a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], Mark] = {}

    async def read(self, places: Sequence[tuple[int, int]]) -> list[Mark | None]:
        return [self.rows.get(place) for place in places]

    async def move(self, place: tuple[int, int], expected: str, mark: Mark) -> bool:
        now = self.rows.get(place)
        if (now.state if now else OPEN) != expected:
            return False
        self.rows[place] = mark
        return True

    async def forget(self, partition: int, below: int) -> None:
        self.rows = {at: one for at, one in self.rows.items() if at[0] != partition or at[1] >= below}


def letters(log: Log, marks: Marks | None = None) -> DeadLetters:
    """The service at a fixed time."""
    return DeadLetters(log, marks or Marks(), lambda: 5_000)


def numbered(*times: int) -> list[DeadLetter | None]:
    """Letters of these times."""
    return [replace(LETTER, at_ms=at, offset=at) for at in times]


async def whole(service: DeadLetters, limit: int) -> tuple[list[int], int]:
    """The times of all letters, page by page; how many pages."""
    seen, cursor, pages = [], None, 0
    while True:
        page: LetterPage = await service.page(cursor, limit, None, "")
        seen += [one.at_ms for one in page.letters]
        pages += 1
        assert pages < 100, "paging does not end"
        if page.next_cursor is None:
            return seen, pages
        cursor = page.next_cursor


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_pages_are_the_newest_first_over_all_partitions(limit: int) -> None:
    """Each letter once, in the order of time, whatever the limit and however uneven the partitions."""
    log = Log(numbered(1, 4, 5, 6, 7), numbered(), numbered(2, 3, 8, 9))
    seen, pages = await whole(letters(log), limit)
    assert seen == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert pages <= 2 * len(seen) + 1


async def test_letters_that_retention_took_are_not_asked_for() -> None:
    seen, _ = await whole(letters(Log(numbered(1, 2, 3), begin=1)), 2)
    assert seen == [3, 2]


async def test_a_page_can_be_filtered() -> None:
    log, marks = Log(numbered(1, 2, 3)), Marks()
    marks.rows[0, 1] = Mark(DISCARDED, 9)
    page = await letters(log, marks).page(None, 10, OPEN, "")
    assert [one.at_ms for one in page.letters] == [3, 1]
    assert not (await letters(log, marks).page(None, 10, None, "archiver")).letters
    assert len((await letters(log, marks).page(None, 10, None, "NO DISPATCH")).letters) == 3


@pytest.mark.parametrize("cursor", ["x", "1", "1.2.3", "1.-2", "1." + "9" * 30])
async def test_a_cursor_of_somebody_else(cursor: str) -> None:
    with pytest.raises(ProtocolError, match="cursor"):
        await letters(Log(numbered(1), numbered(2))).page(cursor, 5, None, "")


async def test_what_is_no_letter_is_shown_as_such() -> None:
    (row,) = (await letters(Log([None])).page(None, 5, None, "")).letters
    assert (row.cause, row.may_give_back) == ("RecordError", False)
    assert decoded(0, 1, b"\xff").letter is None
    assert decoded(0, 1, LETTER.encode()).letter == LETTER


async def test_a_view_has_the_beginning_of_the_value() -> None:
    view = await letters(Log([replace(LETTER, value=b"x" * 9_000, value_bytes=9_000)])).view("0-0")
    assert (view.value_shown, view.value_hex[:4], view.key) == (4_096, "7878", "key / part")


@pytest.mark.parametrize("name", ["0-5", "7-0"])
async def test_a_letter_that_is_not_there(name: str) -> None:
    with pytest.raises(ConsoleRefusal, match="NO_LETTER"):
        await letters(Log([LETTER])).view(name)


async def test_giving_back_appends_the_record_as_it_was_once() -> None:
    log, marks = Log([LETTER]), Marks()
    view = await letters(log, marks).give_back("0-0")
    assert log.appended == [("qim.dispatch.v1", 3, b"key\0part", b"value")]
    assert (view.state, view.state_at_ms) == (GIVEN, 5_000)
    with pytest.raises(ConsoleRefusal, match="LETTER_DONE"):
        await letters(log, marks).give_back("0-0")
    assert len(log.appended) == 1


async def test_a_letter_whose_append_is_not_known_may_be_given_back_again() -> None:
    """The mark is there before the record: a letter is never open after it may have been given back."""
    log, marks = Log([LETTER]), Marks()
    log.failure = StoreUnavailable("no answer", Outcome.UNKNOWN)
    with pytest.raises(StoreUnavailable):
        await letters(log, marks).give_back("0-0")
    assert marks.rows[0, 0].state == GIVING
    log.failure = None
    assert (await letters(log, marks).give_back("0-0")).state == GIVEN


async def test_discarding_is_for_good() -> None:
    log, marks = Log([LETTER]), Marks()
    assert (await letters(log, marks).discard("0-0")).state == DISCARDED
    for attempt in (letters(log, marks).discard, letters(log, marks).give_back):
        with pytest.raises(ConsoleRefusal, match="LETTER_DONE"):
            await attempt("0-0")
    assert not log.appended


async def test_of_two_operators_one_wins() -> None:
    log, marks = Log([LETTER]), Marks()
    service = letters(log, marks)
    read = marks.read

    async def meanwhile(places: Sequence[tuple[int, int]]) -> list[Mark | None]:
        found = await read(places)
        marks.rows.setdefault((0, 0), Mark(DISCARDED, 1))
        return found

    marks.read = meanwhile  # type: ignore[method-assign]
    with pytest.raises(ConsoleRefusal, match="LETTER_DONE"):
        await service.give_back("0-0")
    assert not log.appended


@pytest.mark.parametrize(
    ("letter", "why"),
    [
        (LETTER, None),
        (replace(LETTER, topic="qim.push-task.v1"), None),
        (replace(LETTER, topic="qim.outbox.v1"), "epoch"),
        (replace(LETTER, topic="qim.presence.v1"), "later place"),
        (replace(LETTER, value_bytes=6), "beginning"),
        (replace(LETTER, role="webhook-crm"), "endpoint"),
        (None, "no dead letter"),
    ],
)
async def test_what_may_be_given_back(letter: DeadLetter | None, why: str | None) -> None:
    found = refusal(letter)
    assert (found is None) == (why is None)
    if why is not None:
        assert why in (found or "")
        log = Log([letter])
        with pytest.raises(AdmissionRefused, match="NOT_ALLOWED"):
            await letters(log).give_back("0-0")
        assert not log.appended


async def test_marks_of_lost_letters_go() -> None:
    log, marks = Log(numbered(1, 2, 3), begin=2), Marks()
    marks.rows = {(0, 0): Mark(GIVEN, 1), (0, 2): Mark(GIVEN, 1)}
    await letters(log, marks).view("0-2")
    assert set(marks.rows) == {(0, 2)}
