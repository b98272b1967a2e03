"""A broker that is away costs a line now and then, not a line per attempt."""

import logging

from qim_streams.streaming.driver_log import REPEAT_S, Throttle, driver_logger


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def line(text: str, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("driver", level, __file__, 1, text, (), None)


def test_repeats_are_counted_and_told_later() -> None:
    clock = Clock()
    throttle = Throttle(REPEAT_S, clock)
    passed = [throttle.filter(line(f"FAIL [writer#producer-1] attempt {number}")) for number in range(100)]
    assert passed == [True] + [False] * 99
    clock.now_s += REPEAT_S
    later = line("FAIL [writer#producer-1] attempt 100")
    assert throttle.filter(later)
    assert later.getMessage().endswith("(and 99 like it)")


def test_kinds_and_levels_do_not_hide_each_other_and_critical_always_shows() -> None:
    throttle = Throttle(REPEAT_S, Clock())
    assert throttle.filter(line("FAIL [writer#producer-1]"))
    assert throttle.filter(line("FAIL [writer#producer-1]", logging.WARNING))
    assert throttle.filter(line("MAXPOLL [other]"))
    assert all(throttle.filter(line("lost", logging.CRITICAL)) for _ in range(3))


def test_a_logger_gets_one_throttle() -> None:
    assert driver_logger("qim.test.driver") is driver_logger("qim.test.driver")
    assert len(driver_logger("qim.test.driver").filters) == 1
