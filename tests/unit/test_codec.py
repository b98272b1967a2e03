"""The frame of records: version byte, msgpack array, bounds; whatever fails names what and why."""

import msgpack
import pytest

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
