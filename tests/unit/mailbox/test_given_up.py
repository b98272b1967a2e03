"""What a worker gave up is known to its next life, for a bounded time. Spec: §13 (lane_stall_failover)."""

from pathlib import Path

import pytest

from qim_streams.mailbox.given_up import FILE, GivenUp, Note, somebody_else, stay_away_s
from qim_streams.ownership.ports import Holder

AVOID_S = 600.0


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_note_outlives_its_process_and_ends(tmp_path: Path, clock: Clock) -> None:
    GivenUp(tmp_path, AVOID_S, clock).note(3)
    clock.ms += 1_000
    GivenUp(tmp_path, AVOID_S, clock).note(5)
    next_life = GivenUp(tmp_path, AVOID_S, clock)
    assert next_life.read() == {3: Note(1_000_000, 1_600_000), 5: Note(1_001_000, 1_601_000)}
    clock.ms = 1_600_000
    assert list(next_life.read()) == [5]
    clock.ms = 1_601_000
    assert next_life.read() == {}


def test_a_clock_that_went_back_makes_no_note_last(tmp_path: Path, clock: Clock) -> None:
    given_up = GivenUp(tmp_path, AVOID_S, clock)
    given_up.note(3)
    clock.ms -= 3_600_000
    assert given_up.read() == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"x": [1, 2]}', b'{"1": 2}', b"\xff\xfe"])
def test_a_file_that_is_none_avoids_nothing(tmp_path: Path, clock: Clock, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    given_up = GivenUp(tmp_path, AVOID_S, clock)
    assert given_up.read() == {}
    given_up.note(1)
    assert list(given_up.read()) == [1]


def test_no_file_is_no_note(tmp_path: Path, clock: Clock) -> None:
    assert GivenUp(tmp_path, AVOID_S, clock).read() == {}


def test_it_stays_away_until_its_last_session_is_over() -> None:
    notes = [Note(1_000, 9_000), Note(4_000, 9_000)]
    assert stay_away_s(notes, 5_000, 10.0) == 9.0
    assert stay_away_s(notes, 14_000, 10.0) == 0.0
    assert stay_away_s(notes, 60_000, 10.0) == 0.0


def test_somebody_else_is_who_holds_another_shard() -> None:
    mine, other = (Holder("s:1", name, 1, name, 1, 900) for name in ("mailbox.n.0", "mailbox.n.1"))
    assert not somebody_else([None, mine], "mailbox.n.0")
    assert somebody_else([None, mine, other], "mailbox.n.0")
    assert not somebody_else([], "mailbox.n.0")
