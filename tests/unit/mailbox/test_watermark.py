"""W: packed form, and the rule by which it moves. T-M6 golden bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.errors import RecordError
from qim_streams.mailbox import watermark

SEQS = st.integers(-1, watermark.SEQ_MAX)
LANES = st.one_of(
    SEQS.map(lambda seq: [seq] * 64),
    st.lists(SEQS, min_size=64, max_size=64),
)


def test_golden_bytes() -> None:
    """T-M6: these bytes are in stores; a version that writes others needs a new marker."""
    assert watermark.pack([7] * 64).hex() == "200000000000000007"
    assert watermark.NOTHING_PACKED.hex() == "20ffffffffffffffff"
    uneven = watermark.pack([7] * 63 + [8])
    assert (len(uneven), uneven[:9].hex(), uneven[-8:].hex()) == (
        513,
        "210000000000000007",
        "0000000000000008",
    )


@given(LANES)
def test_packing_is_reversible_and_canonical(lanes: list[int]) -> None:
    data = watermark.pack(lanes)
    assert list(watermark.unpack(data)) == lanes
    assert watermark.pack(watermark.unpack(data)) == data
    assert len(data) == (9 if len(set(lanes)) == 1 else 513)
    if len(set(lanes)) == 1:
        assert data == watermark.pack_uniform(lanes[0])


@given(st.binary(max_size=520))
def test_any_bytes_give_lanes_or_a_record_error(data: bytes) -> None:
    """T-F1."""
    try:
        lanes = watermark.unpack(data)
    except RecordError:
        return
    assert watermark.pack(lanes) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x20",
        b"\x22" + bytes(8),
        b"\x20" + (2**53).to_bytes(8, "big"),
        b"\x20" + (-2).to_bytes(8, "big", signed=True),
        b"\x21" + bytes(512),  # equal lanes must take the short form
    ],
)
def test_refused_bytes(data: bytes) -> None:
    with pytest.raises(RecordError, match="watermark"):
        watermark.unpack(data)


def test_w_moves_only_from_where_it_stands() -> None:
    """B2, H6: expected_previous is what was read before, whatever the distance."""
    lanes = [4] * 64
    assert watermark.advance(lanes, 4, 9) == (9,) * 64
    assert watermark.advance(lanes, 8, 9) is None
    assert watermark.advance(lanes, 3, 9) is None
    assert watermark.advance([4] * 63 + [5], 4, 9) is None


@pytest.mark.parametrize(("expected", "observed"), [(4, 4), (5, 4), (-2, 0), (0, watermark.SEQ_MAX + 1)])
def test_w_never_goes_back(expected: int, observed: int) -> None:
    with pytest.raises(ValueError, match="W cannot move"):
        watermark.advance([expected] * 64, expected, observed)


def test_coverage_is_the_lowest_lane() -> None:
    assert watermark.coverage([9] * 63 + [2]) == 2
    with pytest.raises(ValueError, match="64 lanes"):
        watermark.pack([1] * 63)
