"""Recipients by lane. Spec: §5."""

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


@given(MEMBERS)
def test_touched_lanes_are_those_with_members(members: BitMap) -> None:
    """Empty lanes get no subtask; few members and many give the same."""
    expected = [(lane, list(found)) for lane, found in enumerate(lanes.by_lane(members)) if found]
    for form in (members, members.to_array().tolist()):
        assert [(lane, list(found)) for lane, found in lanes.touched(form)] == expected
