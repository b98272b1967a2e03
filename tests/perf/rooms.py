"""A room with ever more viewers: frames, deliveries, the gateway's CPU, and the sender's acknowledgements.

    python -m tests.perf.rooms [--viewers 500 1000 2000 5000] [--rate 20] [--seconds 15] (--help)

For each size: so many connections sign on and enter one room of one gateway, then one sender says `--rate`
messages a second (the room's own bound is 20), open loop. The sender is a process of its own
(`tests.perf.room_sender`): what the viewers take here does not delay it. Told are: joins per second, frames
and deliveries per second, messages that a viewer missed, time from the room's clock to the viewer, the
sender's acknowledgements (P50 and P99), CPU of gateway and RoomWriter in cores, memory of the gateway per
connection, and how busy this program was, which competes for the same processors. Flat acknowledgements from
the first size to the last mean that viewers cost the sender nothing; fewer frames than ten a second and
viewer, with nothing missed, are what a gateway without time to spare looks like.

Storms of joins: `tests.perf.room_joins`; idle connections: `tests.perf.idle`.

Exit codes: 0 measured, and whoever missed a message could see it; 1 a message came twice or out of order, or
the sender was refused; 2 wrong usage.
"""

import argparse
import asyncio
import secrets
import sys
import time
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from qim_streams.loadgen.procfs import Usage
from qim_streams.loadgen.socket import LeanSocket
from qim_streams.wire import MSGPACK
from qim_streams.wire.frames import Auth, ClientFrame, Ping
from qim_streams.wire.frames_rooms import JoinRoom
from tests.perf.beside import Beside
from tests.perf.processes import MeasurementError
from tests.perf.running_stack import RunningStack, many_descriptors, measured

SIZES = (500, 1_000, 2_000, 5_000)
AT_ONCE = 32  # sign-ons of this program side by side
ANSWER_S = 60.0
BODY = b"x" * 100
ROLES = ("gateway", "rooms")
RECENT_MAX = 64
PING_S = 20.0
_recent: dict[bytes, dict[str, Any]] = {}  # a room's batch is the same bytes for all: decoded once


def decoded(data: bytes) -> dict[str, Any]:
    """A frame of the server."""
    frame = _recent.get(data)
    if frame is None:
        frame = msgpack.unpackb(data, raw=False)
        if frame["t"] == "ROOM_BATCH":
            if len(_recent) >= RECENT_MAX:
                _recent.clear()
            _recent[data] = frame
    return frame


class Size(NamedTuple):
    """What one size came to."""

    viewers: int
    joins_s: float
    seconds: float
    frames: int
    deliveries: int
    missed: int
    broken: int
    late_ms: "array[float]"
    ack_ms: list[float]
    refused: int
    cores: dict[str, float]
    own_cores: float
    gateway_rss: int
    gateway_rss_before: int


class Device:
    """A connection; `on_frame` gets every decoded frame."""

    def __init__(self, url: str) -> None:
        self.answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.rid = 0
        self.lost = False
        self.socket = LeanSocket(url, MSGPACK.subprotocol, True, self._on_message, self._on_lost)

    async def sign_on(self, token: str, room_id: str | None, replay: int = 0) -> None:
        """Connect, AUTH, and enter the room. MeasurementError."""
        await self.socket.open(ANSWER_S)
        await self.ask(lambda rid: Auth(rid, token, "phone", None), "AUTH_OK")
        if room_id is not None:
            await self.ask(lambda rid: JoinRoom(rid, room_id, replay), "JOINED")

    async def ask(self, make: Any, wanted: str) -> dict[str, Any]:
        """The answer to a frame. MeasurementError for another one."""
        answer = await self.put(make)
        if answer["t"] != wanted:
            raise MeasurementError(f"{answer['t']} {answer.get('name', '')} instead of {wanted}")
        return answer

    async def put(self, make: Any) -> dict[str, Any]:
        """The answer to a frame, whatever it is."""
        self.rid += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.answers[self.rid] = future
        frame: ClientFrame = make(self.rid)
        self.socket.put(MSGPACK.encode(frame))
        self.socket.flush()
        async with asyncio.timeout(ANSWER_S):
            return await future

    def say_ping(self) -> None:
        """A sign of life that nobody waits for."""
        self.socket.put(MSGPACK.encode(Ping(2**31)))
        self.socket.flush()

    def _on_message(self, data: bytes) -> None:
        frame = decoded(data)
        if frame["t"] == "ROOM_BATCH":
            self.batch(frame)
            return
        if frame["t"] == "ROOM_EVENT":
            self.event(frame)
            return
        answered = self.answers.pop(frame.get("rid", 0), None)
        if answered is not None and not answered.done():
            answered.set_result(frame)

    def batch(self, frame: dict[str, Any]) -> None:
        """A ROOM_BATCH."""

    def event(self, frame: dict[str, Any]) -> None:
        """A ROOM_EVENT."""

    def _on_lost(self, _: int | None) -> None:
        self.lost = True
        for one in self.answers.values():
            if not one.done():
                one.set_exception(ConnectionResetError())


class Viewer(Device):
    """Counts what comes. `late_ms` is shared by all."""

    def __init__(self, url: str, late_ms: "array[float]") -> None:
        super().__init__(url)
        self.frames = self.messages = self.last = self.missed = self.broken = 0
        self._late_ms = late_ms

    def batch(self, frame: dict[str, Any]) -> None:
        """See `Device.batch`."""
        now_ms = time.time() * 1_000
        self.frames += 1
        for part in frame["rooms"]:
            for one in part["messages"]:
                seq = one["room_seq"]
                self.broken += seq <= self.last
                self.missed += max(0, seq - self.last - 1)
                self.last = seq
                self.messages += 1
                self._late_ms.append(now_ms - one["at"])


class Rooms:
    """One room of one stack."""

    def __init__(self, stack: RunningStack, rate: float, seconds: float) -> None:
        self._stack, self._address = stack, stack.address
        self._rate, self._seconds = rate, seconds
        self._run = secrets.token_hex(4)
        self.room_id = f"perf.{self._run}"
        self._late_ms: array[float] = array("d")
        self._viewers: list[Viewer] = []
        self._usage = Usage()

    async def open(self) -> None:
        """The sender, and the room."""
        self._sender = await Beside.start("tests.perf.room_sender")
        url, token = self._address.require_url(), self._address.token(f"{self._run}.sender")
        await self._sender.ask({"url": url, "token": token, "room_id": self.room_id})

    async def measure(self, viewers: int) -> Size:
        """Grow to so many viewers and talk."""
        pids = {role: pid for role, pid in self._stack.pids().items() if role in ROLES}
        self._usage.read(pids)
        before = self._usage.rss["gateway"]
        began_s = time.monotonic()
        missing = viewers - len(self._viewers)
        await self._grow(viewers)
        joins_s = missing / max(1e-9, time.monotonic() - began_s)
        for one in self._viewers:
            one.frames = one.messages = one.missed = one.broken = 0
        del self._late_ms[:]
        self._usage.read(pids)
        self._usage.restart()
        own_s, began_s = time.process_time(), time.monotonic()
        acks, refused = await self._talk()
        await asyncio.sleep(1.0)  # what is on its way
        seconds = time.monotonic() - began_s
        self._usage.read(pids)
        return Size(
            viewers,
            joins_s,
            seconds,
            sum(one.frames for one in self._viewers),
            sum(one.messages for one in self._viewers),
            sum(one.missed for one in self._viewers),
            sum(one.broken for one in self._viewers),
            self._late_ms[:],
            acks,
            refused,
            {role: cpu_s / seconds for role, cpu_s in self._usage.cpu_s().items()},
            (time.process_time() - own_s) / seconds,
            self._usage.rss["gateway"],
            before,
        )

    async def _grow(self, viewers: int) -> None:
        turn = asyncio.Semaphore(AT_ONCE)
        first = len(self._viewers)

        async def one(number: int) -> Viewer:
            async with turn:
                viewer = Viewer(self._address.require_url(), self._late_ms)
                await viewer.sign_on(self._address.token(f"{self._run}.{number}"), self.room_id)
                # What was said before it came is not missed.
                viewer.last = self._said
                return viewer

        self._viewers += await asyncio.gather(*(one(number) for number in range(first, viewers)))

    _said = 0

    async def _talk(self) -> tuple[list[float], int]:
        pinging = asyncio.create_task(self._ping())
        try:
            said = await self._sender.ask({"rate": self._rate, "seconds": self._seconds})
        finally:
            pinging.cancel()
        self._said += len(said["ack_ms"])
        return said["ack_ms"], said["refused"]

    async def _ping(self) -> None:
        """Signs of life of the viewers, for ever, spread over the interval."""
        while True:
            for part in range(10):
                for viewer in self._viewers[part::10]:
                    viewer.say_ping()
                await asyncio.sleep(PING_S / 10)

    async def close(self) -> None:
        """Leave."""
        for one in self._viewers:
            one.socket.close()
        await self._sender.close()


def percentile(values: Any, share: float) -> float:
    """The value below which `share` of all lie; 0.0 of none."""
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0.0


def line_of(size: Size) -> str:
    """A line of the table."""
    kib = (size.gateway_rss - size.gateway_rss_before) / max(1, size.viewers) / 1_024
    cells = (
        f"{size.viewers:7}",
        f"{size.joins_s:7.0f}",
        f"{size.frames / size.seconds:9.0f}",
        f"{size.deliveries / size.seconds:13.0f}",
        f"{size.missed:7}",
        f"{percentile(size.late_ms, 0.5):8.0f} {percentile(size.late_ms, 0.99):6.0f}",
        f"{percentile(size.ack_ms, 0.5):7.1f} {percentile(size.ack_ms, 0.99):6.1f}",
        f"{size.cores.get('gateway', 0.0):7.2f}",
        f"{size.cores.get('rooms', 0.0):6.2f}",
        f"{size.own_cores:5.2f}",
        f"{kib:9.0f}",
    )
    return " ".join(cells)


HEAD = (
    "viewers joins/s  frames/s  deliveries/s  missed  late P50    P99 ack P50    P99 gateway  rooms "
    " this KiB/viewer"
)


async def _measure(stack: RunningStack, options: argparse.Namespace) -> int:
    rooms = Rooms(stack, options.rate, options.seconds)
    await rooms.open()
    print(HEAD)
    broken = 0
    try:
        for viewers in options.viewers:
            size = await rooms.measure(viewers)
            print(line_of(size), flush=True)
            if size.refused or size.broken:
                print(f"  {size.refused} sends were refused, {size.broken} messages out of order or twice")
                broken += 1
    finally:
        await rooms.close()
    return 1 if broken else 0


def main(arguments: list[str] | None = None) -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf.rooms", description=__doc__)
    parser.add_argument("--viewers", type=int, nargs="+", default=list(SIZES), help="sizes, ascending")
    parser.add_argument("--rate", type=float, default=20.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="of talking, per size")
    parser.add_argument("--state-dir", type=Path, help="of a stack that runs, or where one is to run")
    options = parser.parse_args(arguments)
    if options.viewers != sorted(options.viewers) or min(options.viewers) < 1:
        parser.error("--viewers: give ascending numbers from 1")
    many_descriptors()
    return measured("rooms", lambda stack: _measure(stack, options), options.state_dir)


if __name__ == "__main__":
    sys.exit(main())
