"""What honest clients notice of an attack.

    python -m tests.perf.hostile_beside [--rate 150] [--seconds 20] [--slow 20] [--attacks 20] ... (--help)

A stack of its own. Honest devices talk in direct chats at `--rate`, open loop, in three stretches of
`--seconds`: alone; beside the attack; alone again. The attack: `--slow` connections of every kind that never
get anywhere (no word, half a handshake, a frame byte by byte, ...) at gateway, API and writer; and so many
`--attacks` a second, open loop, drawn at random: frames that are too large, claim or nest too much in both
encodings, noise and requests with wrong keys at the admin API.

Told are the honest clients' latencies in each stretch, and the ratio of P99 beside the attack to the greater
of those without; what the gateway grew by; how the attacks ended. The attacker uses the same machine.

Exit codes: 0 measured, the honest were refused nothing and lost nothing, every role is the same process as
before, and both ratios are within `--ratio-max`; 1 otherwise; 2 wrong usage.

T-X1, T-X2. Spec: §13.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from qim_streams.embedded.status import read_status
from qim_streams.loadgen.options import BenchOptions
from tests.integration.hostile.siege import Siege
from tests.integration.hostile.test_bombs import JSON, MSGPACK, refused_binary, refused_text, unread
from tests.perf import reporting
from tests.perf.processes import MeasurementError, rss_mb
from tests.perf.running_stack import RunningStack, found_on_own, many_descriptors
from tests.perf.storm_load import Part, SteadyLoad, checked, steady, stretch_begins
from tests.support.raw_websocket import masked, provoke, upgrade

STRETCHES = ("alone", "beside the attack", "alone again")


class Asked(NamedTuple):
    """What the command line says."""

    seconds: int
    slow: int
    attacks: float
    ratio_max: float
    seed: int

    def begins(self, stretch: int) -> int:
        """The second of the measured part in which a stretch begins."""
        return stretch_begins(stretch, self.seconds)


class Attack(NamedTuple):
    """Bytes for the gateway behind a handshake (None: noise instead of one)."""

    name: str
    hello: bytes | None
    parts: tuple[bytes, ...]


def attacks() -> list[Attack]:
    """Everything that is thrown at the gateway."""
    found = [Attack("frame", upgrade(), tuple(parts)) for _, parts in unread()]
    found += [Attack("msgpack", upgrade(MSGPACK), (masked(data, 2),)) for _, data in refused_binary()]
    found += [Attack("JSON", upgrade(JSON), (masked(data, 1),)) for _, data in refused_text()]
    return [*found, *[Attack("noise", None, (bytes(range(256)) * 16, b"\r\n\r\n"))] * 3]


class Attacker:
    """Throws attacks at a steady rate. `ends` counts how they ended."""

    def __init__(self, ports: Mapping[str, int], admin_url: str, asked: Asked) -> None:
        self._port, self._admin_url = ports["gateway"], admin_url
        self._per_s, self._rng, self._all = asked.attacks, random.Random(asked.seed), attacks()
        self._under_way: set[asyncio.Task[None]] = set()
        self.ends: Counter[str] = Counter()

    async def run(self, until_s: float) -> None:
        """Until that time of the monotonic clock, and until the last one ended."""
        async with httpx.AsyncClient(base_url=self._admin_url, timeout=20) as api:
            due_s = time.monotonic()
            while (due_s := due_s + 1 / self._per_s) < until_s:
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                one = self._request(api) if self._rng.random() < 0.2 else self._throw()
                task = asyncio.create_task(one)
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.gather(*self._under_way)

    async def _throw(self) -> None:
        attack = self._rng.choice(self._all)
        try:
            ending = await provoke(self._port, *attack.parts, hello=attack.hello or b"")
        except (OSError, AssertionError) as error:
            self.ends[f"{attack.name}: {type(error).__name__}"] += 1
            return
        self.ends[f"{attack.name}: {ending.status or ending.close_code or 'reset'}"] += 1

    async def _request(self, api: httpx.AsyncClient) -> None:
        path = self._rng.choice(("/v1/topology", "/v1/tenants/x/groups/..%2f..%2fy", "/console/..%2f..%2fz"))
        key = f"{self._rng.getrandbits(256):064x}"
        try:
            answer = await api.get(path, headers={"Authorization": f"Bearer {key}"})
        except httpx.HTTPError as error:
            self.ends[f"API: {type(error).__name__}"] += 1
            return
        self.ends[f"API: {answer.status_code}"] += 1


def ports_of(stack: RunningStack) -> dict[str, int]:
    """Where gateway, API and writer listen."""
    status = read_status(stack.state_dir)
    found = {role.name: role.ports.get("port", 0) for role in status.roles} if status is not None else {}
    known = {"gateway": found.get("gateway", 0), "API": found.get("api", 0), "writer": found.get("writer", 0)}
    if not all(known.values()):
        raise MeasurementError(f"a role tells no port: {known}")
    return known


async def measure(asked: Asked, options: BenchOptions, stack: RunningStack) -> dict[str, Any]:
    """All stretches; the figures."""
    ports, pids = ports_of(stack), stack.pids()
    admin = urlsplit(stack.address.admin_url)
    attacker = Attacker(ports, f"{admin.scheme}://{admin.netloc}", asked)
    async with SteadyLoad(options, stack.address) as honest:
        await honest.start()
        begins_s = await honest.almost(asked.begins(1))
        before_mb = rss_mb(stack.pids()["gateway"])
        with Siege(ports, asked.slow) as siege:
            await attacker.run(begins_s + asked.seconds)
            grown_mb = rss_mb(stack.pids()["gateway"]) - before_mb
            still_open = sum(siege.open().values())
        verdict = await honest.finish()
        parts = honest.stretches(STRETCHES, asked.seconds)
    return {
        "honest": [part._asdict() for part in parts],
        "ratios": ratios(parts),
        "clean": verdict.clean,
        "refused": verdict.refused,
        "gateway_grew_mb": round(grown_mb, 1),
        "slow_connections": [len(siege.attempts), still_open],
        "ends": dict(sorted(attacker.ends.items())),
        "same_processes": stack.pids() == pids,
    }


def ratios(parts: Sequence[Part]) -> dict[str, float]:
    """P99 beside the attack over the greater of those without it."""
    before, beside, after = parts
    return {
        what: getattr(beside, what)["p99"] / max(getattr(before, what)["p99"], getattr(after, what)["p99"])
        for what in ("ack", "e2e")
    }


def problems(found: dict[str, Any], asked: Asked) -> list[str]:
    """What was not as it must be; empty when all is well."""
    said = []
    if not found["clean"] or found["refused"]:
        said.append(f"the honest clients: clean {found['clean']}, {found['refused']} refused")
    if not found["same_processes"]:
        said.append("a process ended under the attack")
    if any("AssertionError" in how for how in found["ends"]):
        said.append(f"a connection was never ended: {found['ends']}")
    said += [
        f"the honest clients' {what} P99 is {ratio:.2f} times that without the attack"
        for what, ratio in found["ratios"].items()
        if ratio > asked.ratio_max
    ]
    return said


def report(found: dict[str, Any]) -> str:
    """The figures for people."""
    head = ["honest clients", "messages", "ACK P50 ms", "P99", "end to end P50 ms", "P99"]
    rows = [
        [part["name"], part["messages"], *(part[what][p] for what in ("ack", "e2e") for p in ("p50", "p99"))]
        for part in found["honest"]
    ]
    others = {name: found[name] for name in found if name != "honest"}
    return reporting.table(head, rows) + "\n" + "\n".join(f"{name}: {said}" for name, said in others.items())


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Asked, BenchOptions]:
    """The options; ends the process with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.hostile_beside",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--rate", type=float, default=150.0, help="messages a second of the honest")
    parser.add_argument("--connections", type=int, default=50, metavar="N", help="honest devices")
    parser.add_argument("--seconds", type=int, default=20, metavar="S", help="of each stretch")
    parser.add_argument("--slow", type=int, default=20, metavar="N", help="slow connections of each kind")
    parser.add_argument("--attacks", type=float, default=20.0, metavar="R", help="attacks a second")
    parser.add_argument("--ratio-max", type=float, default=1.2, metavar="X", help="of both P99")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args(argv)
    asked = Asked(args.seconds, args.slow, args.attacks, args.ratio_max, args.seed)
    if asked.seconds < 1 or asked.slow < 0 or asked.attacks <= 0:
        parser.error("--seconds: at least 1, --slow: at least 0, --attacks: more than 0")
    options = steady(args.rate, asked.begins(len(STRETCHES)), args.connections, args.seed)
    return args, asked, checked(parser, options)


def main(argv: Sequence[str] | None = None) -> int:
    """Start a stack, load and attack it, tell. The exit code."""
    args, asked, options = parse(argv)
    many_descriptors()
    reporting.begin("honest clients beside an attack", args.seed)
    found = found_on_own(partial(measure, asked, options))
    if found is None:
        return 1
    wrong = problems(found, asked)
    return reporting.conclude(report(found), args.json, "hostile_beside", args.seed, found, wrong)


if __name__ == "__main__":
    sys.exit(main())
