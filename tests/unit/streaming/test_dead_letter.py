"""Dead letters: layout, bounds, golden bytes (T-A3)."""

from typing import Any

import pytest

from qim_streams.errors import LogAppendError, Outcome, RecordError
from qim_streams.streaming import dead_letter, dead_letter_record
from qim_streams.streaming.dead_letter import DeadLetterSink
from qim_streams.streaming.dead_letter_record import DeadLetter
from qim_streams.streaming.producer import OutgoingRecord
from tests.unit.streaming.fakes import Record

LETTER = DeadLetter("t", 3, 9, b"k", b"v", 1, "RecordError", "why", "role", 1_700_000_000_000)
GOLDEN = bytes.fromhex(
    "019aa1740309c4016bc4017601ab5265636f72644572726f72a3776879a4726f6c65cf0000018bcfe56800"
)


def test_golden_bytes() -> None:
    assert LETTER.encode() == GOLDEN
    assert DeadLetter.decode(GOLDEN) == LETTER


@pytest.mark.parametrize(
    "data", [b"", b"\x02", b"\x01\xc0", b"\x01\x91\x01", GOLDEN[:-1], b"\x01\x9a" + b"\xc0" * 10]
)
def test_any_other_bytes_are_a_record_error(data: bytes) -> None:
    with pytest.raises(RecordError):
        DeadLetter.decode(data)


def test_a_value_that_does_not_fit_is_cut_and_says_so() -> None:
    record = Record(1, value=b"x" * 2_000_000, key=b"k" * 10_000)
    letter = DeadLetter.of("t", 0, record, ValueError("m" * 5_000), "role", 1)
    assert letter.truncated
    assert (letter.value_bytes, len(letter.message)) == (2_000_000, dead_letter_record.MESSAGE_CHARS_MAX)
    assert DeadLetter.decode(letter.encode()) == letter
    assert not LETTER.truncated


class Log:
    """Takes appends, or fails them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.records: list[OutgoingRecord] = []
        self.error = error

    async def append(self, records: list[OutgoingRecord]) -> list[int]:
        if self.error is not None:
            raise self.error
        self.records.extend(records)
        return list(range(len(records)))


def sink(log: Any, partitions: int = 2) -> DeadLetterSink:
    return DeadLetterSink(log, "role", partitions, lambda: 5)


async def test_the_sink_keeps_key_and_coordinates() -> None:
    log = Log()
    await sink(log).send("in", 3, Record(8, key=b"key", value=b"bad"), RecordError("broken"))
    [record] = log.records
    assert record[:3] == (dead_letter.DEAD_LETTER_TOPIC, 1, b"key")
    letter = DeadLetter.decode(record.value or b"")
    assert (letter.topic, letter.partition, letter.offset, letter.cause) == ("in", 3, 8, "RecordError")
    assert letter.at_ms == 5


async def test_a_refused_append_is_not_swallowed() -> None:
    log = Log(LogAppendError("no", Outcome.UNKNOWN))
    with pytest.raises(LogAppendError):
        await sink(log).send("in", 0, Record(1), RecordError("broken"))


async def test_nothing_to_send_is_nothing() -> None:
    log = Log()
    await sink(log).send_many("in", [])
    assert log.records == []
