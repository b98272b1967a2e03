"""The outbound queue: one write per turn, order, bounds, stalls (T-W1, P16)."""

import asyncio

from qim_streams.gateway.outbound import TRANSPORT_BYTES_MAX, Cork, Outbound
from tests.support.waiting import eventually


class FakeTransport:
    """A transport whose kernel takes what the test allows."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.pending = 0
        self.drained = asyncio.Event()
        self.drained.set()
        self.closing = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.pending += len(data)
        if self.pending > TRANSPORT_BYTES_MAX:
            self.drained.clear()

    def get_write_buffer_size(self) -> int:
        return self.pending

    def is_closing(self) -> bool:
        return self.closing

    def take_all(self) -> None:
        self.pending = 0
        self.drained.set()

    async def drain(self) -> None:
        await self.drained.wait()


def made(bytes_max: int = 200_000, *, binary: bool = True) -> tuple[FakeTransport, Outbound]:
    transport = FakeTransport()
    cork = Cork(asyncio.get_running_loop())
    return transport, Outbound(transport, transport.drain, cork, binary=binary, bytes_max=bytes_max)


async def test_frames_of_a_turn_are_one_write() -> None:
    """Order is kept, headers have the size that WebSocket wants, each turn writes once."""
    transport, outbound = made()
    for payload in (b"a", b"b" * 125, b"c" * 126, b"d" * 65_535, b"e" * 65_536):
        outbound.put(payload)
    assert transport.writes == []
    await asyncio.sleep(0)
    assert len(transport.writes) == 1
    data = transport.writes[0]
    assert data[:3] == b"\x82\x01a"
    assert data[3:5] == b"\x82\x7d"
    assert data[130:134] == b"\x82\x7e\x00\x7e"
    assert data[260:264] == b"\x82\x7e\xff\xff"
    assert data[264 + 65_535 :][:10] == b"\x82\x7f" + (65_536).to_bytes(8, "big")
    text_transport, text = made(binary=False)
    text.put(b"{}")
    await asyncio.sleep(0)
    assert text_transport.writes == [b"\x81\x02{}"]


async def test_a_transport_that_is_full_is_left_alone() -> None:
    """Nothing more is written until it drained; then everything, in order."""
    transport, outbound = made()
    outbound.put(b"x" * 70_000)
    await asyncio.sleep(0)
    for number in range(5):
        outbound.put(b"%d" % number)
        await asyncio.sleep(0)
    assert len(transport.writes) == 1
    assert outbound.stalled_at is not None
    assert outbound.size > 70_000
    transport.take_all()
    await eventually(lambda: len(transport.writes) == 2)
    assert transport.writes[1] == b"".join(b"\x82\x01%d" % number for number in range(5))
    assert outbound.stalled_at is None


async def test_room_comes_back() -> None:
    """A full queue makes `room` wait; a reader that reads lets it return."""
    transport, outbound = made(bytes_max=100_000)
    outbound.put(b"x" * 120_000)
    await asyncio.sleep(0)
    assert outbound.is_full
    waiting = asyncio.create_task(outbound.room())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    transport.take_all()
    await asyncio.wait_for(waiting, 5)
    assert not outbound.is_full


async def test_a_peer_that_goes_while_stalled() -> None:
    """The queue is dropped, waiters return, nothing is written any more."""
    transport, outbound = made(bytes_max=100_000)
    outbound.put(b"x" * 120_000)
    await asyncio.sleep(0)
    outbound.put(b"y")
    waiting = asyncio.create_task(outbound.room())
    await asyncio.sleep(0)
    outbound.close()
    await asyncio.wait_for(waiting, 5)
    outbound.put(b"z")
    await asyncio.sleep(0)
    assert len(transport.writes) == 1
    assert outbound.size == 0
    outbound.close()


async def test_a_transport_that_is_closing_takes_nothing() -> None:
    """A write to a dying socket is not tried."""
    transport, outbound = made()
    transport.closing = True
    outbound.put(b"x")
    await asyncio.sleep(0)
    assert transport.writes == []


async def test_a_transport_that_resumes_early_is_not_spun_on() -> None:
    """drain returns at once although the transport is still full: the queue waits, and then goes on."""
    transport, outbound = made()
    outbound.put(b"x" * 70_000)
    await asyncio.sleep(0)
    transport.drained.set()
    outbound.put(b"y")
    await asyncio.sleep(0.1)
    assert len(transport.writes) == 1
    transport.take_all()
    await eventually(lambda: len(transport.writes) == 2)
