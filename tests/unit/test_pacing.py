"""Pace: nothing waits while it is quiet; under load the wait grows with the rate, up to its bound."""

import pytest

from qim_streams.pacing import (
    FETCH_MIN_BYTES,
    FETCH_WAIT_MAX_MS,
    UNHURRIED_WAIT_MAX_MS,
    FetchPace,
    Hold,
    Pace,
)


def drive(pace: Pace, per_s: float, seconds: float = 2.0, start_s: float = 100.0) -> float:
    """Note single pieces at a constant rate; the last answer."""
    answer = 0.0
    for number in range(int(per_s * seconds)):
        answer = pace.note(1, start_s + number / per_s)
    return answer


@pytest.mark.parametrize("per_s", [1, 20, 100, 140])
def test_nothing_waits_while_it_is_quiet(per_s: float) -> None:
    assert drive(Pace(20.0), per_s) == 0.0


def test_the_wait_grows_with_the_rate_up_to_its_bound() -> None:
    waits = [drive(Pace(20.0), per_s) for per_s in (200, 400, 1_600, 4_500, 20_000)]
    assert waits == sorted(waits)
    assert waits[:-1] == pytest.approx([3.5, 5.0, 10.0, 18.0], rel=0.1), "by the root, then by the rate"
    assert waits[-1] == 20.0


def test_a_burst_is_forgotten_soon() -> None:
    pace = Pace(20.0)
    assert drive(pace, 5_000) > 0
    assert pace.note(1, 108.0) == 0.0, "six seconds later"


def test_a_fetch_asks_for_more_only_under_load() -> None:
    idle = Hold(1, 50)
    pace = FetchPace(idle)
    assert pace.note(1, 100.0) == idle
    held = [pace.note(500, 100.0 + number / 10) for number in range(30)][-1]
    assert held == Hold(FETCH_MIN_BYTES, 20)
    assert held.wait_ms <= FETCH_WAIT_MAX_MS
    assert pace.note(0, 120.0) == idle


def test_a_reader_in_no_hurry_waits_for_its_bytes_and_the_longer_the_more_comes() -> None:
    idle = Hold(700_000, 250)
    pace = FetchPace(idle)
    held = [pace.note(100, 100.0 + number / 10) for number in range(30)]
    assert held[0] == idle
    assert held[-1] == Hold(700_000, 350), "a thousand a second"
    busy = [pace.note(5_000, 110.0 + number / 10) for number in range(30)][-1]
    assert busy == Hold(700_000, 250 + UNHURRIED_WAIT_MAX_MS)
    assert pace.note(0, 140.0) == idle
