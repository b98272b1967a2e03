"""Epoch boundaries: the record, and the position that survives a chain of takeovers (E8, T-M6; Spec §11)."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.errors import RecordError
from qim_streams.placement import LANES
from qim_streams.sync.boundaries import EpochBoundary, decode_boundary, resolve

SEQS = st.integers(-1, 2**53 - 1)
LANE_VALUES = st.one_of(
    SEQS.map(lambda seq: (seq,) * LANES), st.lists(SEQS, min_size=LANES, max_size=LANES).map(tuple)
)
BOUNDARIES = st.builds(EpochBoundary, st.integers(0, 2**64 - 1), LANE_VALUES)


def test_golden_vector() -> None:
    """T-M6: the bytes that `leases.lua` writes for a shard whose lanes stand together."""
    one = EpochBoundary(1_700_000_000_000, (515,) * LANES)
    assert one.encode().hex() == "0000018bcfe56800" + "20" + "0000000000000203"


@given(BOUNDARIES)
def test_round_trip(boundary: EpochBoundary) -> None:
    assert decode_boundary(boundary.encode()) == boundary


@given(st.binary(max_size=40))
def test_other_bytes_are_refused_or_mean_themselves(data: bytes) -> None:
    """T-F1: any bytes give a record or RecordError."""
    with suppress(RecordError):
        assert decode_boundary(data).encode() == data


@given(st.lists(st.none() | BOUNDARIES, min_size=1, max_size=6), st.integers(0, LANES - 1))
def test_the_lowest_counts_and_a_missing_one_makes_it_unknown(
    since: list[EpochBoundary | None], lane: int
) -> None:
    known = [one.lanes[lane] for one in since if one is not None]
    assert resolve(since, lane) == (min(known) if len(known) == len(since) else None)


def test_lanes_are_apart() -> None:
    """A lane that stood behind does not cut the positions of the others."""
    lanes = tuple(range(LANES))
    assert [resolve([EpochBoundary(0, lanes)], lane) for lane in (0, 63)] == [0, 63]
    with pytest.raises(RecordError):
        decode_boundary(b"")
