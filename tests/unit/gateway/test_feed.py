"""Portions of events, and fills that fail (A5, P7)."""

import asyncio
from collections.abc import Sequence

import pytest

from qim_streams import limits
from qim_streams.errors import StoreUnavailable, SyncVerdict
from qim_streams.gateway import feed as feed_module
from qim_streams.gateway.feed import LiveFeed, frames_of
from qim_streams.gateway.live import LiveStream, Phase
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.gateway.outbound import Cork, Outbound
from qim_streams.records import MessageRecord
from qim_streams.sync.pull import PulledEvent, PullResult
from qim_streams.wire import MSGPACK
from qim_streams.wire.events import common_body
from qim_streams.wire.frames import LiveLost, PushEvents, ServerFrame
from tests.support.waiting import eventually
from tests.unit.gateway.test_outbound import FakeTransport


def event(seq: int, size: int = 10) -> PulledEvent:
    """An event with a body of `size` bytes."""
    identity = seq.to_bytes(16, "big")
    message = MessageRecord(1, 1, "t", "c", identity, identity, "ann", 1, "d", "m", 1, 9, 0, 0, bytes(size))
    return PulledEvent(seq, 0, identity, 3, 0, None, common_body(message))


@pytest.mark.parametrize(
    ("sizes", "portions"),
    [
        ([], []),
        ([10], [1]),
        ([10] * 5, [5]),
        ([limits.PULL_BYTES_MAX * 2], [1]),
        ([limits.PULL_BYTES_MAX, 10, limits.PULL_BYTES_MAX, 10, 10], [1, 1, 1, 2]),
        ([70_000] * 5, [2, 2, 1]),
        ([1] * (limits.EVENTS_PER_FRAME_MAX + 1), None),
    ],
)
def test_portions(sizes: list[int], portions: list[int] | None) -> None:
    """Each portion fits a frame, none is empty, order and number stay."""
    events = [event(seq, size) for seq, size in enumerate(sizes)]
    parts = list(frames_of(events))
    assert [one for part in parts for one in part] == events
    assert all(parts)
    if portions is not None:
        assert [len(part) for part in parts] == portions
    for part in parts:
        assert len(part) <= limits.EVENTS_PER_FRAME_MAX
        assert len(part) == 1 or sum(len(one.common_body) for one in part) <= limits.PULL_BYTES_MAX
        frame = MSGPACK.encode_push([MSGPACK.encode_event(*one) for one in part])
        assert len(frame) < limits.SERVER_FRAME_BYTES_MAX


class Mailbox:
    """What a fill reads; the first `failures` reads raise."""

    def __init__(self, seqs: Sequence[int], failures: int = 0, error: Exception | None = None) -> None:
        self.seqs, self.failures, self.error = seqs, failures, error
        self.reads = 0

    async def pull(self, after_seq: int, up_to_seq: int) -> PullResult:
        self.reads += 1
        if self.reads <= self.failures:
            raise self.error or StoreUnavailable("away")
        found = [event(seq) for seq in self.seqs if after_seq < seq <= up_to_seq]
        return PullResult(found, up_to_seq, up_to_seq, False, 1)


def made(mailbox: Mailbox) -> tuple[LiveFeed, FakeTransport]:
    """A feed that is online at 10, on a transport that takes everything."""
    transport = FakeTransport()
    outbound = Outbound(
        transport, transport.drain, Cork(asyncio.get_running_loop()), binary=True, bytes_max=100_000
    )
    stream = LiveStream(10, 50_000)
    live = LiveFeed(stream, MSGPACK, outbound, mailbox.pull, GatewayCounters())
    live.online()
    return live, transport


def frames(transport: FakeTransport) -> list[ServerFrame]:
    """What was written; every frame of these tests is small."""
    data, found = b"".join(transport.writes), []
    while data:
        size, at = (data[1], 2) if data[1] < 126 else (int.from_bytes(data[2:4], "big"), 4)
        found.append(MSGPACK.decode_server(data[at : at + size]))
        data = data[at + size :]
    return found


def pushed(transport: FakeTransport) -> list[int]:
    """Seqs of all events written."""
    return [e.mailbox_seq for f in frames(transport) if isinstance(f, PushEvents) for e in f.events]


async def test_a_fill_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is away for a moment: nothing is lost, nothing is said."""
    monkeypatch.setattr(feed_module, "FILL_RETRY_S", 0.001)
    live, transport = made(Mailbox([11, 12], failures=3))
    live.push(1, [event(13)])
    live.ready(1, 12)
    await eventually(lambda: pushed(transport) == [11, 12, 13])
    assert live.stream.phase is Phase.FLOWING


@pytest.mark.parametrize("error", [StoreUnavailable("away"), SyncVerdict("CURSOR_EXPIRED", "trimmed")])
async def test_a_fill_that_cannot_be_done_says_so(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """LIVE_LOST names how far to pull; the stream goes on after that."""
    monkeypatch.setattr(feed_module, "FILL_RETRY_S", 0.001)
    live, transport = made(Mailbox([11, 12, 14], failures=6, error=error))
    live.ready(1, 12)
    await eventually(lambda: live.stream.phase is Phase.LOST)
    await asyncio.sleep(0)
    (lost,) = frames(transport)
    assert lost == LiveLost("stream_gap", 12)
    live.push(1, [event(14)])
    live.pulled(10, 11)
    assert live.stream.phase is Phase.LOST
    live.pulled(11, 12)
    if isinstance(error, StoreUnavailable):
        await eventually(lambda: pushed(transport) == [14])


async def test_closing_stops_a_fill() -> None:
    """Nothing is sent after the session ended."""
    mailbox = Mailbox([11])
    live, transport = made(mailbox)
    live.ready(1, 12)
    live.close()
    await asyncio.sleep(0.02)
    assert transport.writes == []
