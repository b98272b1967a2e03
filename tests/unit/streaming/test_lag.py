"""Lag: records at once, seconds since the log ended where the worker has not come to yet."""

from faust.types import TP
from prometheus_client import REGISTRY

from qim_streams.streaming.lag import ENDS_MAX, Lag, LagWatch

PLACE = TP("qim.test.v1", 3)


def shown(name: str) -> float | None:
    return REGISTRY.get_sample_value(
        name, {"role": "lag-test", "topic": PLACE.topic, "partition": str(PLACE.partition)}
    )


def test_a_worker_at_the_end_is_not_behind() -> None:
    watch = LagWatch("lag-test")
    assert watch.note([(PLACE, 10, 10)], 1.0) == {PLACE: Lag(0, 0.0)}
    assert watch.note([(PLACE, 500, 500)], 9.0) == {PLACE: Lag(0, 0.0)}


def test_a_partition_that_stands_still_gets_older_and_is_shown() -> None:
    watch = LagWatch("lag-test")
    watch.note([(PLACE, 10, 10)], 1.0)
    for second in range(2, 9):
        lag = watch.note([(PLACE, 10, 10 + second)], float(second))[PLACE]
        assert lag == Lag(second, second - 2.0)
    assert (shown("qim_stream_lag_records"), shown("qim_stream_lag_seconds")) == (8.0, 6.0)
    watch.reset()
    assert (shown("qim_stream_lag_records"), shown("qim_stream_lag_seconds")) == (0.0, 0.0)


def test_a_slow_worker_is_as_old_as_the_end_that_it_comes_to() -> None:
    watch = LagWatch("lag-test")
    for second in range(20):  # 100 records a second come, 50 are done
        lag = watch.note([(PLACE, 50 * second, 100 * (second + 1))], float(second))[PLACE]
    assert lag == Lag(2_000 - 950, 10.0), "the log ended at 950 between the looks at 8 and 9 s"


def test_what_is_not_known_says_nothing() -> None:
    watch = LagWatch("lag-test")
    assert watch.note([(PLACE, None, 5), (TP("qim.test.v1", 4), 5, None)], 1.0) == {}


def test_hours_of_standing_still_keep_a_bounded_memory() -> None:
    watch = LagWatch("lag-test")
    for second in range(5 * ENDS_MAX):
        lag = watch.note([(PLACE, 0, second + 1)], float(second))[PLACE]
    assert len(watch._ends[PLACE]) <= ENDS_MAX
    assert 4 * ENDS_MAX <= lag.seconds <= 5 * ENDS_MAX
