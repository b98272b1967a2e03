"""Who waits, who is sent away, and when he comes again (T-X7, P16)."""

from random import Random

from qim_streams.gateway.crowd import (
    AGAIN_MAX_MS,
    AGAIN_MIN_MS,
    RATE_FIRST,
    RATE_MIN,
    WAIT_S,
    WAITING_MAX,
    WAITING_MIN,
    Crowd,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def full(crowd: Crowd) -> Crowd:
    while not crowd.again_ms():
        crowd.enter()
    return crowd


def test_there_is_room_for_what_is_served_in_time() -> None:
    crowd = full(Crowd(Clock()))
    assert crowd.waiting == RATE_FIRST * WAIT_S
    crowd.leave()
    assert crowd.again_ms() == 0


def test_those_who_were_sent_away_come_again_one_after_the_other() -> None:
    """In the order in which they were refused, about as fast as sign-ons are done, within a bound."""
    crowd = full(Crowd(Clock()))
    told = [crowd.again_ms() for _ in range(2_000)]
    assert told == sorted(told)
    assert told[0] >= AGAIN_MIN_MS
    assert 0.7 * 1_000 / RATE_FIRST < (told[-1] - told[0]) / len(told) < 1_000 / RATE_FIRST
    for _ in range(200_000):
        last = crowd.again_ms()
    assert last == AGAIN_MAX_MS


def test_a_line_that_has_passed_is_forgotten() -> None:
    clock = Clock()
    crowd = full(Crowd(clock))
    for _ in range(1_000):
        crowd.again_ms()
    clock.now_s += 60
    assert AGAIN_MIN_MS <= crowd.again_ms() < AGAIN_MIN_MS + 100


def test_the_rate_is_what_the_machine_manages_now() -> None:
    """A slow machine lets fewer wait and asks back later; a quiet time counts for nothing."""
    clock = Clock()
    crowd = Crowd(clock)
    crowd.enter()
    for _ in range(3_000):
        crowd.enter()
        clock.now_s += 1 / 60
        crowd.leave()
    assert 55 < crowd.rate < 65
    assert crowd.room == round(crowd.rate * WAIT_S)
    for _ in range(100):
        crowd.enter()
        clock.now_s += 1 / 5
        crowd.leave()
    assert 4 < crowd.rate < 6
    assert crowd.room == WAITING_MIN
    before = crowd.rate
    crowd.leave()
    clock.now_s += 1_000
    crowd.enter()
    crowd.leave()
    assert crowd.rate == before


def test_bounds_hold_whatever_happens() -> None:
    """P16: random comings and goings; a standstill does not make the wait endless."""
    rng, clock = Random(11), Clock()
    crowd = Crowd(clock)
    for _ in range(20_000):
        clock.now_s += rng.random() * rng.choice((0.001, 0.1, 5.0))
        if rng.random() < 0.6:
            asked = crowd.again_ms()
            assert asked == 0 or AGAIN_MIN_MS <= asked <= AGAIN_MAX_MS
            if not asked:
                crowd.enter()
        elif crowd.waiting:
            crowd.leave()
        assert crowd.rate >= RATE_MIN
        assert WAITING_MIN <= crowd.room <= WAITING_MAX
        assert crowd.waiting <= WAITING_MAX
