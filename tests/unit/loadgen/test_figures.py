"""Histograms, schedules, bodies, searches: the small pure parts."""

import random
from itertools import islice, pairwise
from math import ceil

import pytest

from qim_streams.loadgen import message
from qim_streams.loadgen.histogram import Histogram, bucket_of, merged, value_of
from qim_streams.loadgen.schedule import ARRIVALS
from qim_streams.loadgen.search import Search


def test_percentiles_are_exact_to_a_bucket() -> None:
    rng = random.Random(7)
    values = [int(rng.lognormvariate(9, 1.5)) for _ in range(20_000)]
    parts = [Histogram(), Histogram()]
    for at, value in enumerate(values):
        parts[at % 2].add(value)
    whole = merged(parts)
    values.sort()
    for share in (0.01, 0.5, 0.9, 0.99, 0.999):
        exact = values[ceil(share * len(values)) - 1] / 1_000
        assert whole.percentile_ms(share) == pytest.approx(exact, rel=0.02)
    assert whole.count == 20_000
    assert whole.summary_ms()["max"] == values[-1] / 1_000


@pytest.mark.parametrize("value", [0, 1, 63, 64, 127, 128, 129, 1_000, 65_535, 10**6, 10**9])
def test_a_bucket_is_never_far_from_its_values(value: int) -> None:
    assert abs(value_of(bucket_of(value)) - value) <= value / 64
    one = Histogram()
    one.add(value)
    assert list(one.buckets) == [bucket_of(value)]


def test_an_empty_histogram_is_zero_and_a_negative_value_counts_as_zero() -> None:
    one = Histogram()
    assert one.summary_ms() == {"p50": 0, "p90": 0, "p99": 0, "p999": 0, "max": 0}
    one.add(-5)
    assert one.buckets == {0: 1}


@pytest.mark.parametrize("name", ARRIVALS)
def test_arrivals_keep_the_rate_the_order_and_the_end(name: str) -> None:
    end_ns = 20 * 10**9
    times = list(ARRIVALS[name](500.0, end_ns, random.Random(3)))
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert all(one <= two for one, two in pairwise(times))
    assert 0 <= times[0] < times[-1] < end_ns
    assert times == list(ARRIVALS[name](500.0, end_ns, random.Random(3)))
    assert times[:9] != list(islice(ARRIVALS[name](500.0, end_ns, random.Random(4)), 9))


def test_a_body_says_who_when_and_is_checked() -> None:
    body = message.body(77, 3, 123_456, 10**18, 128)
    assert len(body) == 128
    assert message.read(body) == (77, 3, 123_456, 10**18)
    assert message.read_key(body, 77) == (message.message_key(3, 123_456), 10**18)
    assert message.read_key(body, 78) is None


@pytest.mark.parametrize("size", [message.BODY_BYTES_MIN, 128, 5_000, 65_536])
def test_any_damaged_byte_is_noticed(size: int) -> None:
    body = message.body(1, 2, 1_023, 4, size)
    assert len(body) == size
    rng = random.Random(size)
    for _ in range(50):
        at = rng.randrange(size)
        damaged = bytearray(body)
        damaged[at] ^= 1 << rng.randrange(8)
        assert message.read(bytes(damaged)) is None
    assert message.read(body[:-1]) is None
    assert message.read(b"") is None


def search(limit: float, start: float) -> Search:
    """A finished search on a system that holds up to `limit`."""
    found = Search(start)
    while (rate := found.next_rate()) is not None:
        found.report(rate, rate <= limit)
    return found


@pytest.mark.parametrize(("limit", "start"), [(3_300, 1_000), (1_000, 1_000), (70, 1_000), (9_999, 100)])
def test_the_search_ends_just_below_the_limit(limit: float, start: float) -> None:
    found = search(limit, start)
    assert found.held <= limit
    assert found.held >= limit * 0.93
    assert len(found.steps) <= found.steps_max


def test_the_search_gives_up_on_a_system_that_holds_nothing() -> None:
    found = search(0, 1_000)
    assert found.held == 0
    assert len(found.steps) < 9


def test_the_search_does_not_go_beyond_its_bounds() -> None:
    found = search(1e12, 1_000)
    assert found.held <= found.rate_max
    assert not found.failed
