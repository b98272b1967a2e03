"""Lane subtasks, chunks and steps. Spec: §5."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from qim_streams.mailbox import lanes
from qim_streams.placement import lane_of_ordinal

MEMBERS = st.sets(st.one_of(st.integers(0, 2_000), st.integers(0, 2**32 - 1)), max_size=300).map(BitMap)


@given(MEMBERS)
def test_grouping_is_by_the_low_six_bits(members: BitMap) -> None:
    grouped = lanes.by_lane(members)
    assert len(grouped) == 64
    for lane, ordinals in enumerate(grouped):
        assert list(ordinals) == [one for one in members if lane_of_ordinal(one) == lane]


@given(MEMBERS, st.integers(1, 40))
def test_steps_hold_every_member_once_within_the_bound(members: BitMap, entries_max: int) -> None:
    steps = lanes.plan_steps(members, entries_max)
    written = [one for step in steps for chunk in step.chunks for one in chunk.ordinals]
    assert sorted(written) == list(members)
    assert all(0 < step.size <= entries_max for step in steps)
    chunks = [chunk for step in steps for chunk in step.chunks]
    assert all(chunk.ordinals for chunk in chunks), "an empty lane got a subtask"
    assert len({(chunk.lane, chunk.number) for chunk in chunks}) == len(chunks)
    assert steps == lanes.plan_steps(members, entries_max), "the plan must be the same after a crash"


def test_a_hundred_thousand_members_take_few_steps() -> None:
    """Lanes of about 1,560 members: no step is half empty but the last."""
    members = BitMap(range(0, 1_000_000, 10)) | BitMap(range(1, 1_000_000, 10))
    steps = lanes.plan_steps(members, 2_000)
    assert sum(step.size for step in steps) == len(members) == 200_000
    assert len(steps) <= 128


def test_progress_is_a_set_union() -> None:
    """§14.6: a done chunk stays done, and only whole steps from the first one on count."""
    steps = lanes.plan_steps(BitMap(range(300)), 20)
    done: dict[int, int] = {}
    assert lanes.steps_done(steps, done) == 0
    later = lanes.mark(done, steps[1])
    assert lanes.steps_done(steps, later) == 0
    both = lanes.mark(later, steps[0])
    assert lanes.steps_done(steps, both) == 2
    assert lanes.mark(both, steps[0]) == both
    assert done == {}
    for step in steps:
        both = lanes.mark(both, step)
    assert lanes.steps_done(steps, both) == len(steps)


def test_no_members_no_steps() -> None:
    assert lanes.plan_steps(BitMap(), 10) == []
    with pytest.raises(ValueError, match="entries_max"):
        lanes.plan_steps(BitMap([1]), 0)
