"""Bytes of log records and stored values: one version byte, then a msgpack array.

A `Layout` reads a record of its usual form, exactly the fields that this version writes, in one step of C:
unpacking and checking types together, a third of the time. Anything else (a longer array of a newer version,
malformed bytes) is read again field by field, which says what is wrong.

Invariants: any bytes give a value or `RecordError`, never another exception; a longer array of a
newer minor version keeps its tail (`extra`), so re-encoding loses nothing; nothing larger than the
stated limit is unpacked. Field meaning lives in ``records``.
"""

from types import GenericAlias, UnionType
from typing import Any, get_args, get_origin

import msgpack
import msgspec

from qim_streams.errors import RecordError

VERSION = 1
RECORD_BYTES_MAX = 1_000_000

_VERSION = bytes([VERSION])
_unpackb = msgpack.unpackb
_pack = msgspec.msgpack.Encoder().encode


def pack_fields(fields: tuple[Any, ...]) -> bytes:
    """The bytes of a record body: version byte and msgpack array; RecordError over the size limit."""
    data = _VERSION + _pack(fields)
    if len(data) > RECORD_BYTES_MAX:
        raise RecordError(f"record of {len(data)} bytes is over the limit of {RECORD_BYTES_MAX}")
    return data


def unpack_fields(data: bytes, least: int, what: str, at: int = 0) -> tuple[Any, ...]:
    """The fields of a record, at least `least` of them; RecordError names `what` and the reason.

    The version byte lies at `at`. Arrays inside are tuples, which are made faster than lists.
    """
    if data[at : at + 1] != _VERSION:
        seen = f"version {data[at]}" if len(data) > at else "no bytes"
        raise RecordError(f"{what}: {seen}, this reader knows version {VERSION}")
    if len(data) > RECORD_BYTES_MAX:
        raise RecordError(f"{what}: {len(data)} bytes, over the limit of {RECORD_BYTES_MAX}")
    try:
        fields = _unpackb(data[at + 1 :], strict_map_key=False, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        # TypeError: a map with an array of maps as key.
        raise RecordError(f"{what}: not msgpack ({type(error).__name__})") from error
    if type(fields) is not tuple or len(fields) < least:
        raise RecordError(f"{what}: expected an array of at least {least} fields")
    return fields


class Layout:
    """The fields of a record: their number, and the type of each."""

    __slots__ = ("_decode", "_kinds", "_type", "_what")

    def __init__(self, what: str, *types: Any) -> None:
        """`types`: a class, a union or a generic type per field. `what` names the record in errors."""
        self._what = what
        self._kinds = tuple(map(_outer, types))
        self._type = GenericAlias(tuple, types)
        self._decode = msgspec.msgpack.Decoder(self._type).decode

    def read(self, data: bytes, at: int = 0) -> tuple[Any, ...]:
        """The fields of a record whose version byte lies at `at`, later ones included; RecordError."""
        if data[at : at + 1] == _VERSION and len(data) <= RECORD_BYTES_MAX:
            try:
                return self._decode(data[at + 1 :])  # type: ignore[no-any-return]
            except (msgspec.DecodeError, ValueError):
                pass  # read once more, to take it all the same or to say what is wrong
        fields = unpack_fields(data, len(self._kinds), self._what, at)
        for index, kind in enumerate(self._kinds):
            if not isinstance(fields[index], kind):
                raise RecordError(f"{self._what}: field {index} is {type(fields[index]).__name__}")
        try:
            msgspec.convert(fields[: len(self._kinds)], self._type, builtin_types=(bytes,))
        except msgspec.ValidationError as error:
            raise RecordError(f"{self._what}: {error}") from error
        return fields


def _outer(kind: Any) -> Any:
    """What `isinstance` can look at: the outermost classes of a type."""
    if isinstance(kind, UnionType):
        return tuple(_outer(part) for part in get_args(kind))
    return get_origin(kind) or kind
