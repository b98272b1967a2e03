"""Rates, lags and health from looks at logs. Spec: §13."""

import pytest

from qim_streams.console.rules import ENDS_MAX, WINDOW_S, Track, added, largest, partition_health, worst


def track(*looks: tuple[float, int, int | None]) -> Track:
    """A track of looks (second, end, done)."""
    made = Track()
    for look in looks:
        made.note(*look)
    return made


def test_a_first_look_has_lag_and_no_rate() -> None:
    assert track((0, 10, 7)).pace() == (None, None, 3, 0.0)
    assert Track().pace() == (None, None, None, None)


def test_rates_are_those_of_the_window() -> None:
    pace = track((0, 0, 0), (2, 100, 60), (4, 200, 120)).pace()
    assert (pace.in_per_s, pace.done_per_s) == (50.0, 30.0)
    late = track((0, 0, 0), (1, 900, 900), (1 + WINDOW_S, 900, 900), (2 + WINDOW_S, 910, 910)).pace()
    assert late.in_per_s == 10.0, "what lies before the window does not count"


def test_seconds_count_from_the_end_that_was_not_passed() -> None:
    """A stage that stands still gets older by the clock; one that keeps up at a distance stays as old."""
    still = track((0, 10, 10), (5, 20, 10), (9, 30, 10)).pace()
    assert (still.lag_records, still.lag_s) == (20, 4.0)
    moving = track((0, 10, 0), (1, 20, 10), (2, 30, 20), (3, 40, 30)).pace()
    assert (moving.lag_records, moving.lag_s) == (10, 0.0)


def test_what_is_done_has_no_lag() -> None:
    assert track((0, 5, 2), (1, 5, 5)).pace().lag_s == 0.0


def test_an_unknown_position_is_not_zero() -> None:
    pace = track((0, 5, None), (1, 9, None)).pace()
    assert (pace.done_per_s, pace.lag_records, pace.lag_s) == (None, None, None)
    assert pace.in_per_s == 4.0


def test_another_log_under_the_same_name_begins_anew() -> None:
    assert track((0, 500, 500), (1, 3, 0)).pace() == (None, None, 3, 0.0)


def test_memory_is_bounded_while_a_stage_stands_still() -> None:
    made = Track()
    for second in range(5 * ENDS_MAX):
        made.note(second, second, 0)
    assert len(made._ends) <= ENDS_MAX
    seconds = made.pace().lag_s
    assert seconds is not None
    assert seconds > ENDS_MAX


@pytest.mark.parametrize(
    ("owner", "lag", "seconds", "health"),
    [
        ("w", 0, 0.0, "ok"),
        ("w", 90, 4.0, "ok"),
        ("w", 90, 6.0, "warn"),
        ("w", 90, 61.0, "bad"),
        ("w", None, None, "unknown"),
        (None, 0, 0.0, "warn"),
        (None, 7, 1.0, "bad"),
    ],
)
def test_health(owner: str | None, lag: int | None, seconds: float | None, health: str) -> None:
    found, reason = partition_health(owner, lag, seconds, 60.0)
    assert found == health
    assert (reason is None) == (health == "ok")


def test_sums_leave_out_what_is_not_known() -> None:
    assert added([None, 2.0, 3.0]) == 5.0
    assert added([None]) is None
    assert largest([None, 1.0]) == 1.0
    assert worst(["ok", "warn", "unknown"]) == "warn"
    assert worst([]) == "off"
