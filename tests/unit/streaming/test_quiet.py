"""Repeating log lines are held back and counted."""

import logging

from qim_streams.streaming.quiet import NOISY, QuietRepeats, quiet_drivers


def record(text: str, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("x", level, "f", 1, text, (), None)


def test_one_line_per_kind_and_interval() -> None:
    now = 0.0
    quiet = QuietRepeats(5.0, lambda: now)
    assert quiet.filter(record("gone"))
    assert not any(quiet.filter(record("gone")) for _ in range(7))
    assert quiet.filter(record("other"))
    now = 5.0
    again = record("gone")
    assert quiet.filter(again)
    assert again.getMessage() == "gone (7 more of these)"


def test_information_and_critical_lines_always_pass() -> None:
    quiet = QuietRepeats(5.0, lambda: 0.0)
    for level in (logging.INFO, logging.CRITICAL):
        assert all(quiet.filter(record("same", level)) for _ in range(3))


def test_the_filters_are_put_on_once() -> None:
    quiet_drivers()
    quiet_drivers()
    for name in NOISY:
        filters = logging.getLogger(name).filters
        assert sum(isinstance(item, QuietRepeats) for item in filters) == 1
