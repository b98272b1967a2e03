"""Whose turn it is: no lane is starved, whatever the others have waiting."""

import random

from hypothesis import given
from hypothesis import strategies as st

from qim_streams.streaming.lane import Lane, take
from tests.unit.streaming.fakes import chunk


def lane(partition: int, *sizes: int) -> Lane:
    one, at = Lane(partition, 1, 0, -1), 0
    for size in sizes:
        one.chunks.append(chunk(at, at + size - 1, partition=partition))
        at += size
    return one


def test_a_large_first_chunk_gets_its_turn() -> None:
    """A lane whose chunk never fits beside the others is swept when it has waited longest."""
    small, large = lane(0, *([4] * 50)), lane(1, 10)
    turns = []
    for turn in range(1, 4):
        taken = take([one for one in (small, large) if one.chunks], 10, turn)
        turns.append({one.partition: len(chunks) for one, chunks in taken.items()})
    assert any(1 in one for one in turns[:2]), turns


def test_one_backlog_does_not_take_a_whole_sweep() -> None:
    taken = take([lane(0, *([5] * 100)), lane(1, 5), lane(2, 5)], 50, 1)
    assert {one.partition: len(chunks) for one, chunks in taken.items()} == {0: 8, 1: 1, 2: 1}


@given(
    st.lists(st.lists(st.integers(1, 10), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(0, 99),
)
def test_everything_is_taken_once_in_order_within_bounds(sizes: list[list[int]], seed: int) -> None:
    lanes = [lane(partition, *one) for partition, one in enumerate(sizes)]
    order = random.Random(seed)
    seen: dict[int, list[int]] = {one.partition: [] for one in lanes}
    waited = dict.fromkeys(seen, 0)
    turn = 0
    while ready := [one for one in lanes if one.chunks]:
        turn += 1
        order.shuffle(ready)
        taken = take(ready, 10, turn)
        assert taken
        assert sum(len(piece.records) for pieces in taken.values() for piece in pieces) <= 10
        for one in ready:
            waited[one.partition] = 0 if one in taken else waited[one.partition] + 1
            assert waited[one.partition] < len(lanes), "somebody is always left out"
        for one, pieces in taken.items():
            seen[one.partition] += [record.offset for piece in pieces for record in piece.records]
    assert all(offsets == list(range(sum(one))) for offsets, one in zip(seen.values(), sizes, strict=True))
