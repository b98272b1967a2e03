"""Idle connections of one gateway: what each costs in memory, and all of them in processor time.

    python -m tests.perf.idle [--connections 1000 5000 15000] [--seconds 20] [--state-dir DIR] (--help)

For each size: so many devices of as many users sign on, reach ONLINE_READY, say nothing but their pings, and
stay. Told are: sign-ons per second, the gateway's resident memory and its growth per connection since the
first size's beginning (KiB), the growth of the mailbox worker, which knows who is online, per connection, and
the CPU of both while nothing happens (pings and refreshes of presence), in cores.

A connection takes a descriptor here and one in the gateway: see `ulimit -n`. One address has about 28,000
ports. Exit codes: 0 measured, 1 a connection was lost or could not be made, 2 wrong usage.
"""

import argparse
import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from qim_streams.loadgen.procfs import Usage
from qim_streams.wire.frames import Auth, SyncComplete
from tests.perf.processes import MeasurementError
from tests.perf.rooms import AT_ONCE, Device
from tests.perf.running_stack import RunningStack, many_descriptors, measured

SIZES = (1_000, 5_000, 15_000)
ROLES = ("gateway", "mailbox")
PING_S = 25.0  # below the server's ping_interval_ms
SPARE_DESCRIPTORS = 200
ENVIRONMENT = {"QIM_DOOR_TRUSTED": "127.0.0.0/8"}  # all of these users share one address


class Size(NamedTuple):
    """What one size came to. Bytes and cores by role."""

    connections: int
    sign_ons_s: float
    rss: dict[str, int]
    grown: dict[str, int]
    cores: dict[str, float]
    lost: int


class Crowd:
    """The devices of a measurement."""

    def __init__(self, stack: RunningStack) -> None:
        self._stack, self._address, self._run = stack, stack.address, secrets.token_hex(4)
        self._devices: list[Device] = []
        self._usage = Usage()
        self._before: dict[str, int] = {}

    def begin(self) -> None:
        """Note what the roles take without us."""
        self._usage.read(self._pids())
        self._before = dict(self._usage.rss)

    async def measure(self, connections: int, seconds: float) -> Size:
        """Grow to so many connections, and watch them do nothing."""
        missing, began_s = connections - len(self._devices), time.monotonic()
        await self._grow(connections)
        grew_s = time.monotonic() - began_s
        self._usage.read(self._pids())
        self._usage.restart()
        began_s = time.monotonic()
        await asyncio.sleep(seconds)
        self._usage.read(self._pids())
        idle_s = time.monotonic() - began_s
        return Size(
            connections,
            missing / max(1e-9, grew_s),
            dict(self._usage.rss),
            {role: self._usage.rss[role] - self._before[role] for role in ROLES},
            {role: cpu_s / idle_s for role, cpu_s in self._usage.cpu_s().items()},
            sum(one.lost for one in self._devices),
        )

    async def ping(self) -> None:
        """Signs of life, for ever, spread over the interval."""
        while True:
            for part in range(10):
                for one in self._devices[part::10]:
                    if not one.lost:
                        one.say_ping()
                await asyncio.sleep(PING_S / 10)

    def close(self) -> None:
        """Let go of all."""
        for one in self._devices:
            one.socket.close()

    async def _grow(self, connections: int) -> None:
        turn = asyncio.Semaphore(AT_ONCE)
        url = self._address.require_url()

        async def one(number: int) -> None:
            async with turn:
                device = Device(url)
                token = self._address.token(f"{self._run}.{number}")
                await device.socket.open(60.0)
                auth = await device.ask(lambda rid: Auth(rid, token, "phone", None), "AUTH_OK")
                await device.ask(lambda rid: SyncComplete(rid, auth["sync_to_seq"]), "ONLINE_READY")
                self._devices.append(device)

        await asyncio.gather(*(one(number) for number in range(len(self._devices), connections)))

    def _pids(self) -> dict[str, int]:
        found = {role: pid for role, pid in self._stack.pids().items() if role in ROLES}
        if found.keys() != set(ROLES):
            raise MeasurementError(f"the stack has no {' or no '.join(set(ROLES) - found.keys())}")
        return found


HEAD = "connections sign-ons/s  gateway MiB  KiB/connection  mailbox KiB each  gateway cores  mailbox cores"


def line_of(size: Size) -> str:
    """A line of the table."""
    each = {role: size.grown[role] / size.connections / 1_024 for role in ROLES}
    return (
        f"{size.connections:11} {size.sign_ons_s:10.0f} {size.rss['gateway'] / 2**20:12.0f} "
        f"{each['gateway']:15.1f} {each['mailbox']:17.1f} {size.cores['gateway']:14.2f} "
        f"{size.cores['mailbox']:14.2f}"
    )


async def _measure(stack: RunningStack, sizes: Sequence[int], seconds: float) -> int:
    crowd, lost = Crowd(stack), 0
    pinging = asyncio.create_task(crowd.ping())
    crowd.begin()
    print(HEAD)
    try:
        for connections in sizes:
            size = await crowd.measure(connections, seconds)
            print(line_of(size), flush=True)
            if size.lost:
                lost = size.lost
                print(f"  {lost} connections were lost")
    finally:
        pinging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await pinging
        crowd.close()
    return 1 if lost else 0


def main(arguments: list[str] | None = None) -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--connections", type=int, nargs="+", default=list(SIZES), help="sizes, ascending")
    parser.add_argument("--seconds", type=float, default=20.0, help="of doing nothing, per size")
    parser.add_argument("--state-dir", type=Path, help="of a stack that runs, or where one is to run")
    options = parser.parse_args(arguments)
    if options.connections != sorted(options.connections) or min(options.connections) < 1:
        parser.error("--connections: give ascending numbers from 1")
    hard = many_descriptors()
    if max(options.connections) + SPARE_DESCRIPTORS > hard:
        parser.error(f"--connections: this machine gives a process {hard} descriptors (ulimit -Hn)")
    return measured(
        "idle",
        lambda stack: _measure(stack, options.connections, options.seconds),
        options.state_dir,
        ENVIRONMENT,
    )


if __name__ == "__main__":
    sys.exit(main())
