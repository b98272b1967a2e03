"""Repeating log lines are held back and counted."""

import logging
import sys

from aiohttp.http_exceptions import BadStatusLine

from qim_streams.streaming.quiet import NOISY, NoForeignWords, QuietRepeats, quiet_drivers


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


def failed(error: Exception) -> logging.LogRecord:
    """A server's record of a request that ended with an error."""
    try:
        raise error
    except type(error):
        return logging.LogRecord(
            "aiohttp.server", logging.ERROR, "f", 1, "Error handling %s", ("x",), sys.exc_info()
        )


def test_what_a_stranger_sent_is_in_no_line_and_strangers_fill_no_log() -> None:
    """Neither his bytes nor a traceback for each; what is a mistake of ours keeps its own."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda one: lines.append(handler.format(one))  # type: ignore[method-assign]
    logger = logging.Logger("aiohttp.server")
    logger.addFilter(NoForeignWords())
    logger.addFilter(QuietRepeats(5.0, lambda: 0.0))
    logger.addHandler(handler)
    for number in range(50):
        logger.handle(failed(BadStatusLine(f"forged {number}\n2026 ERROR gateway all is lost")))
    assert lines == ["a request could not be read: BadStatusLine"]
    logger.handle(failed(RuntimeError("ours")))
    assert "RuntimeError: ours" in lines[1]


def test_the_filters_are_put_on_once() -> None:
    quiet_drivers()
    quiet_drivers()
    for name in NOISY:
        filters = logging.getLogger(name).filters
        assert sum(isinstance(item, QuietRepeats) for item in filters) == 1
