"""Placement: golden vectors (T-M6), independence of lane and shard count, ordinals that carry the lane."""

from collections import Counter

import pytest

from qim_streams.ids import direct_conversation_id
from qim_streams.placement import (
    LANES,
    ORDINAL_MAX,
    lane,
    lane_of_ordinal,
    mailbox_shard,
    ordinal_of,
    outbox_partition,
)

USERS = ("ann", "bob", "cat", "dan")


def test_golden_placement() -> None:
    """T-M6: written once; a change here moves users away from their mailboxes."""
    assert [lane("acme", user) for user in USERS] == [1, 52, 19, 8]
    assert [mailbox_shard("acme", user, 16) for user in USERS] == [9, 5, 7, 1]
    assert [mailbox_shard("acme", user, 256) for user in USERS] == [89, 69, 7, 145]
    assert [outbox_partition("acme", chat, 8) for chat in ("g1", "g2", "g3")] == [4, 1, 0]
    assert [outbox_partition("acme", chat, 64) for chat in ("g1", "g2", "g3")] == [44, 41, 40]
    assert outbox_partition("acme", direct_conversation_id("acme", "ann", "bob"), 64) == 29


def test_placement_spreads_evenly() -> None:
    users = [f"user{n}" for n in range(16_000)]
    for counts, buckets in (
        (Counter(lane("t", user) for user in users), LANES),
        (Counter(mailbox_shard("t", user, 16) for user in users), 16),
        (Counter(outbox_partition("t", user, 8) for user in users), 8),
    ):
        assert len(counts) == buckets
        mean = len(users) / buckets
        assert 0.7 * mean < min(counts.values()) <= max(counts.values()) < 1.3 * mean


def test_lane_and_shard_are_independent() -> None:
    """Users of one shard sit in all lanes."""
    of_shard = [f"u{n}" for n in range(8_000) if mailbox_shard("t", f"u{n}", 16) == 3]
    assert len({lane("t", user) for user in of_shard}) == LANES


def test_tenants_are_placed_apart() -> None:
    assert [lane("a", user) for user in USERS] != [lane("b", user) for user in USERS]


def test_an_ordinal_carries_its_lane() -> None:
    for count, lane_id in ((0, 0), (0, 63), (1, 5), (2**26 - 1, 63)):
        ordinal = ordinal_of(count, lane_id)
        assert lane_of_ordinal(ordinal) == lane_id
        assert ordinal >> 6 == count
    assert ordinal_of(2**26 - 1, 63) == ORDINAL_MAX
    with pytest.raises(OverflowError):
        ordinal_of(2**26, 0)
