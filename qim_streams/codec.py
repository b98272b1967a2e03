"""Bytes of log records and stored values: one version byte, then a msgpack array.

Invariants: any bytes give a value or `RecordError`, never another exception; a longer array of a
newer minor version keeps its tail (`extra`), so re-encoding loses nothing; nothing larger than the
stated limit is unpacked. Field meaning lives in ``records``.
"""

from typing import Any

import msgpack

from qim_streams.errors import RecordError

VERSION = 1
RECORD_BYTES_MAX = 1_000_000

_VERSION = bytes([VERSION])
_unpackb = msgpack.unpackb
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def pack_fields(fields: tuple[Any, ...]) -> bytes:
    """The bytes of a record body: version byte and msgpack array; RecordError over the size limit."""
    data: bytes = _VERSION + _pack(fields)
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
