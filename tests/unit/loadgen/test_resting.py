"""A search's next run begins when the stack has come to rest."""

from collections.abc import Iterator

from qim_streams.loadgen.resting import LOOK_S, WAIT_MAX_S, until_idle


class Clock:
    """Time that only sleeping takes."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def used(cores: Iterator[float]) -> Iterator[float]:
    """Seconds of CPU at each look, with so many cores busy before it."""
    total = 7.0
    while True:
        yield total
        total += LOOK_S * next(cores)


async def test_it_waits_while_the_stack_is_at_work() -> None:
    clock, seen = Clock(), used(iter([1.9, 1.2, 0.6, 0.4]))
    assert await until_idle(lambda: next(seen), monotonic=clock, sleep=clock.sleep)
    assert clock.now_s == 100.0 + 4 * LOOK_S


async def test_it_does_not_wait_for_ever() -> None:
    clock, seen = Clock(), used(iter(lambda: 1.5, 0.0))
    assert not await until_idle(lambda: next(seen), monotonic=clock, sleep=clock.sleep)
    assert clock.now_s == 100.0 + WAIT_MAX_S


async def test_a_stack_out_of_reach_is_at_rest() -> None:
    clock = Clock()
    assert await until_idle(lambda: 0.0, monotonic=clock, sleep=clock.sleep)
