"""T-F1: any bytes give a value or the decoder's own error, within the memory limit and in linear time.

Everyday size: seconds. ``QIM_TEST_FUZZ=1000000`` is the size for a release.
"""

import os
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from qim_streams import limits
from qim_streams.errors import ProtocolError, RecordError
from qim_streams.records import (
    GroupDispatch,
    MessageRecord,
    OutboxRecord,
    Presence,
    PresenceReady,
    PushBatch,
    PushItem,
    Recipient,
    UserMailboxEntry,
    decode_dispatch,
    decode_entry,
    decode_message,
    decode_outbox,
    decode_presence,
    decode_push,
)
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire import JSON, MSGPACK
from qim_streams.wire.codec_msgpack import check_shape
from qim_streams.wire.examples import CLIENT_EXAMPLES, SERVER_EXAMPLES

INPUTS = int(os.environ.get("QIM_TEST_FUZZ", "6000"))  # per decoder
I16 = bytes(range(16))
MESSAGE = MessageRecord(7, 3, "acme", "c", I16, I16, "ann", 64, "d", "m1", 2, 99, 0, 0, b"body")
DISPATCH = GroupDispatch(
    "acme", I16, I16, "c", 7, I16, "ann", 2, 3, 1, 0, 64, "d", "m1", b"12345678", 4, 99, 5, 1, bytes(8)
)
PUSH = PushBatch(
    "acme", 3, 2, [PushItem(9, 0, b"\x80", [Recipient(5, 6, I16, 3, 0, "m1")], 99)], [PresenceReady(5, 6, 9)]
)
SIGNER = CursorSigner(b"k" * 32)
ADDRESS = MailboxAddress("acme", "ben", "phone", 9, 3, 9)


def open_cursor(data: bytes) -> object:
    """A cursor of any text."""
    cursor = SIGNER.open(data.decode("latin-1"), ADDRESS)
    if cursor is None:
        raise ProtocolError("CURSOR_INVALID", "not a cursor of this device")
    return cursor


DECODERS: dict[str, tuple[Callable[[bytes], Any], list[bytes], type[Exception]]] = {
    "msgpack client": (
        MSGPACK.decode_client,
        [MSGPACK.encode(f) for f in CLIENT_EXAMPLES.values()],
        ProtocolError,
    ),
    "msgpack server": (
        MSGPACK.decode_server,
        [MSGPACK.encode(f) for f in SERVER_EXAMPLES.values()],
        ProtocolError,
    ),
    "json client": (JSON.decode_client, [JSON.encode(f) for f in CLIENT_EXAMPLES.values()], ProtocolError),
    "json server": (JSON.decode_server, [JSON.encode(f) for f in SERVER_EXAMPLES.values()], ProtocolError),
    "message": (decode_message, [MESSAGE.encode()], RecordError),
    "outbox": (
        decode_outbox,
        [
            OutboxRecord(MESSAGE.encode(), 2, 0, {1: (1, bytes(8))}).encode(),
            OutboxRecord(MESSAGE.encode(), 2, 1, None).encode(),
        ],
        RecordError,
    ),
    "dispatch": (decode_dispatch, [DISPATCH.encode()], RecordError),
    "entry": (
        decode_entry,
        [UserMailboxEntry(0, I16, "c", 7, "ann", 3, 99, "m1").encode()],
        RecordError,
    ),
    "presence": (decode_presence, [Presence("acme", "ben", 9, "phone", 1, 5, 6, 99).encode()], RecordError),
    "push": (decode_push, [PUSH.encode()], RecordError),
    "cursor": (open_cursor, [SIGNER.issue(ADDRESS, 3, 9).encode()], ProtocolError),
}


def mutated(rng: random.Random, samples: list[bytes]) -> bytes:
    """A good sample with some damage, or something made of nothing."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.randrange(0, 80))
    if kind == 1:
        return bytes(msgpack.packb(random_value(rng, 4)))
    data = bytearray(rng.choice(samples))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        if kind in (2, 3) and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 4:
            del data[at : at + rng.randrange(1, 9)]
        elif kind == 5:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 6:
            data[at:at] = rng.choice(
                (b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"[[")
            )
        elif at < len(data):
            data[at] = rng.choice(b'\x00\x80\x90\xa0\xc0\xc1\xd9\xdc\xff"{}[]\\,0')
        if not data:
            break
    return bytes(data)


def random_value(rng: random.Random, depth: int) -> object:
    """A value of msgpack, nested up to `depth`."""
    kind = rng.randrange(9 if depth else 7)
    if kind == 7:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        names = ("t", "rid", "body", "entries", "message", "x")
        return {rng.choice(names): random_value(rng, depth - 1) for _ in range(rng.randrange(4))}
    return rng.choice((None, True, -1, 2**63, 1.5, "AUTH", "PUSH_EVENTS", b"\x01" * 16, "é", float("nan")))


@pytest.mark.parametrize("name", DECODERS)
def test_any_bytes(name: str) -> None:
    """A value or the decoder's own error, nothing else."""
    decode, samples, refusal = DECODERS[name]
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    good = 0
    for sample in samples:
        decode(sample)
    for _ in range(INPUTS):
        data = mutated(rng, samples)
        try:
            decode(data)
            good += 1
        except refusal:
            continue
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__} for {data.hex()}") from error
    assert good < INPUTS


@pytest.mark.parametrize("name", DECODERS)
def test_memory_is_bounded(name: str) -> None:
    """Nested headers that promise the rest of the input many times over allocate no multiple of it."""
    decode, _, refusal = DECODERS[name]
    size = 200_000
    head = b"\x01" if refusal is RecordError else b""
    bombs = [
        head + b"\xdd\x00\x02\xff\xff" * (size // 5),
        head + b"\xdc\xff\xff" * (size // 3),
        head + b"\x95" + b"\xdd\x00\x02\xff\xff" * (size // 5),
        head + b"\x91" * size,
        head + b"\x81\xa1a" * (size // 3),
        head + b"\xdf\x00\x02\xff\xff" + b"\xa1a\xc0" * (size // 3),
        b"[" * size,
        b'{"a":' * (size // 5),
        b'"' * size,
        b'["' + b'\\"' * (size // 2),
    ]
    for bomb in bombs:
        tracemalloc.start()
        try:
            decode(bomb)
        except refusal:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        # Records come from our own processes: the parser's own bound (1,024 levels of 10,000) must do.
        limit = 100 if refusal is RecordError else 20
        assert peak < limit * 1024 * 1024, f"{name}: {peak} bytes for {bomb[:12]!r}"


@pytest.mark.parametrize("unit", [b"[", b'"', b'\\"', b"{", b'"a":', b"\xdc\x00\x01", b"\x81\xa1a", b"\x91"])
def test_time_is_linear(unit: bytes) -> None:
    """Ten times the input costs about ten times the steps, whatever it repeats."""

    def cost(count: int) -> float:
        data = b'[["' + unit * count if unit in (b'\\"', b'"') else unit * count
        best = 1e9
        for _ in range(3):
            start = time.process_time()
            for codec in (MSGPACK, JSON):
                with pytest.raises(ProtocolError):
                    codec.decode_client(data, 10**9)
            best = min(best, time.process_time() - start)
        return best

    small, large = cost(3_000), cost(60_000)
    # Twenty times the size; quadratic would be four hundred. CPU time of this thread, not the wall clock.
    assert large < 100 * max(small, 0.0005)


def test_the_scan_agrees_with_the_parser() -> None:
    """What `check_shape` lets through is one msgpack value for the parser as well, and vice versa."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    agreed = 0
    for _ in range(INPUTS):
        data = mutated(rng, [MSGPACK.encode(f) for f in CLIENT_EXAMPLES.values()])
        try:
            check_shape(data)
            passed = True
        except ProtocolError:
            passed = False
        try:
            value = msgpack.unpackb(data, raw=True, strict_map_key=False)
            parsed = depth_of(value) <= limits.FRAME_DEPTH_MAX and b"\xc7" not in data
        except (ValueError, TypeError):  # TypeError: a list as a key
            continue
        if parsed and not has_extension(value):
            assert passed, data.hex()
            agreed += 1
    assert agreed > INPUTS // 20


def depth_of(value: object) -> int:
    """Levels of containers."""
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth_of, [*value.values(), *value]), default=0)
    return 0


def has_extension(value: object) -> bool:
    """Whether an extension type is somewhere inside."""
    if isinstance(value, list):
        return any(map(has_extension, value))
    if isinstance(value, dict):
        return any(map(has_extension, [*value.values(), *value]))
    return isinstance(value, msgpack.ExtType | msgpack.Timestamp)
