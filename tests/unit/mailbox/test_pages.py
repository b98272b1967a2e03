"""Bytes of DispatchProgress, and what makes two dispatches the same. T-M6 golden bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.codec import pack_fields
from qim_streams.errors import RecordError
from qim_streams.mailbox import pages
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.floors import UNKNOWN_EPOCH, Floor, decode_floor, floor_key
from qim_streams.mailbox.pages import DoneDispatch, OpenProgress, Page, Seen
from tests.unit.mailbox.dispatches import dispatch

ROWS = st.lists(
    st.tuples(st.integers(0, 5_000), st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8)),
    max_size=20,
    unique_by=lambda row: row[0],
).map(lambda rows: [DoneDispatch(*row) for row in sorted(rows)])


def test_golden_bytes() -> None:
    """T-M6."""
    page = Page(5, 6, 9, [DoneDispatch(5, b"i" * 16, b"d" * 8), DoneDispatch(6, b"j" * 16, b"e" * 8)])
    assert page.encode().hex() == (
        "0196050609c420" + "69" * 16 + "6a" * 16 + "c410" + "64" * 8 + "65" * 8 + "c400"
    )
    holes = Page(5, 9, 9, [DoneDispatch(5, b"i" * 16, b"d" * 8), DoneDispatch(8, b"j" * 16, b"e" * 8)])
    assert holes.encode().hex().endswith("c4080000000003000000")
    assert pages.page_key(5, 6).hex() == "70" + "0000000000000006" + "0000000000000005"
    assert Seen(6, b"digest!!").encode().hex() == "0000000000000006" + b"digest!!".hex()
    assert OpenProgress(7, "7.20", {3: 0b101}).encode().hex() == "01" + "9307a4372e323081" + "03c40105"
    assert pages.content_digest(dispatch(1)).hex() == "c2c244dbe630b1de"


@given(st.integers(0, 2**40), ROWS)
def test_pages_come_back(first: int, rows: list[DoneDispatch]) -> None:
    moved = [row._replace(offset=row.offset + first) for row in rows]
    page = Page(first, first + 6_000, 77, moved)
    assert pages.decode_page(page.encode()) == page


@given(st.dictionaries(st.integers(0, 63), st.integers(1, 2**200), max_size=64))
def test_open_progress_comes_back(done: dict[int, int]) -> None:
    opened = OpenProgress(9, "9.2000", done)
    assert pages.decode_open(opened.encode()) == opened


@pytest.mark.parametrize(
    "data", [b"", b"\x01\x90", b"\x01\x96\x00\x00\x00\xc4\x01a\xc4\x00\xc4\x00", b"\x01\x93\x00\xa0\x00"]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    for decode in (pages.decode_page, pages.decode_open):
        with pytest.raises(RecordError):
            decode(data)


def test_pages_sort_by_offset_above_the_open_record() -> None:
    keys = [pages.page_key(first, last) for first, last in ((0, 9), (5, 9), (10, 255), (0, 256), (0, 2**40))]
    assert keys == sorted(keys)
    assert keys[0] > pages.OPEN_KEY
    assert [pages.page_end(key) for key in keys] == [9, 9, 255, 256, 2**40]
    assert pages.page_end(pages.OPEN_KEY) is None


def test_the_digest_ignores_what_a_repetition_may_change() -> None:
    """T-G1: relayed, from a newer owner, with the members inline or not: the same dispatch."""
    one = dispatch(1)
    for same in (
        one._replace(outbox_offset=99, outbox_partition=3),
        one._replace(fencing_epoch=8),
        one._replace(members=None),
    ):
        assert pages.content_digest(same) == pages.content_digest(one)


@pytest.mark.parametrize(
    "change",
    [
        {"tenant_id": "other"},
        {"message_id": b"x" * 16},
        {"conversation_id": "c2"},
        {"conversation_seq": 9},
        {"last_activity_id": b"x" * 16},
        {"sender_id": "eve"},
        {"membership_version": 9},
        {"target_mailbox_shard": 1},
        {"kind": 1},
        {"sender_ordinal": 9},
        {"sender_device_id": "tv"},
        {"client_message_id": "x"},
        {"body_digest": b"x" * 8},
        {"committed_at": 9},
        {"bitmap_version": 9},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_sees_everything_else(change: dict[str, object]) -> None:
    assert pages.content_digest(dispatch(1)._replace(**change)) != pages.content_digest(dispatch(1))  # type: ignore[arg-type]


def test_floors_come_back() -> None:
    floor = Floor((3,) * 63 + (4,), 2, 77)
    assert decode_floor(floor.encode()) == floor
    old = pack_fields((rule.pack(floor.lanes), 7, 9))
    assert decode_floor(old) == Floor(floor.lanes, 7, 9, UNKNOWN_EPOCH), "written before it said since when"
    assert floor_key(7) == b"w\0\0\0\x07"
    with pytest.raises(RecordError):
        decode_floor(b"\x01\x93\xc4\x00\x00\x00")
