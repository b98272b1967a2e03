"""The log of mappings decides who was first; markers draw the line in the Outbox. Spec: §11."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.errors import ConfigError, RecordError
from qim_streams.ownership.log_fence import BARRIER_KEY, barrier_epoch, encode_barrier, raised
from qim_streams.sharding import rules
from qim_streams.sharding.mapping_log import decode, encode, fold, key_of
from qim_streams.sharding.marker import MARKER_KEY, behind, encode_marker, marked_version
from qim_streams.sharding.rules import ShardMapping

EMPTY = ShardMapping(2)
PLANNED = rules.plan(EMPTY, [0], {0: 5}, [1, 1], 8)
OTHER = rules.plan(EMPTY, [1], {1: 5}, [1, 1], 8)
PREPARED = rules.prepared(PLANNED)
MARKED = rules.marked(PREPARED, [2, 3])
SETTLED = rules.settled(MARKED, {0: 10})


@pytest.mark.parametrize("mapping", [EMPTY, PLANNED, PREPARED, MARKED, SETTLED, rules.abandoned(PLANNED)])
def test_a_mapping_survives_its_bytes(mapping):
    assert decode(encode(mapping)) == mapping


@given(st.binary(max_size=60))
def test_other_bytes_are_no_mapping(data):
    try:
        decode(data)
    except RecordError:
        return
    pytest.fail("random bytes were a mapping")


def test_the_first_record_of_a_revision_stands():
    log = [encode(one) for one in (PLANNED, OTHER, PREPARED, MARKED, PLANNED, MARKED, SETTLED)]
    assert fold(EMPTY, log) == SETTLED
    assert fold(EMPTY, [encode(OTHER), *log]) == OTHER, "steps of a split that lost do not count"
    assert fold(fold(EMPTY, log[:2]), log[2:]) == SETTLED, "in any portions"
    assert len({key_of(one) for one in (PLANNED, PREPARED, MARKED, SETTLED)}) == 4, (
        "compaction keeps every revision"
    )


def test_a_step_that_changes_the_split_does_not_count():
    moved = MARKED._replace(splits=(OTHER.splits[0]._replace(step=rules.Step.MARKED, marks=(2, 3)),))
    assert fold(PREPARED, [encode(moved)]) == PREPARED
    assert fold(PLANNED, [encode(SETTLED._replace(revision=2))]) == PLANNED, "no step is left out"
    assert fold(PLANNED, [encode(MARKED._replace(revision=2))]) == PLANNED
    at_once = PREPARED._replace(revision=1)
    assert fold(EMPTY, [encode(at_once)]) == at_once, "a plan nobody can abandon"


def test_a_split_is_abandoned_or_begun_and_the_log_says_which():
    gone = rules.abandoned(PLANNED)
    assert fold(PLANNED, [encode(gone), encode(PREPARED), encode(MARKED)]) == gone
    assert fold(PLANNED, [encode(PREPARED), encode(gone)]) == PREPARED
    late = gone._replace(revision=PREPARED.revision + 1)
    assert fold(PREPARED, [encode(late)]) == PREPARED, "its markers may be anywhere"


def test_another_number_of_groups_is_refused():
    with pytest.raises(ConfigError, match="QIM_MAILBOX_SHARDS=2"):
        fold(ShardMapping(8), [encode(PLANNED)])


def test_a_marker_is_a_barrier_that_fences_nobody():
    value = encode_marker(3)
    assert MARKER_KEY == BARRIER_KEY
    assert marked_version(MARKER_KEY, value) == 3
    assert barrier_epoch(MARKER_KEY, value) == 1
    assert raised(1_700_000_000, MARKER_KEY, value) == 1_700_000_000
    assert marked_version(b"acme\0chat", value) is None
    assert marked_version(BARRIER_KEY, encode_barrier(1_700_000_000)) is None
    assert marked_version(BARRIER_KEY, b"rubbish") is None
    assert marked_version(BARRIER_KEY, None) is None


def test_versions_come_one_after_the_other():
    assert behind(0, MARKER_KEY, encode_marker(1)) == 1
    assert behind(1, MARKER_KEY, encode_marker(1)) == 1
    assert behind(2, MARKER_KEY, encode_marker(1)) == 2
    assert behind(0, MARKER_KEY, encode_marker(2)) == 2, "the first one was abandoned"
    assert behind(1, b"acme\0chat", b"") == 1
