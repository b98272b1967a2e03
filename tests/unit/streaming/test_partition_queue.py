"""What waits behind a partition's records in flight: nothing overtakes, nothing stays behind."""

import threading
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from qim_streams.streaming.partition_queue import PartitionQueue


def queue() -> PartitionQueue[int]:
    return PartitionQueue(threading.Lock())


def test_who_opened_it_goes_on_and_others_wait_for_the_end() -> None:
    line = queue()
    first, second = object(), object()
    assert line.enter(first, 1)
    assert line.enter(first, 2)
    assert not line.enter(second, 3)
    assert line.settle() == []
    assert not line.enter(first, 4)  # its first ones are on their way: 3 came before
    assert line.settle() == [3, 4]
    assert not line.enter(first, 5)
    assert line.settle(2) == [5]
    assert line.settle() == []
    assert line.enter(second, 6)


@given(st.lists(st.one_of(st.integers(1, 4), st.just(0)), max_size=60))
def test_items_leave_in_the_order_in_which_they_came(steps: list[int]) -> None:
    """A step: so many items of one caller enter, or (0) one that is in flight is settled."""
    line, came, left, in_flight = queue(), 0, [], deque[int]()

    def leave(items: list[int]) -> None:
        left.extend(items)
        in_flight.extend(items)

    for step in steps:
        caller = object()
        for _ in range(step):
            was_empty = not in_flight
            goes = line.enter(caller, came)
            assert goes or not was_empty
            leave([came] if goes else [])
            came += 1
        if step == 0 and in_flight:
            in_flight.popleft()
            leave(line.settle())
    while in_flight:
        in_flight.popleft()
        leave(line.settle())
    assert left == list(range(came))
