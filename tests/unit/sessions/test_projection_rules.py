"""Folding sweeps into rows: a maximum and a minimum, whatever the order and the cuts. F19's rule for rows.

Spec: §9.
"""

import random

import pytest
from pyroaring import BitMap

from qim_streams.errors import RecordError
from qim_streams.hlc import encode
from qim_streams.mailbox.members import Addressed, Members
from qim_streams.records import GroupDispatch
from qim_streams.sessions.projection_ports import CoverOf
from qim_streams.sessions.projection_records import (
    Cover,
    Registration,
    SessionRow,
    decode_registration,
    slot_of,
)
from qim_streams.sessions.projection_rules import Folded, Folder, is_covered, newcomers, rows_of

SHARD, WIDE = 2, 4


def dispatch(
    seq: int, at_ms: int, conversation: str = "c1", kind: int = 0, version: int = 1
) -> GroupDispatch:
    """A dispatch; of its fields only those that the projection reads matter."""
    activity = encode(at_ms, seq % 7, 1)
    return GroupDispatch(
        "acme", b"d" * 16, activity, conversation, seq, activity, "ann", 1, 1, SHARD, kind, 0, "phone", "m",
        b"digest!!", 0, seq, at_ms, version, None,
    )  # fmt: skip


def fold(*records: Addressed, wide_above: int = WIDE) -> Folded:
    folder = Folder(wide_above)
    folder.add(SHARD, records)
    return folder.folded()


def addressed(offset: int, one: GroupDispatch | None, members: Members) -> Addressed:
    return Addressed(offset, one, members)


def test_a_sweep_keeps_the_greatest_of_a_conversation() -> None:
    """F19: seqs 5, 9, 7 of one conversation in one batch are 9's activity, and 5 is the first."""
    found = fold(*(addressed(seq, dispatch(seq, 100 + seq), [1, 65]) for seq in (5, 9, 7)))
    assert found.rows == {("acme", 1): [SessionRow(1, "c1", 109, 5), SessionRow(65, "c1", 109, 5)]}
    assert found.wide == []


def test_order_repetition_and_cuts_change_nothing() -> None:
    chance = random.Random(7)
    records = [
        addressed(number, dispatch(number + 1, 100 + number // 2, f"c{number % 3}"), [number % 5, 64, 130])
        for number in range(40)
    ]
    whole = fold(*records).rows
    for _ in range(20):
        shuffled = [*records, *chance.choices(records, k=10)]
        chance.shuffle(shuffled)
        again = fold(*shuffled).rows
        assert {slot: sorted(rows) for slot, rows in again.items()} == {
            slot: sorted(rows) for slot, rows in whole.items()
        }


def test_only_messages_move_a_conversation() -> None:
    assert fold(addressed(0, dispatch(1, 5, kind=1), [1]), addressed(1, None, [2])) == Folded({}, [])


def test_a_wide_message_writes_no_rows_and_stands_for_its_version() -> None:
    members = BitMap(range(WIDE + 1))
    one = [addressed(at, dispatch(at, at, "big", version=v), members) for at, v in ((3, 1), (4, 1), (5, 2))]
    found = fold(*one, addressed(6, dispatch(6, 6), list(range(WIDE))))
    assert [(wide.offset, wide.bitmap_version, wide.seq) for wide in found.wide] == [(3, 1, 3), (5, 2, 5)]
    assert found.wide[0].of == CoverOf(SHARD, "acme", "big")
    assert sum(len(rows) for rows in found.rows.values()) == WIDE


def test_rows_of_a_wide_message() -> None:
    (wide,) = fold(addressed(3, dispatch(3, 30, "big"), BitMap(range(200)))).wide
    assert rows_of(wide, [1, 65, 2]) == {
        ("acme", 1): [SessionRow(1, "big", 30, 3, True), SessionRow(65, "big", 30, 3, True)],
        ("acme", 2): [SessionRow(2, "big", 30, 3, True)],
    }


def test_newcomers() -> None:
    assert list(newcomers(BitMap([1, 2, 3]), BitMap([2, 9]))) == [1, 3]
    assert list(newcomers([1, 2, 3], BitMap([2, 9]))) == [1, 3]
    assert list(newcomers([1, 2], None)) == [1, 2]
    assert list(newcomers(BitMap([1, 2]), None)) == [1, 2]


@pytest.mark.parametrize(
    ("cover", "covered"),
    [(None, False), (Cover(5, 9), True), (Cover(5, 10), True), (Cover(5, 8), False), (Cover(4, 10), False)],
)
def test_a_cover_holds_in_its_epoch_and_for_what_came_before(cover: Cover | None, covered: bool) -> None:
    assert is_covered(cover, 5, 9) is covered


def test_a_registration_comes_back_from_its_bytes() -> None:
    one = Registration("acme", 65, "g.1~x@y-z", 2**53 - 1, 2**48 - 1, True)
    assert decode_registration("acme", one.field.encode(), one.encode()) == one
    assert slot_of("acme", 65) == ("acme", 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [(b"65:c", b""), (b"65:c", b"\2" + bytes(17)), (b"65", b"\1" + bytes(17)), (b"x:c", b"\1" + bytes(17))],
)
def test_other_bytes_are_no_registration(field: bytes, value: bytes) -> None:
    with pytest.raises(RecordError):
        decode_registration("acme", field, value)
