"""Rooms over real sockets, some of which stop reading: the others notice nothing, memory stays bounded.

Scenarios J1 J2; Spec: §10.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from qim_streams.gateway import local_room, room_seat
from qim_streams.gateway.rooms import RoomHall
from qim_streams.wire import JSON, MSGPACK
from qim_streams.wire.codec import Codec
from qim_streams.wire.frames import Auth, AuthOk
from qim_streams.wire.frames_rooms import Joined, JoinRoom, RoomBatch, RoomEvent
from tests.support.gateway_world import GatewayWorld, token
from tests.support.room_world import RoomWorld
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

MESSAGES, BODY = 300, "x" * 8_000  # 2.4 MB, many times what stands still in sockets this small
PACE = 20  # messages that the others may be behind


class Viewer:
    """A device on a socket with a small receive buffer; `paused` stops it from reading."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.frames: list[Any] = []
        self.closed = False
        self.reading = asyncio.Event()
        self.reading.set()

    @classmethod
    async def connect(cls, url: str, user: str, stack: AsyncExitStack, codec: Codec = MSGPACK) -> "Viewer":
        """Sign on."""
        self = cls(codec)
        connector = aiohttp.TCPConnector(socket_factory=_small_socket)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        self.socket = await http.ws_connect(
            url, protocols=[codec.subprotocol], max_msg_size=4 * 1024 * 1024, autoping=True
        )
        self.task = asyncio.create_task(self._read())
        stack.push_async_callback(self.stop)
        await self.send(Auth(1, token(user), "phone", None))
        await eventually(lambda: any(isinstance(one, AuthOk) for one in self.frames), 60, "AUTH_OK")
        return self

    async def send(self, frame: Any) -> None:
        """Write a frame."""
        data = self.codec.encode(frame)
        await (self.socket.send_bytes(data) if self.codec.binary else self.socket.send_str(data.decode()))

    async def join(self) -> Joined:
        """Enter the room."""
        await self.send(JoinRoom(2, "lobby", 0))
        await eventually(lambda: any(isinstance(one, Joined) for one in self.frames), 60, "JOINED")
        return next(one for one in self.frames if isinstance(one, Joined))

    async def _read(self) -> None:
        while True:
            await self.reading.wait()
            message = await self.socket.receive()
            if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                self.closed = True
                return
            data = message.data if isinstance(message.data, bytes) else message.data.encode()
            self.frames.append(self.codec.decode_server(data))

    async def stop(self) -> None:
        """Let go of the socket."""
        self.task.cancel()
        await asyncio.wait([self.task])

    @property
    def said(self) -> list[int]:
        """Numbers of the messages that came."""
        batches = [one for one in self.frames if isinstance(one, RoomBatch)]
        return [one.room_seq for frame in batches for part in frame.rooms for one in part.messages]

    @property
    def events(self) -> list[str]:
        """Events that came."""
        return [one.event for one in self.frames if isinstance(one, RoomEvent)]


def shrink(world: GatewayWorld) -> None:
    """Small send buffers of the gateway's sockets, so that little is enough to fill them."""
    for one in world.server.sockets:
        one.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)


async def flood(rooms: RoomWorld, viewers: list[Viewer], mute_at: int = -1) -> None:
    """MESSAGES messages, no faster than `viewers` read them."""
    for number in range(1, MESSAGES + 1):
        await rooms.say("lobby", BODY + str(number))
        if number == mute_at:
            await rooms.do("mute", "eve", seconds=60)
        if number % PACE == 0:
            for one in viewers:
                await eventually(lambda one=one, n=number: one.said[-1:] >= [n - PACE], 120, "the others")


def _small_socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    return made


class HallRooms:
    """`Rooms` of a gateway on a hall in memory."""

    def __init__(self, hall: RoomHall) -> None:
        self.hall = hall

    def seat(self, *args: Any) -> Any:
        """See the port."""
        return self.hall.seat(*args)

    async def run(self) -> None:
        """The hall runs by itself."""


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[GatewayWorld, RoomWorld, RoomHall]]:
    """A gateway with rooms."""
    rooms = RoomWorld(body_bytes_max=8_192)
    await rooms.take_over()
    await rooms.make()
    world = GatewayWorld()
    async with world.running(), rooms.hall(frame_rate=50.0) as hall:
        world.services.rooms = HallRooms(hall)
        yield world, rooms, hall
    rooms.kill()


async def test_j1_readers_that_stop_cost_only_themselves() -> None:
    """J1 J2: 3 of 12 stop reading; the others get all, in order; the 3 get the events and the newest."""
    async with serving() as (world, rooms, hall), AsyncExitStack() as stack:
        viewers = [
            await Viewer.connect(world.url, f"u{number}", stack, JSON if number % 4 == 0 else MSGPACK)
            for number in range(12)
        ]
        for one in viewers:
            await one.join()
        slow, fast = viewers[:3], viewers[3:]
        shrink(world)
        for one in slow:
            one.reading.clear()
        await flood(rooms, fast, mute_at=MESSAGES // 2)
        for one in fast:
            await eventually(lambda one=one: one.said[-1:] == [MESSAGES], 120, "all at a fast reader")
            assert one.said == list(range(1, MESSAGES + 1))
            assert one.events == ["mute"]
        # What waits for a slow reader here: what it was given before it was slow, one tick's worth that came
        # while little waited, and the bounded queue with its newest part.
        seats = [seat for room in hall._rooms.values() for seat in room.seats]
        held = max(seat._outbound.size + seat._queued_bytes for seat in seats)
        most = room_seat.SHARE_BYTES + room_seat.QUEUE_BYTES_MAX + 2 * local_room.WAITING_BYTES_MAX
        assert held <= most, held
        for one in slow:
            one.reading.set()
        for one in slow:
            await eventually(lambda one=one: one.said[-1:] == [MESSAGES], 120, "the newest at a slow reader")
            assert one.said == sorted(set(one.said))
            assert len(one.said) < MESSAGES, "it was never slow: nothing is tested"
            assert one.events == ["mute"]
            assert not one.closed


async def test_a_dead_reader_holds_neither_close_nor_the_others() -> None:
    """J2: the room ends while a reader stands still; the others hear at once, it hears when it reads."""
    async with serving() as (world, rooms, hall), AsyncExitStack() as stack:
        viewers = [await Viewer.connect(world.url, f"u{number}", stack) for number in range(3)]
        for one in viewers:
            await one.join()
        shrink(world)
        viewers[0].reading.clear()
        await flood(rooms, viewers[1:])
        await rooms.do("close")
        for one in viewers[1:]:
            await eventually(lambda one=one: one.events == ["close"], 120, "the end")
            await eventually(lambda one=one: one.said == list(range(1, MESSAGES + 1)), 120, "all of it")
        assert hall.counts() == {}
        viewers[0].reading.set()
        await eventually(lambda: viewers[0].events == ["close"], 120, "the end, late")
