"""Mapping versions, and positions of users who moved. Spec: §2, §11."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.errors import ConfigError, InvariantViolation
from qim_streams.placement import LANES, lane_of_ordinal, mailbox_shard, ordinal_of
from qim_streams.sharding import rules
from qim_streams.sharding.rules import Part, Placement, ShardMapping, Step

GROUPS, PARTITIONS = 4, 2


def grown(*turns: list[int], groups: int = GROUPS) -> ShardMapping:
    """A mapping after settled splits of these shards."""
    mapping = ShardMapping(groups)
    for turn, olds in enumerate(turns):
        ends = dict.fromkeys(olds, 10 * (turn + 1))
        mapping = rules.plan(mapping, olds, ends, [5] * PARTITIONS, 4_096)
        mapping = rules.marked(rules.prepared(mapping), [7] * PARTITIONS)
        mapping = rules.settled(mapping, {old: end + 3 for old, end in ends.items()})
    return mapping


TURNS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), min_size=0, max_size=4)


def test_without_a_split_everybody_is_where_the_hash_says():
    placement = Placement(ShardMapping(8))
    assert placement.version == placement.known == 0
    assert placement.shards == 8
    for number in range(200):
        assert placement.home("acme", f"u{number}", number) == mailbox_shard("acme", f"u{number}", 8)
    assert placement.parts(3) == (Part(3, 0, rules.SEQ_MAX),)


@given(TURNS, st.integers(0, 4))
def test_the_shards_of_a_version_share_a_group_without_rest_or_overlap(turns, version):
    mapping = grown(*turns)
    placement, version = Placement(mapping), min(version, len(turns))
    ordinals = list(range(0, 4_000, 7))
    for group in range(GROUPS):
        shares = [placement.select(ordinals, shard, version) for shard in placement.targets(group, version)]
        assert sorted(one for share in shares for one in share) == ordinals
        for shard in placement.targets(group, version):
            assert placement.group_of(shard) == group
            share = placement.select(ordinals, shard, version)
            assert share == [one for one in ordinals if placement.place(group, one, version) == shard]


@given(TURNS.filter(bool))
def test_a_split_moves_half_of_its_shards_users_and_nobody_else(turns):
    mapping = grown(*turns)
    placement, last = Placement(mapping), mapping.splits[-1]
    moved = {pair.old: pair.new for pair in last.pairs}
    for group in range(GROUPS):
        for ordinal in range(0, 2_000, 3):
            before = placement.place(group, ordinal, last.version - 1)
            after = placement.place(group, ordinal, last.version)
            assert after == before or after == moved[before]


def test_halves_are_even_at_every_depth_and_in_every_lane():
    placement = Placement(grown([0], [0, 4], [0, 4, 5, 6]))
    for lane in range(0, LANES, 9):
        ordinals = [ordinal_of(count, lane) for count in range(4_000)]
        sizes = [len(placement.select(ordinals, shard, 3)) for shard in placement.targets(0, 3)]
        assert len(sizes) == 8
        assert max(sizes) - min(sizes) < 0.05 * sum(sizes) / len(sizes)
        assert {lane_of_ordinal(one) for one in placement.select(ordinals, 4, 3)} == {lane}


@given(TURNS.filter(bool))
def test_parts_ascend_without_overlap_and_end_in_the_shard(turns):
    placement = Placement(grown(*turns))
    for shard in range(placement.shards):
        parts = placement.parts(shard)
        assert parts[-1].shard == shard
        assert parts[0].shard == placement.group_of(shard)
        assert parts[0].first == 0
        assert parts[-1].through == rules.SEQ_MAX
        assert all(before.through < after.first for before, after in pairwise(parts))


PARTS = (Part(1, 0, 99), Part(5, 1_000, 1_099), Part(9, 5_000, rules.SEQ_MAX))


@pytest.mark.parametrize(
    ("watermarks", "expected"),
    [
        ((-1, -1, -1), -1),
        ((98, 1_200, 5_001), 98),  # the later parts show nothing before the first is complete
        ((99, -1, -1), 999),  # and then nothing is missing up to where the next begins
        ((250, -1, -1), 999),  # the old shard goes on with those who stayed
        ((99, 1_050, -1), 1_050),
        ((99, 1_099, -1), 4_999),
        ((99, 1_100, 5_007), 5_007),
    ],
)
def test_w_of_a_user_who_moved(watermarks, expected):
    assert rules.covered(PARTS, watermarks) == expected


@given(
    st.tuples(st.integers(-1, 200), st.integers(-1, 1_200), st.integers(-1, 5_100)),
    st.tuples(st.integers(0, 100), st.integers(0, 300), st.integers(0, 100)),
)
def test_w_of_a_user_who_moved_only_grows(before, more):
    later = tuple(one + step for one, step in zip(before, more, strict=True))
    assert rules.covered(PARTS, later) >= rules.covered(PARTS, before)


def test_ranges_are_read_from_where_they_lie():
    assert rules.stretch(PARTS, -1, 6_000) == [(1, -1, 99), (5, 999, 1_099), (9, 4_999, 6_000)]
    assert rules.stretch(PARTS, 99, 999) == []
    assert rules.stretch(PARTS, 50, 1_000) == [(1, 50, 99), (5, 999, 1_000)]
    assert rules.distance(PARTS, 50, 1_000) == 50
    assert rules.distance(PARTS, -1, 4_999) == 200


def test_trims_and_boundaries_reach_no_further_than_their_part():
    assert rules.trimmed(PARTS, (500, -1, -1)) == 99  # what trims those who stayed is not his
    assert rules.trimmed(PARTS, (50, -1, -1)) == 50
    assert rules.trimmed(PARTS, (-1, 1_020, -1)) == 1_020
    assert rules.boundary_within(PARTS, 9, -1) == 4_999  # nothing of its own part was covered yet
    assert rules.boundary_within(PARTS, 9, 5_003) == 5_003
    assert rules.boundary_within(PARTS, 1, 700) == 99
    assert rules.boundary_within(PARTS, 1, None) is None


def test_the_steps_come_in_order_and_are_checked():
    mapping = rules.plan(ShardMapping(2), [1, 0], {0: 7, 1: 0}, [3, 4], 4)
    assert [(p.old, p.new, p.bit, p.first) for p in mapping.splits[0].pairs] == [
        (0, 2, 0, rules.FIRST_STEP),
        (1, 3, 0, rules.FIRST_STEP),
    ]
    assert mapping.under_way is not None
    assert mapping.under_way.step is Step.PLANNED
    assert Placement(mapping).version == 0, "readers change over when it is settled"
    with pytest.raises(ConfigError, match="under way"):
        rules.plan(mapping, [0], {0: 7}, [3, 4], 8)
    with pytest.raises(InvariantViolation, match="no split is MARKED"):
        rules.settled(mapping, {0: 1, 1: 1})
    with pytest.raises(InvariantViolation, match="no split is PREPARED"):
        rules.marked(mapping, [3, 9])
    mapping = rules.prepared(mapping)
    with pytest.raises(InvariantViolation, match="no split is PLANNED"):
        rules.abandoned(mapping)
    with pytest.raises(InvariantViolation, match="marks"):
        rules.marked(mapping, [3, 2])
    mapping = rules.marked(mapping, [3, 9])
    with pytest.raises(InvariantViolation, match="ends at"):
        rules.settled(mapping, {0: rules.FIRST_STEP + 1, 1: 1})
    mapping = rules.settled(mapping, {0: 12, 1: 0})
    assert mapping.under_way is None
    assert Placement(mapping).version == 1
    assert Placement(mapping).parts(2) == (
        Part(0, 0, 11),
        Part(2, rules.FIRST_STEP, rules.SEQ_MAX),
    )


def test_a_split_that_was_abandoned_moves_nobody_and_is_counted():
    mapping = rules.plan(grown([0]), [0, 4], {0: 30, 4: 2}, [9, 9], 64)
    assert (Placement(mapping).known, Placement(mapping).first_of(5)) == (1, 0), "nobody counts on it yet"
    mapping = rules.abandoned(mapping)
    placement = Placement(mapping)
    assert (mapping.under_way, placement.version, placement.known, placement.shards) == (None, 2, 2, 5)
    assert all(placement.place(0, one, 2) == placement.place(0, one, 1) for one in range(500))
    again = rules.plan(mapping, [0], {0: 30}, [9, 9], 64).splits[-1]
    assert (again.version, [(one.new, one.bit) for one in again.pairs]) == (3, [(5, 1)])


@pytest.mark.parametrize("olds", [[], [0, 0], [9], [-1]])
def test_what_cannot_be_split_is_refused(olds):
    with pytest.raises(ConfigError, match="shards"):
        rules.plan(ShardMapping(2), olds, dict.fromkeys(olds, 0), [0], 8)


def test_no_room_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match="QIM_MAILBOX_SHARDS_MAX"):
        rules.plan(ShardMapping(2), [0], {0: 0}, [0], 2)


def test_a_new_shard_begins_above_everything_of_the_old_one():
    mapping = grown([0])
    first = Placement(mapping).first_of(4)
    again = rules.plan(mapping, [4], {4: 77}, [0, 0], 4_096)
    assert again.splits[1].pairs[0].first == first + rules.FIRST_STEP
    assert again.splits[1].pairs[0].bit == 1


def test_a_new_shard_that_got_nothing_is_split_again():
    """Its end is where it begins: one before all shards would send whoever moves twice to his first entry."""
    mapping = grown([0])
    first = Placement(mapping).first_of(4)
    again = rules.plan(mapping, [4], {4: 0}, [9, 9], 4_096)
    assert again.splits[1].pairs[0].first == first + rules.FIRST_STEP, (
        "it may get records until it is settled"
    )
    again = rules.settled(rules.marked(rules.prepared(again), [9, 9]), {4: 0})
    parts = Placement(again).parts(5)
    assert [part.through for part in parts[:2]] == [12, first - 1]
    assert rules.covered(parts, (12, -1, -1)) == first + rules.FIRST_STEP - 1
    assert rules.stretch(parts, min(first - 1, parts[1].through), rules.SEQ_MAX) == [
        (5, first + rules.FIRST_STEP - 1, rules.SEQ_MAX)
    ]
