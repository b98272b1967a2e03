"""How many offline devices the notification role tells per second and core: APNs, a stack of its own.

    python -m tests.perf.notifications [--devices 2000] [--groups 10] [--messages 10] (--help)

So many devices, each of another user, register with APNs and go; they are the members of so many groups, and
so many messages are said in each. The provider is a process of its own (`tests.perf.push_provider`), real
HTTP/2 over TLS, which answers at once. The grace is long, so the messages are through the rest of the stack
and all tasks are queued before the first notification is due: what is timed then is the role alone, with
Redis and the provider on the same processors.

Told are, per notification: CPU µs of the role until the first request (reading tasks, queueing them) and from
then on (messages, marks, badges, requests, what became of each), and of Redis and the provider; notifications
per second from the first request to the last, cores of role, Redis and provider meanwhile, and notifications
per second and core of the role. When the provider was near a whole core it was the bound.

Exit codes: 0 measured, every device told of every message once; 1 one was not, or twice; 2 wrong usage.
"""

import argparse
import asyncio
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from qim_streams.errors import QimError
from qim_streams.loadgen.procfs import Usage
from qim_streams.wire.frames import Auth, SendMessage, SyncComplete
from qim_streams.wire.frames_group import GroupCreate
from qim_streams.wire.frames_push import RegisterPush
from tests.perf.beside import Beside
from tests.perf.processes import MeasurementError
from tests.perf.rooms import AT_ONCE, BODY, Device
from tests.perf.running_stack import RunningStack, many_descriptors, running_stack

ROLES = ("notification", "redis")
GRACE_S = 20.0
WITHIN_S = 100.0
LOOK_S = 0.25
PROBES_MAX, PROBE_S = 3, 40.0
ENVIRONMENT = {
    "QIM_DOOR_TRUSTED": "127.0.0.0/8",
    "QIM_NOTIFICATION_GRACE_MS": str(int(GRACE_S * 1_000)),
}


class Told(NamedTuple):
    """What a measurement came to. CPU seconds by process before the first request, and from there on."""

    wanted: int
    requests: int
    notifications: int
    seconds: float
    before_s: dict[str, float]
    sending_s: dict[str, float]

    @property
    def twice(self) -> int:
        """Requests for what had been told already."""
        return self.requests - self.notifications


class Audience:
    """Groups of devices that are away."""

    def __init__(self, stack: RunningStack, provider: Beside, devices: int, groups: int) -> None:
        self._stack, self._provider = stack, provider
        self._run = secrets.token_hex(4)
        self._sender = Device(stack.address.require_url())
        self._groups: dict[str, list[str]] = {
            f"g.{self._run}.{group}": [f"{self._run}.{n}" for n in range(group, devices, groups)]
            for group in range(groups)
        }
        self._devices, self._said = devices, 0

    async def gather(self) -> None:
        """Register everybody, make the groups, and wait until all are told of a first message."""
        await self._sign_on(self._sender, f"{self._run}.sender")
        turn = asyncio.Semaphore(AT_ONCE)

        async def register(user: str) -> None:
            async with turn:
                device = Device(self._stack.address.require_url())
                await self._sign_on(device, user)
                token = secrets.token_hex(32)
                await device.ask(lambda rid: RegisterPush(rid, "apns", token), "PUSH_STATE")
                device.socket.close()

        await asyncio.gather(*(register(user) for users in self._groups.values() for user in users))
        for group, users in self._groups.items():
            await self._sender.ask(
                lambda rid, name=group, who=users: GroupCreate(rid, who, name), "GROUP_STATE"
            )
        for _ in range(PROBES_MAX):  # the presence of one who has just gone may be seen for a moment
            await self._provider.ask({"forget": True})
            await self.say(1)
            heard = await self.heard(self._devices, GRACE_S + PROBE_S)
            if heard >= self._devices:
                return
        raise MeasurementError(f"{heard} of {self._devices} devices were told of the last message")

    async def _sign_on(self, device: Device, user: str) -> None:
        await device.socket.open(WITHIN_S)
        token = self._stack.address.token(user)
        auth = await device.ask(lambda rid: Auth(rid, token, "phone", None), "AUTH_OK")
        await device.ask(lambda rid: SyncComplete(rid, auth["sync_to_seq"]), "ONLINE_READY")

    async def say(self, messages: int) -> None:
        """So many messages in each group, one round after the other."""
        for _ in range(messages):
            self._said += 1
            await asyncio.gather(*(self._say(group, f"m{self._said}") for group in self._groups))

    async def _say(self, group: str, name: str) -> None:
        await self._sender.ask(lambda rid: SendMessage(rid, f"{group}.{name}", BODY, group), "SEND_ACK")

    async def heard(self, wanted: int, within_s: float) -> int:
        """How many requests have come, once it is `wanted` or nothing more is waited for."""
        end_s = time.monotonic() + within_s
        while True:
            requests = int((await self._provider.ask({}))["requests"])
            if requests >= wanted or time.monotonic() > end_s:
                return requests
            self._sender.say_ping()
            await asyncio.sleep(LOOK_S)

    async def measure(self, messages: int) -> Told:
        """Say so many in each group; what came of it."""
        usage, pids, wanted = Usage(), self._pids(), messages * self._devices
        await self._provider.ask({"forget": True})
        usage.read(pids)
        await self.say(messages)
        await self.heard(1, GRACE_S + WITHIN_S)
        usage.read(pids)
        before_s = usage.cpu_s()
        usage.restart()
        await self.heard(wanted, WITHIN_S)
        usage.read(pids)
        sending_s = usage.cpu_s()
        await asyncio.sleep(2.0)  # what would come twice
        seen = await self._provider.ask({"closely": True})
        seconds = seen["last_s"] - seen["first_s"]
        return Told(wanted, seen["requests"], seen["notifications"], seconds, before_s, sending_s)

    def _pids(self) -> dict[str, int]:
        found = {role: pid for role, pid in self._stack.pids().items() if role in ROLES}
        if found.keys() != set(ROLES):
            raise MeasurementError(f"the stack has no {' or no '.join(set(ROLES) - found.keys())}")
        return found | {"provider": self._provider.pid}

    def close(self) -> None:
        """Leave."""
        self._sender.socket.close()


def lines_of(told: Told) -> list[str]:
    """What is told of a measurement."""
    count = max(1, told.notifications)

    def each_us(used_s: dict[str, float], name: str) -> float:
        return used_s[name] / count * 1e6

    cores = {name: used_s / max(1e-9, told.seconds) for name, used_s in told.sending_s.items()}
    role_s = told.before_s["notification"] + told.sending_s["notification"]
    return [
        f"{told.notifications} of {told.wanted} notifications in {told.seconds:.1f} s: "
        f"{told.notifications / max(1e-9, told.seconds):.0f}/s, {told.twice} twice",
        f"role {each_us(told.before_s, 'notification'):.0f} µs to queue, "
        f"{each_us(told.sending_s, 'notification'):.0f} µs to send: "
        f"{told.notifications / max(1e-9, role_s):.0f}/s and core",
        f"Redis {each_us(told.before_s, 'redis'):.0f} and {each_us(told.sending_s, 'redis'):.0f} µs, "
        f"provider {each_us(told.sending_s, 'provider'):.0f} µs",
        "cores while sending: " + ", ".join(f"{name} {used:.2f}" for name, used in cores.items()),
    ]


async def _measure(stack: RunningStack, provider: Beside, options: argparse.Namespace) -> int:
    audience = Audience(stack, provider, options.devices, options.groups)
    try:
        await audience.gather()
        told = await audience.measure(options.messages)
    finally:
        audience.close()
    print("\n".join(lines_of(told)))
    return 0 if told.requests == told.notifications == told.wanted else 1


async def _started(options: argparse.Namespace) -> int:
    provider = await Beside.start("tests.perf.push_provider")
    try:
        environment = ENVIRONMENT | (await provider.ask({}))["environment"]
        with running_stack(options.state_dir, quick=True, env=environment) as stack:
            return await _measure(stack, provider, options)
    finally:
        await provider.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.notifications",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", type=int, default=2_000, help="registered, and away")
    parser.add_argument("--groups", type=int, default=10, help="that they are the members of")
    parser.add_argument("--state-dir", type=Path, help="where the stack is to run (default: a temporary one)")
    parser.add_argument("--messages", type=int, default=10, help="in each group")
    options: Any = parser.parse_args(arguments)
    if not 1 <= options.groups <= options.devices or options.messages < 1:
        parser.error("--groups from 1 to as many as --devices, --messages from 1")
    if options.devices / options.groups > 400:
        parser.error("--devices: at most 400 for each of --groups, for a sender has to wait in larger groups")
    many_descriptors()
    try:
        return uvloop.run(_started(options))
    except (MeasurementError, QimError, TimeoutError, OSError) as error:
        print(f"notifications: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
