"""What a body carries: who sent it in which run, its number, its intended send time, a checksum.

::

    magic 2 | crc32 4 (of everything behind it) | run 4 | process 1 | number 4 | intended_ns 8 | padding

``intended_ns`` is CLOCK_MONOTONIC, which all processes of a machine share, so the receiver computes the
latency without asking anybody. The padding is a slice of one fixed block that starts at the number, so
two messages of the same length differ.

Pure.
"""

import struct
from typing import Final, NamedTuple
from zlib import crc32

MAGIC: Final = b"\xf1\xb7"
_REST = struct.Struct(">IBIQ")
_CRC = struct.Struct(">I")
_ALL = struct.Struct(">2sIIBIQ")
_unpack = _ALL.unpack_from
HEADER_BYTES: Final = _ALL.size
NUMBER_BITS: Final = 32
BODY_BYTES_MIN: Final = HEADER_BYTES + 1
_BLOCK: Final = bytes((7 * at + at // 256 * 13 + 31) % 256 for at in range(4_096))


class Header(NamedTuple):
    """What the receiver learns from a body."""

    run: int
    process: int
    number: int
    intended_ns: int


def body(run: int, process: int, number: int, intended_ns: int, size: int) -> bytes:
    """A body of `size` bytes (at least `BODY_BYTES_MIN`)."""
    rest = _REST.pack(run, process, number, intended_ns) + padding(number, size - HEADER_BYTES)
    return MAGIC + _CRC.pack(crc32(rest)) + rest


def padding(number: int, size: int) -> bytes:
    """The filling of message `number`."""
    start = number & 1_023
    if start + size <= 4_096:
        return _BLOCK[start : start + size]
    return (_BLOCK[start:] + _BLOCK * (size // 4_096 + 1))[:size]


def read(data: bytes) -> Header | None:
    """The header of a body; None when it is not one of ours or was damaged."""
    if len(data) < HEADER_BYTES:
        return None
    magic, crc, *rest = _unpack(data)
    return Header(*rest) if magic == MAGIC and crc == crc32(data[6:]) else None


def read_key(data: bytes, run: int) -> tuple[int, int] | None:
    """(message key, intended_ns) of a body of this run; None for any other or a damaged one. Hot."""
    if len(data) < HEADER_BYTES:
        return None
    magic, crc, its_run, process, number, intended_ns = _unpack(data)
    if its_run != run or magic != MAGIC or crc != crc32(data[6:]):
        return None
    return process << NUMBER_BITS | number, intended_ns


def message_key(process: int, number: int) -> int:
    """One integer for a message."""
    return process << NUMBER_BITS | number
