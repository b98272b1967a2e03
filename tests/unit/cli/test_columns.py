"""Columns, times and durations on the terminal."""

import pytest

from qim_streams.cli.columns import columns, duration, moment, span


def test_columns_are_aligned_and_never_cut() -> None:
    text = columns(("A", "LONG"), [("x" * 30, 1), (None, True), ("", False)], indent="> ")
    lines = text.splitlines()
    assert lines[0] == "> " + "A".ljust(30) + "  LONG"
    assert lines[1] == "> " + "x" * 30 + "  1"
    assert lines[2].split() == [">", "-", "yes"]
    assert lines[3].split() == [">", "-", "no"]


def test_only_a_header() -> None:
    assert columns(("A", "B"), []) == "A  B"


@pytest.mark.parametrize(
    ("ms", "text"), [(None, "-"), (0, "+0 ms"), (12, "+12 ms"), (-3, "-3 ms"), (12_340, "+12.3 s")]
)
def test_durations(ms: int | None, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "-"), (-1, "for ever"), (604_800_000, "7 d"), (1_500, "1500 ms")],
)
def test_spans(ms: int | None, text: str) -> None:
    assert span(ms) == text


def test_moments_are_utc_with_milliseconds() -> None:
    assert moment(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert moment(None) == "-"
