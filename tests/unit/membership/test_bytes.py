"""Bytes of membership: rows of the store, rows of the change log, bitmaps, snapshots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.errors import InvariantViolation, RecordError
from qim_streams.membership import bitmaps
from qim_streams.membership.bitmaps import Seat
from qim_streams.membership.ports import Conversation, Member
from qim_streams.membership.rows import (
    decode_log_row,
    decode_member,
    decode_version,
    encode_member,
    encode_version,
    head_row,
    member_row,
)
from qim_streams.placement import mailbox_shard
from qim_streams.records import unpack_ordinals

u64 = st.integers(0, 2**64 - 1)
edges = st.lists(u64, max_size=20)


@st.composite
def members(draw: st.DrawFn) -> Member:
    points = draw(edges)
    active = bool(len(points) % 2)
    closed = list(zip(points[::2], [*points[1::2], None] if active else points[1::2], strict=True))
    return Member(
        "bob", draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from(("owner", "admin", "member"))), active,
        tuple(closed),
    )  # fmt: skip


@given(members())
def test_member_rows_round_trip(member: Member) -> None:
    assert decode_member("bob", encode_member(member)) == member


def test_golden_member_row() -> None:
    """What the commit script reads: state in byte 0, role in byte 1."""
    row = encode_member(Member("bob", 0x01020304, "admin", True, ((0, 5), (2**53, None))))
    assert row.hex() == "4161" + "01020304" + "0" * 16 + "0000000000000005" + "0020000000000000"


@given(st.binary(max_size=60))
def test_any_bytes_are_a_member_row_or_a_record_error(data: bytes) -> None:
    for decode in (lambda d: decode_member("bob", d), decode_version):
        try:
            decode(data)
        except RecordError:
            continue


@given(u64, st.dictionaries(st.integers(0, 2**32 - 1), u64, max_size=20))
def test_version_rows_round_trip(at_ms: int, version_map: dict[int, int]) -> None:
    assert decode_version(encode_version(at_ms, version_map)) == (at_ms, version_map)


HEAD = Conversation("t", "g", "group", 7, 99, "N", "members", "open", "all", 50, 2, 123, "ann", True)


@given(members())
def test_change_log_rows_round_trip(member: Member) -> None:
    row = member_row(HEAD, member)
    assert row.key == b"t\0g\0bob"
    assert decode_log_row(row.key, row.value) == (7, member)


def test_the_head_in_the_change_log_has_no_seq() -> None:
    row = head_row(HEAD)
    assert row.key == b"t\0g\0"
    version, head = decode_log_row(row.key, row.value)
    assert version == 7
    assert isinstance(head, Conversation)
    assert (head.seq, head.name, head.dismissed, head.creator_id) == (0, "N", True, "ann")


@given(st.binary(max_size=40), st.binary(max_size=60))
def test_any_bytes_are_a_log_row_or_a_record_error(key: bytes, value: bytes) -> None:
    for data in (value, b"\x01" + value, head_row(HEAD).value + value):
        for name in (key, b"t\0g\0"):
            try:
                decode_log_row(name, data)
            except RecordError:
                continue


# -- bitmaps


def test_a_change_writes_only_the_shards_it_touches() -> None:
    before = bitmaps.changed({}, {1: [1, 2, 3], 2: [9]}, {})
    after = bitmaps.changed(before, {1: [4]}, {1: [2]})
    assert list(after) == [1]
    assert set(bitmaps.decode(after[1])) == {1, 3, 4}
    assert bitmaps.changed(after | {2: before[2]}, {}, {2: [9]}) == {2: b""}


def test_rows_and_bitmaps_that_disagree_are_noticed() -> None:
    before = bitmaps.changed({}, {1: [1, 2]}, {})
    for joins, leaves in (({1: [2]}, {}), ({}, {1: [3]}), ({}, {2: [1]})):
        with pytest.raises(InvariantViolation):
            bitmaps.changed(before, joins, leaves)


@given(st.sets(st.integers(0, 2**32 - 1), max_size=300), st.randoms())
def test_equal_sets_have_equal_bytes(ordinals: set[int], rng: object) -> None:
    shuffled = list(ordinals)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    one = bitmaps.changed({}, {0: sorted(ordinals)}, {})[0]
    two = bitmaps.changed(bitmaps.changed({}, {0: shuffled[1:]}, {}), {0: shuffled[:1]}, {})[0]
    assert one == two


@given(st.binary(max_size=80))
def test_any_bytes_are_a_bitmap_or_a_record_error(data: bytes) -> None:
    try:
        bitmaps.decode(data)
    except RecordError:
        return


def test_seats_are_grouped_by_shard() -> None:
    seats = [Seat(f"u{n}", n) for n in range(100)]
    grouped = bitmaps.by_shard("t", seats, 16)
    assert sorted(o for group in grouped.values() for o in group) == list(range(100))
    assert all(mailbox_shard("t", f"u{o}", 16) == shard for shard, group in grouped.items() for o in group)


def test_a_snapshot_is_sorted_and_names_the_bitmap_versions() -> None:
    blobs = bitmaps.changed({}, {5: [70, 6], 2: [9]}, {})
    made = bitmaps.snapshot({5: 3, 2: 1}, blobs)
    assert {shard: (version, unpack_ordinals(packed)) for shard, (version, packed) in made.items()} == {
        2: (1, [9]),
        5: (3, [6, 70]),
    }
