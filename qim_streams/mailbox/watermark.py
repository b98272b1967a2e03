"""The watermark of a shard: 64 lanes, their packed form, and the rule by which it moves.

W[lane] is the last mailbox_seq up to which every entry of the lane is durable: a proof of contiguous
coverage, not the largest offset seen. -1 means that nothing is covered.

Packed form v2: one marker byte, then one big-endian i64 when all lanes are equal, else 64 of them. A
vector has exactly one packed form, so stores compare bytes. In the program a vector is `Marks`: one number
when all lanes are equal, which is the usual case and costs nothing, else 64 of them; it has exactly one such
form, too, so marks are compared with ``==``. Lanes never go back (`advance`).

Pure. The same rule stands in ``mailbox.lua``; one test drives both.

Spec: §5, §14.2, §14.6.
"""

import struct
from collections.abc import Sequence

from qim_streams.errors import RecordError
from qim_streams.placement import LANES

Marks = int | tuple[int, ...]

NOTHING = -1
SEQ_MAX = 2**53 - 1  # ids of stored entries pass through Lua numbers

_UNIFORM, _VECTOR = 0x20, 0x21
_ONE = struct.Struct(">Bq")
_ALL = struct.Struct(f">B{LANES}q")
NOTHING_PACKED = _ONE.pack(_UNIFORM, NOTHING)


def pack_uniform(seq: int) -> bytes:
    """The packed form of 64 lanes that all stand at `seq`: 9 bytes."""
    return _ONE.pack(_UNIFORM, seq)


def pack(lanes: Sequence[int]) -> bytes:
    """The packed form of 64 lanes: 9 bytes when all are equal, else 513."""
    if len(lanes) != LANES:
        raise ValueError(f"a watermark has {LANES} lanes, got {len(lanes)}")
    first = lanes[0]
    if all(seq == first for seq in lanes):
        return _ONE.pack(_UNIFORM, first)
    return _ALL.pack(_VECTOR, *lanes)


def unpack(data: bytes) -> tuple[int, ...]:
    """The 64 lanes of a packed form; RecordError for bytes that `pack` does not make."""
    if len(data) == _ONE.size and data[0] == _UNIFORM:
        lanes: tuple[int, ...] = (_ONE.unpack(data)[1],) * LANES
    elif len(data) == _ALL.size and data[0] == _VECTOR:
        lanes = _ALL.unpack(data)[1:]
        if all(seq == lanes[0] for seq in lanes):
            raise RecordError("watermark: equal lanes in the long form")
    else:
        raise RecordError(f"watermark: {len(data)} bytes with marker {data[:1].hex() or 'none'}")
    if min(lanes) < NOTHING or max(lanes) > SEQ_MAX:
        raise RecordError("watermark: a lane is outside -1 to 2**53 - 1")
    return lanes


def coverage(lanes: Sequence[int]) -> int:
    """What every lane covers: the lowest lane. Replay starts at the offset after it. Spec: §11 rule 1."""
    return min(lanes)


def marks(lanes: Sequence[int]) -> Marks:
    """64 lanes as marks: one number when they are equal."""
    first = lanes[0]
    return first if lanes.count(first) == LANES else tuple(lanes)


def lanes_of(value: Marks) -> tuple[int, ...]:
    """All 64 lanes of marks."""
    return (value,) * LANES if isinstance(value, int) else value


def packed(value: Marks) -> bytes:
    """The packed form of marks."""
    return _ONE.pack(_UNIFORM, value) if isinstance(value, int) else pack(value)


def lane_of_marks(value: Marks, lane: int) -> int:
    """One lane of marks."""
    return value if isinstance(value, int) else value[lane]


def lowest(value: Marks) -> int:
    """The lowest lane of marks: what all of them cover."""
    return value if isinstance(value, int) else min(value)


def highest(value: Marks) -> int:
    """The highest lane of marks."""
    return value if isinstance(value, int) else max(value)


def merged(one: Marks, other: Marks) -> Marks:
    """Lane by lane the higher one."""
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other)
    return marks(list(map(max, lanes_of(one), lanes_of(other))))


def is_below(one: Marks, other: Marks) -> bool:
    """Whether any lane of `one` stands lower than in `other`."""
    if isinstance(one, int) and isinstance(other, int):
        return one < other
    return any(low < high for low, high in zip(lanes_of(one), lanes_of(other), strict=True))


def check_advance(expected: Marks, observed: Marks) -> None:
    """ValueError when W cannot move from `expected` to `observed`, wherever it stands."""
    if isinstance(expected, int) and isinstance(observed, int):
        fits = NOTHING <= expected < observed <= SEQ_MAX
    else:
        fits = (
            expected != observed
            and lowest(expected) >= NOTHING
            and highest(observed) <= SEQ_MAX
            and not is_below(observed, expected)
        )
    if not fits:
        raise ValueError(f"W cannot move from {expected} to {observed}")


def advance(lanes: Sequence[int], expected: Marks, observed: Marks) -> tuple[int, ...] | None:
    """The lanes at `observed` if each stands at its `expected`, else None. Spec: §5.

    Lane by lane, `expected` is the offset of the record read before the first new one, as read, and
    `observed` the last record up to which all entries of the lane are durable. ValueError unless no lane
    goes back, at least one moves, and all stay within -1 to 2**53 - 1.
    """
    check_advance(expected, observed)
    if marks(lanes) != expected:
        return None
    return lanes_of(observed)
