"""LiveFeed: runs the rule of ``live`` on one socket: encodes, sends, fills, and gives up on slow readers.

Invariants: events are sent only while the socket's queue is below its bound; at most one fill runs; a
fill that cannot be done ends in LIVE_LOST, never in silence.

Spec: §6, §7.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from qim_streams import limits
from qim_streams.errors import ProtocolError, StoreError, SyncVerdict
from qim_streams.gateway.live import Fill, LiveStream, Phase
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.gateway.outbound import Outbound
from qim_streams.sync.pull import PulledEvent, PullResult
from qim_streams.wire.codec import Codec
from qim_streams.wire.frames import LiveLost

log = logging.getLogger(__name__)

FILL_TRIES_MAX: Final = 6
FILL_RETRY_S: Final = 0.05  # doubles
_EVENT_OVERHEAD: Final = 160

Pull = Callable[[int, int], Awaitable[PullResult]]


class LiveFeed:
    """The live stream of a session. `pull(after_seq, up_to_seq)` reads its mailbox."""

    __slots__ = ("_codec", "_counters", "_outbound", "_pull", "_task", "stream")

    def __init__(
        self, stream: LiveStream, codec: Codec, outbound: Outbound, pull: Pull, counters: GatewayCounters
    ) -> None:
        self.stream = stream
        self._codec, self._outbound, self._pull, self._counters = codec, outbound, pull, counters
        self._task: asyncio.Task[None] | None = None

    def push(self, epoch: int, events: Sequence[PulledEvent]) -> None:
        """Events of the push log, from the owner `epoch` of the user's shard."""
        stream, outbound = self.stream, self._outbound
        for part in (events,) if len(events) == 1 else frames_of(events):
            if outbound.is_full and stream.phase is Phase.FLOWING:
                self._lose("slow_reader", part[-1].mailbox_seq)
            self._send(stream.push(epoch, part))

    def ready(self, epoch: int, from_seq: int) -> None:
        """PresenceReady of the owner `epoch`."""
        self._start(self.stream.ready(epoch, from_seq))

    def online(self) -> None:
        """ONLINE_READY was sent."""
        self._start(self.stream.online())

    def pulled(self, after_seq: int, through_seq: int) -> None:
        """A MAILBOX_BATCH was sent."""
        self._start(self.stream.pulled(after_seq, through_seq))

    def behind(self, watermark: int) -> None:
        """The push log may not tell what is visible up to `watermark`: send it from the mailbox."""
        self._start(self.stream.behind(watermark))

    def close(self) -> None:
        """Stop filling."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _start(self, fill: Fill | None) -> None:
        if fill is None:
            return
        self.close()
        if fill.up_to_seq <= fill.after_seq:
            step = self.stream.filled(fill.up_to_seq)
            if not isinstance(step, Fill):
                self._deliver(step)
                return
            fill = step
        self._task = asyncio.get_running_loop().create_task(self._run(fill))

    async def _run(self, fill: Fill) -> None:
        self._counters.fills += 1
        step: Fill | Sequence[PulledEvent] = fill
        try:
            while isinstance(step, Fill):
                through = step.after_seq
                if step.up_to_seq > step.after_seq:
                    await self._outbound.room()
                    result = await self._read(step)
                    if self.stream.phase is not Phase.FILLING:
                        return
                    self._deliver(result.events)
                    through = result.covered_through_seq
                step = self.stream.filled(through)
            self._deliver(step)
        except (SyncVerdict, ProtocolError, StoreError) as error:
            log.warning("a fill failed, the client has to pull: %s", error)
            self._lose("stream_gap", self.stream.owed)
        except Exception:
            log.exception("a fill failed")
            self._lose("stream_gap", self.stream.owed)

    async def _read(self, fill: Fill) -> PullResult:
        for attempt in range(FILL_TRIES_MAX - 1):
            try:
                return await self._pull(fill.after_seq, fill.up_to_seq)
            except (StoreError, ProtocolError) as error:
                # Above W: another reader's view of the store may be ahead of ours for a moment.
                log.debug("fill of %s is tried again: %s", fill, error)
                await asyncio.sleep(FILL_RETRY_S * 2**attempt)
        return await self._pull(fill.after_seq, fill.up_to_seq)

    def _lose(self, reason: str, up_to_seq: int) -> None:
        if self.stream.phase is Phase.LOST:
            return
        watermark = self.stream.lose(up_to_seq)
        self._counters.live_lost += 1
        self._outbound.put(self._codec.encode(LiveLost(reason, watermark)))

    def _deliver(self, events: Sequence[PulledEvent]) -> None:
        for part in frames_of(events):
            self._send(part)

    def _send(self, events: Sequence[PulledEvent]) -> None:
        if not events:
            return
        encode = self._codec.encode_event
        self._outbound.put(self._codec.encode_push([encode(*event) for event in events]))
        self._counters.pushed_events += len(events)


def frames_of(events: Sequence[PulledEvent]) -> Iterator[Sequence[PulledEvent]]:
    """`events` in portions that each fit one PUSH_EVENTS frame."""
    start, size = 0, 0
    for index, event in enumerate(events):
        nbytes = len(event.common_body) + _EVENT_OVERHEAD
        full = size + nbytes > limits.PULL_BYTES_MAX or index - start >= limits.EVENTS_PER_FRAME_MAX
        if full and index > start:
            yield events[start:index]
            start, size = index, 0
        size += nbytes
    if start < len(events):
        yield events[start:]
