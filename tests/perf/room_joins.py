"""A storm of joins: tens of thousands a minute into one room, while somebody talks in it.

    python -m tests.perf.room_joins [--joins 20000] [--seconds 60] [--connections 2000] [--rate 10] (--help)

So many connections sign on first. Then joins begin at an even pace, open loop, whether or not those before
were answered: the next connection in turn leaves the room, if it is in it, and enters it again, is shown the
last messages, and gets what is said. Told are: joins that were due and done, time from when a join was due to
JOINED, refusals, what the storm costs those who are in the room (frames of events per connection and second:
counts of members are told every five seconds, never per join), the sender's acknowledgements, and CPU.

Exit codes: 0 measured; 1 joins were refused, unanswered or late by more than a tenth of the time, or a
message came twice or out of order; 2 wrong usage.

Scenario G10. Spec: §10.
"""

import argparse
import asyncio
import secrets
import sys
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qim_streams.loadgen.procfs import Usage
from qim_streams.wire.frames_rooms import CreateRoom, JoinRoom, LeaveRoom, SendRoom
from tests.perf.rooms import AT_ONCE, BODY, ROLES, Device, percentile
from tests.perf.running_stack import RunningStack, many_descriptors, measured

PING_EVERY_S = 10.0
ENVIRONMENT = {"QIM_DOOR_TRUSTED": "127.0.0.0/8"}  # all of these users share one address


class Guest(Device):
    """Comes and goes; counts what it is given while it is in the room."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.inside = False
        self.busy = asyncio.Lock()
        self.frames = self.events = self.broken = self.last = 0

    def batch(self, frame: dict[str, Any]) -> None:
        """See `Device.batch`."""
        self.frames += 1
        for part in frame["rooms"]:
            for one in part["messages"]:
                self.broken += one["room_seq"] <= self.last
                self.last = one["room_seq"]

    def event(self, frame: dict[str, Any]) -> None:
        """See `Device.event`."""
        self.events += 1


@dataclass(slots=True)
class Storm:
    """What came of it. Milliseconds."""

    joined_ms: "array[float]" = field(default_factory=lambda: array("d"))
    ack_ms: "array[float]" = field(default_factory=lambda: array("d"))
    refused: int = 0
    seconds: float = 0.0


class Room:
    """One room of one stack, and who comes and goes."""

    def __init__(self, stack: RunningStack, replay: int) -> None:
        self._stack, self._address, self._replay = stack, stack.address, replay
        self._run = secrets.token_hex(4)
        self.room_id = f"perf.{self._run}"
        self.guests: list[Guest] = []
        self._usage = Usage()
        self.storm = Storm()

    async def open(self, connections: int) -> None:
        """The sender, the room, and the guests, who are outside."""
        self._sender = Device(self._address.require_url())
        await self._sender.sign_on(self._address.token(f"{self._run}.sender"), None)
        await self._sender.ask(lambda rid: CreateRoom(rid, self.room_id), "ROOM_STATE")
        await self._sender.ask(lambda rid: JoinRoom(rid, self.room_id, 0), "JOINED")
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with turn:
                guest = Guest(self._address.require_url())
                await guest.sign_on(self._address.token(f"{self._run}.{number}"), None)
                self.guests.append(guest)

        await asyncio.gather(*(one(number) for number in range(connections)))

    async def blow(self, joins: int, seconds: float, rate: float) -> None:
        """The storm."""
        self._read()
        self._usage.restart()
        began_s = time.monotonic()
        talking = asyncio.create_task(self._talk(began_s + seconds, rate))
        running: list[asyncio.Task[None]] = []
        for number in range(joins):
            due_s = began_s + number * seconds / joins
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            running.append(asyncio.create_task(self._join(self.guests[number % len(self.guests)], due_s)))
        await asyncio.gather(*running, talking)
        self.storm.seconds = time.monotonic() - began_s
        self._read()

    async def _join(self, guest: Guest, due_s: float) -> None:
        async with guest.busy:
            if guest.inside:
                await guest.ask(lambda rid: LeaveRoom(rid, self.room_id), "ROOM_LEFT")
                guest.inside, guest.last = False, 0
            answer = await guest.put(lambda rid: JoinRoom(rid, self.room_id, self._replay))
            guest.inside = answer["t"] == "JOINED"
            if not guest.inside:
                self.storm.refused += 1
                return
            self.storm.joined_ms.append((time.monotonic() - due_s) * 1_000)
            guest.last = max(guest.last, answer["room_seq"])

    async def _talk(self, until_s: float, rate: float) -> None:
        """Somebody says something; who has nothing to say shows that he lives."""
        number, pinged_s = 0, time.monotonic()
        while (began_s := time.monotonic()) < until_s:
            number += 1
            name = f"{self._run}.{number}"
            answer = await self._sender.put(lambda rid, n=name: SendRoom(rid, self.room_id, n, BODY))
            if answer["t"] == "ROOM_ACK":
                self.storm.ack_ms.append((time.monotonic() - began_s) * 1_000)
            if began_s - pinged_s > PING_EVERY_S:
                pinged_s = began_s
                for guest in self.guests:
                    guest.say_ping()
            await asyncio.sleep(max(0.0, began_s + 1 / rate - time.monotonic()))

    def cores(self) -> dict[str, float]:
        """CPU of the roles during the storm."""
        return {role: cpu_s / self.storm.seconds for role, cpu_s in self._usage.cpu_s().items()}

    def _read(self) -> None:
        self._usage.read({role: pid for role, pid in self._stack.pids().items() if role in ROLES})

    def close(self) -> None:
        """Leave."""
        for one in (*self.guests, self._sender):
            one.socket.close()


def lines_of(room: Room, joins: int, wanted_s: float) -> list[str]:
    """The figures for people."""
    storm, guests, cores = room.storm, room.guests, room.cores()
    each_s = max(1, len(guests)) * storm.seconds
    events, frames = sum(one.events for one in guests), sum(one.frames for one in guests)
    return [
        f"{joins} joins due in {wanted_s:g} s by {len(guests)} connections: {len(storm.joined_ms)} done in "
        f"{storm.seconds:.1f} s ({len(storm.joined_ms) / storm.seconds:.0f}/s), {storm.refused} refused",
        f"from due to JOINED: P50 {percentile(storm.joined_ms, 0.5):.1f} ms, "
        f"P99 {percentile(storm.joined_ms, 0.99):.1f} ms",
        f"per connection and second: {events / each_s:.3f} events, {frames / each_s:.2f} batches",
        f"sender's ACK: P50 {percentile(storm.ack_ms, 0.5):.1f} ms, "
        f"P99 {percentile(storm.ack_ms, 0.99):.1f} ms of {len(storm.ack_ms)}",
        f"cores: gateway {cores.get('gateway', 0.0):.2f}, rooms {cores.get('rooms', 0.0):.2f}",
    ]


async def _measure(stack: RunningStack, options: argparse.Namespace) -> int:
    room = Room(stack, options.replay)
    try:
        await room.open(options.connections)
        own_s = time.process_time()
        await room.blow(options.joins, options.seconds, options.rate)
        own_s = time.process_time() - own_s
        broken = sum(one.broken for one in room.guests)
        for line in lines_of(room, options.joins, options.seconds):
            print(line)
        print(f"this program: {own_s / room.storm.seconds:.2f} cores")
        if broken:
            print(f"{broken} messages came twice or out of order")
        late = room.storm.seconds > options.seconds * 1.1
        return 1 if room.storm.refused or broken or late else 0
    finally:
        room.close()


def main(arguments: list[str] | None = None) -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.room_joins",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--joins", type=int, default=20_000, help="all together")
    parser.add_argument("--seconds", type=float, default=60.0, help="that they are spread over")
    parser.add_argument("--connections", type=int, default=2_000, help="that come and go")
    parser.add_argument("--rate", type=float, default=10.0, help="messages a second in the room")
    parser.add_argument("--replay", type=int, default=20, help="messages that who joins is shown")
    parser.add_argument("--state-dir", type=Path, help="of a stack that runs, or where one is to run")
    options = parser.parse_args(arguments)
    if min(options.joins, options.connections) < 1 or min(options.seconds, options.rate) <= 0:
        parser.error("--joins and --connections: from 1; --seconds and --rate: above 0")
    many_descriptors()
    return measured("room_joins", lambda stack: _measure(stack, options), options.state_dir, ENVIRONMENT)


if __name__ == "__main__":
    sys.exit(main())
