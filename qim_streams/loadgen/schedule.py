"""When messages are due: decided before anything is answered, so a stall cannot hide.

`poisson` draws independent gaps, as many independent people make them (the sum over processes is again
Poisson); `even` spaces messages evenly with a jitter of one gap, for figures without the noise of
bursts. Both are seeded. Times are nanoseconds from the start of the schedule.

Pure.
"""

from collections.abc import Iterator
from random import Random


def poisson(rate: float, end_ns: int, rng: Random) -> Iterator[int]:
    """Arrival times below `end_ns` at `rate` a second."""
    at_s, end_s = 0.0, end_ns / 1e9
    while True:
        at_s += rng.expovariate(rate)
        if at_s >= end_s:
            return
        yield int(at_s * 1e9)


def even(rate: float, end_ns: int, rng: Random) -> Iterator[int]:
    """The same, one message in every gap of 1/rate seconds, at a random place in it; ascending."""
    count = 0
    while True:
        at_ns = int((count + rng.random()) / rate * 1e9)
        if at_ns >= end_ns:
            return
        yield at_ns
        count += 1


ARRIVALS = {"poisson": poisson, "even": even}
