"""A client without any cleverness: it sends the frames a test says and shows the frames that come.

It repeats nothing, reconnects never and hides nothing, so that a test sees what is on the wire. Bounded:
every wait has a deadline, and at most `FRAMES_MAX` unread frames are kept.

Spec: §7.
"""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Self, TypeVar

import aiohttp

from qim_streams.limits import SERVER_FRAME_BYTES_MAX
from qim_streams.wire import CODECS
from qim_streams.wire.frames import (
    Auth,
    AuthOk,
    ClientFrame,
    Error,
    Event,
    MailboxBatch,
    OnlineReady,
    PullMailbox,
    PushEvents,
    SendAck,
    SendMessage,
    ServerFrame,
    SyncComplete,
)

ANSWER_S = 20.0
FRAMES_MAX = 100_000
F = TypeVar("F")


class WireError(Exception):
    """The server answered ERROR, closed the socket, or did not answer in time."""

    def __init__(self, text: str, frame: Error | None = None) -> None:
        super().__init__(text)
        self.frame = frame


class WireClient:
    """One WebSocket. Use as a context manager; leaving it drops the connection."""

    def __init__(self, url: str, token: str, device_id: str, subprotocol: str = "qim.v1+msgpack") -> None:
        self.url, self.token, self.device_id = url, token, device_id
        self.frames: list[ServerFrame] = []  # everything that came, in order
        self._codec = CODECS[subprotocol]
        self._arrived = asyncio.Event()
        self._unread: list[ServerFrame] = []
        self._closed: str | None = None
        self._rid = 0

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(ANSWER_S):
                self._socket = await self._http.ws_connect(
                    self.url, protocols=(self._codec.subprotocol,), max_msg_size=SERVER_FRAME_BYTES_MAX
                )
        except BaseException:
            await self._http.close()
            raise
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()

    async def drop(self) -> None:
        """Reset the TCP connection, without a word. Safe to repeat."""
        socket = self._socket.get_extra_info("socket")
        if socket is not None:
            socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        await self._http.close()
        self._reader.cancel()
        await asyncio.wait([self._reader])

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                data = message.data if isinstance(message.data, bytes) else message.data.encode()
                frame = self._codec.decode_server(data)
                assert len(self.frames) < FRAMES_MAX
                self.frames.append(frame)
                self._unread.append(frame)
                self._arrived.set()
        finally:
            self._closed = f"closed with code {self._socket.close_code}"
            self._arrived.set()

    @property
    def is_open(self) -> bool:
        """Whether the server still keeps the socket open."""
        return self._closed is None

    def next_rid(self) -> int:
        """A request id that is free."""
        self._rid += 1
        return self._rid

    async def send(self, frame: ClientFrame) -> None:
        """Write one frame."""
        data = self._codec.encode(frame)
        if self._codec.binary:
            await self._socket.send_bytes(data)
        else:
            await self._socket.send_str(data.decode())

    async def take(
        self, kind: type[F], matches: Callable[[F], bool] = lambda _: True, within_s: float = ANSWER_S
    ) -> F:
        """The next unread frame of a kind; the others stay unread. WireError when it does not come."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    for index, frame in enumerate(self._unread):
                        if isinstance(frame, kind) and matches(frame):
                            del self._unread[index]
                            return frame
                    if self._closed is not None:
                        raise WireError(f"{self.device_id}: {self._closed}, no {kind.__name__} came")
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise WireError(f"{self.device_id}: no {kind.__name__} within {within_s} s") from None

    async def request(self, frame: ClientFrame, kind: type[F], within_s: float = ANSWER_S) -> F:
        """Send a frame and take its answer by its rid; WireError carries an ERROR."""
        await self.send(frame)
        rid = frame.rid
        answer = await self.take(
            object,  # type: ignore[type-abstract]
            lambda one: isinstance(one, (kind, Error)) and one.rid in (rid, None),
            within_s,
        )
        if isinstance(answer, kind):
            return answer
        raise WireError(f"{self.device_id}: {answer}", answer if isinstance(answer, Error) else None)

    # -- the usual steps

    async def auth(self, cursor: str | None = None) -> AuthOk:
        """AUTH; WireError carries the verdict when it is not OK."""
        return await self.request(Auth(self.next_rid(), self.token, self.device_id, cursor), AuthOk)

    async def pull(self, after_seq: int, up_to_seq: int, limit_entries: int = 1_000) -> MailboxBatch:
        """One PULL_MAILBOX."""
        return await self.request(
            PullMailbox(self.next_rid(), after_seq, up_to_seq, limit_entries), MailboxBatch
        )

    async def sync_complete(self, sync_to_seq: int) -> OnlineReady:
        """SYNC_COMPLETE and the barrier's end."""
        return await self.request(SyncComplete(self.next_rid(), sync_to_seq), OnlineReady)

    async def go_online(self, cursor: str | None = None) -> AuthOk:
        """AUTH, pull what there is, SYNC_COMPLETE; the answer to AUTH."""
        auth = await self.auth(cursor)
        await pull_range(self, auth.after_seq, auth.sync_to_seq)
        await self.sync_complete(auth.sync_to_seq)
        return auth

    async def say(
        self, client_message_id: str, body: bytes, *, to: str | None = None, conversation: str | None = None
    ) -> SendAck:
        """SEND_MESSAGE and its SEND_ACK."""
        return await self.request(
            SendMessage(self.next_rid(), client_message_id, body, conversation, to), SendAck
        )

    def pushed(self) -> list[Event]:
        """All events pushed so far, in order."""
        return [event for frame in self.frames if isinstance(frame, PushEvents) for event in frame.events]


@dataclass(slots=True)
class PulledRange:
    """What a pull of (after_seq, up_to_seq] gave, and what was wrong with its batches (I8)."""

    events: list[Event] = field(default_factory=list)
    cursors: list[tuple[int, str | None]] = field(default_factory=list)  # (covered_through_seq, cursor)
    problems: list[str] = field(default_factory=list)


async def pull_range(
    client: WireClient, after_seq: int, up_to_seq: int, limit_entries: int = 1_000
) -> PulledRange:
    """Pull a range to its end, batch by batch, and check that the batches cover it without a gap."""
    result, at, last = PulledRange(), after_seq, (after_seq, 1 << 20)
    while at < up_to_seq:
        batch = await client.pull(at, up_to_seq, limit_entries)
        covered = batch.covered_through_seq
        if not at < covered <= up_to_seq or batch.has_more != (covered < up_to_seq):
            raise WireError(f"I8: a pull of ({at}, {up_to_seq}] covered {covered}, has_more={batch.has_more}")
        for event in batch.entries:
            place = (event.mailbox_seq, event.event_ordinal)
            if not (last < place and at < event.mailbox_seq <= covered):
                result.problems.append(f"I8: entry {place} in a batch of ({at}, {covered}] after {last}")
            last = place
        result.events.extend(batch.entries)
        result.cursors.append((covered, batch.cursor))
        at = covered
    return result
