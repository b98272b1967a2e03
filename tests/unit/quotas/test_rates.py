"""Rates of conversations, against a plain count of what was let through."""

import random
import time

import pytest

from qim_streams.quotas.rates import ConversationRates


def test_the_burst_then_the_rate() -> None:
    rates = ConversationRates(per_s=10, burst_ms=500)
    assert [rates.take("c", 1_000.0) for _ in range(6)] == [0, 0, 0, 0, 0, 101]
    assert rates.take("c", 1_100.0) == 0 or rates.take("c", 1_101.0) == 0
    assert rates.take("other", 1_000.0) == 0


def test_a_burst_is_never_less_than_one_message() -> None:
    rates = ConversationRates(per_s=0.1, burst_ms=1)
    assert rates.take("c", 0.0) == 0
    assert rates.take("c", 1.0) >= 9_999
    assert rates.take("c", 10_001.0) == 0


def test_a_clock_that_went_back_locks_nobody_out() -> None:
    rates = ConversationRates(per_s=1, burst_ms=1_000)
    assert rates.take("c", 9_000_000.0) == 0
    assert rates.take("c", 1_000.0) == 0
    assert rates.take("c", 1_001.0) > 0


def test_what_owes_nothing_is_forgotten() -> None:
    """P16: memory is what was said within two bursts."""
    rates = ConversationRates(per_s=10, burst_ms=1_000)
    for step in range(10_000):
        rates.take(step, step * 10.0)
    assert len(rates) <= 2 * 100 + 2
    assert rates.take("late", 10_000_000.0) == 0
    assert len(rates) == 1


@pytest.mark.parametrize("per_s", [3.0, 40.0, 900.0])
def test_over_any_stretch_no_more_than_rate_and_burst(per_s: float) -> None:
    """Whatever the order of messages, repeats (given back) and pauses; and no message waits in vain."""
    seed = time.time_ns() % 2**32
    print(f"seed {seed}")
    rng, burst_ms, now = random.Random(seed), 700, 50_000.0
    rates, let_through = ConversationRates(per_s, burst_ms), list[float]()
    for _ in range(4_000):
        now += rng.choice((0.0, 0.0, 1.0, 5.0, rng.expovariate(1 / 50)))
        wait_ms = rates.take("c", now)
        if not wait_ms and rng.random() < 0.2:
            rates.give_back("c")
        elif not wait_ms:
            let_through.append(now)
        elif rng.random() < 0.1:
            now += wait_ms
            assert rates.take("c", now) == 0, "it said how long to wait"
            let_through.append(now)
    burst = max(1.0, burst_ms * per_s / 1_000)
    for first in range(0, len(let_through), 7):
        for last in range(first, len(let_through), 11):
            allowed = burst + (let_through[last] - let_through[first]) * per_s / 1_000 + 1e-6
            assert last - first + 1 <= allowed + 1
