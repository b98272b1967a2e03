"""The frame of records: version byte, msgpack array, bounds; whatever fails names what and why."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams import codec
from qim_streams.errors import RecordError


def test_fields_come_back_as_tuples_all_the_way_down() -> None:
    data = codec.pack_fields((1, [2, [b"x"]], {5: [6, b"y"]}))
    assert codec.unpack_fields(data, 3, "it") == (1, (2, (b"x",)), {5: (6, b"y")})


def test_a_record_may_lie_behind_a_head() -> None:
    data = b"head" + codec.pack_fields(("a", None))
    assert codec.unpack_fields(data, 2, "it", at=4) == ("a", None)
    with pytest.raises(RecordError, match="it: version 104"):
        codec.unpack_fields(data, 2, "it")
    for short in (b"", b"head"):
        with pytest.raises(RecordError, match="it: no bytes"):
            codec.unpack_fields(short, 2, "it", at=4)


def test_more_fields_than_asked_for_are_kept() -> None:
    assert codec.unpack_fields(codec.pack_fields((1, 2, 3)), 2, "it") == (1, 2, 3)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (msgpack.packb({1: 2}), "an array of at least 2"),
        (msgpack.packb([1]), "an array of at least 2"),
        (msgpack.packb([1, 2])[:-1], "not msgpack"),
        (msgpack.packb([1, 2]) + b"\x00", "not msgpack"),
        (b"\x92\x81\x91\x81\x01\x02\x03\x04", "not msgpack"),  # a map whose key is an array with a map in it
        (b"\x92\x01\xa1\xff", "not msgpack"),  # text that is not UTF-8
        (b"\x91" * 100_000 + b"\x01", "not msgpack"),
        (b"\xc1", "not msgpack"),
    ],
)
def test_anything_else_is_refused(body: bytes, cause: str) -> None:
    with pytest.raises(RecordError, match=cause):
        codec.unpack_fields(b"\x01" + body, 2, "it")


def test_nothing_over_the_limit_is_unpacked() -> None:
    with pytest.raises(RecordError, match="over the limit"):
        codec.unpack_fields(b"\x01" + bytes(codec.RECORD_BYTES_MAX), 1, "it")
    with pytest.raises(RecordError, match="over the limit"):
        codec.pack_fields((bytes(codec.RECORD_BYTES_MAX),))


LAYOUT = codec.Layout("it", int, str | None, bytes, dict[int, tuple[int, bytes]] | None, tuple[int, ...])
USUAL = (7, None, b"x", {3: (1, b"y")}, (1, 2))


def test_a_layout_reads_what_was_packed_and_keeps_what_a_newer_version_adds() -> None:
    data = codec.pack_fields(USUAL)
    assert LAYOUT.read(data) == LAYOUT.read(b"head" + data, 4) == USUAL
    assert LAYOUT.read(codec.pack_fields((*USUAL, "new", [1]))) == (*USUAL, "new", (1,))


@pytest.mark.parametrize(
    ("index", "value", "cause"),
    [
        (0, "7", "it: field 0 is str"),
        (1, b"x", "it: field 1 is bytes"),
        (2, "x", "it: field 2 is str"),
        (3, {3: (1, "y")}, "it: Expected `bytes`"),
        (3, {"3": (1, b"y")}, "it: Expected `int`"),
        (3, {3: (1,)}, "it: Expected `array` of length 2"),
        (4, [1, None], "it: Expected `int`"),
        (4, None, "it: field 4 is NoneType"),
    ],
)
@pytest.mark.parametrize("tail", [(), ("new",)])
def test_a_layout_says_what_does_not_fit(
    index: int, value: object, cause: str, tail: tuple[str, ...]
) -> None:
    fields: list[object] = [*USUAL, *tail]
    fields[index] = value
    with pytest.raises(RecordError, match=cause):
        LAYOUT.read(codec.pack_fields(tuple(fields)))


@given(st.binary(max_size=80))
def test_any_bytes_give_a_record_or_say_why_not(body: bytes) -> None:
    for data in (body, b"\x01" + body, b"\x01\x95" + body):
        try:
            read: object = LAYOUT.read(data)
        except RecordError as error:
            read = str(error)
        assert read.startswith("it: ") if isinstance(read, str) else type(read) is tuple


Values = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.integers(0, 99), inner, max_size=3),
)


@given(st.lists(Values, max_size=6))
def test_the_bytes_are_those_of_any_other_msgpack_writer(fields: list[object]) -> None:
    """A record that is planned again has the bytes that an older version gave it."""
    assert codec.pack_fields(tuple(fields))[1:] == msgpack.packb(fields, use_bin_type=True)
