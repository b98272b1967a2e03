"""All clients come back at once after an outage, while others go on talking.

    python -m tests.perf.reconnect_storm [--clients N] [--entries N] [--rate R] [--state-dir DIR] ... (--help)

`--clients` users sign on once, go away, and miss `--entries` messages each, in `--rounds` groups of `--group`
of them. Then all connect within a quarter of a second (what the SDK does after a first loss), give their
saved cursors, pull, and are ONLINE_READY; whoever is refused tries again as the SDK does. Meanwhile other
devices talk in direct chats, `--rate` messages a second, open loop. Told are: when 50, 90, 99 and 100 % were
ready, entries per second, what was refused, the latencies of the others before, during and after, memory
and CPU of the gateway, and how busy this program itself was, which competes for the same processors.

Exit codes: 0 measured, and every entry came once, in order; 1 something was missing, doubled or not ready in
`--limit` seconds; 2 wrong usage.
"""

import argparse
import asyncio
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from qim_streams.errors import QimError
from qim_streams.loadgen.message import BODY_BYTES_MIN
from qim_streams.loadgen.procfs import Usage
from qim_streams.loadgen.run import draw_tag
from qim_streams.loadgen.surroundings import stack_settings
from tests.perf import reporting
from tests.perf.processes import MeasurementError
from tests.perf.running_stack import RunningStack, many_descriptors, running_stack
from tests.perf.storm_clients import Away, Watch
from tests.perf.storm_filling import CLIENTS_FROM, Filler, Shape
from tests.perf.storm_load import SteadyLoad, steady

SHARES = (0.5, 0.9, 0.99, 1.0)
FILES_BESIDE = 300  # descriptors of a process besides its clients
LOGINS_AT_ONCE = 64  # of the first sign-on
TICK_S = 0.05
BUSY = 0.7  # of a core: from here on this program may be what is measured
LATE_MS = 250.0
_NS = 1_000_000_000


class Asked(NamedTuple):
    """What the command line says."""

    shape: Shape
    rate: float
    connections: int
    before_s: int
    limit_s: int
    after_s: int

    @property
    def load_s(self) -> int:
        """How long the others talk."""
        return self.before_s + self.limit_s + self.after_s


class Meter:
    """This process and the stack while the storm lasts, looked at every `TICK_S` and every second."""

    def __init__(self, stack: RunningStack) -> None:
        self._stack, self._usage = stack, Usage()
        self.late_ms: list[float] = []
        self.rss_before: dict[str, int] = {}
        self.rss_most: dict[str, int] = {}
        self.own_cpu_s = self.wall_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        own, began_s = time.process_time(), time.monotonic()
        self._usage.read(self._stack.pids())
        self.rss_before = dict(self._usage.rss)
        read_s = began_s
        try:
            while True:
                due_s = time.monotonic() + TICK_S
                await asyncio.sleep(TICK_S)
                self.late_ms.append((time.monotonic() - due_s) * 1_000)
                if time.monotonic() - read_s > 1.0:
                    read_s = time.monotonic()
                    self._read()
        finally:
            self._read()
            self.own_cpu_s, self.wall_s = time.process_time() - own, time.monotonic() - began_s

    def _read(self) -> None:
        self._usage.read(self._stack.pids())
        for name, value in self._usage.rss.items():
            self.rss_most[name] = max(value, self.rss_most.get(name, 0))

    def figures(self) -> dict[str, Any]:
        """CPU as share of a core, memory in MB, and how late this process was."""
        late = sorted(self.late_ms)
        return {
            "own_busy": self.own_cpu_s / self.wall_s,
            "own_late_p99_ms": late[min(len(late) - 1, len(late) * 99 // 100)] if late else 0.0,
            "cpu_of_a_core": {name: used / self.wall_s for name, used in self._usage.cpu_s().items()},
            "rss_mb_before": {name: value / 2**20 for name, value in self.rss_before.items()},
            "rss_mb_most": {name: value / 2**20 for name, value in self.rss_most.items()},
        }


def check_room(asked: Asked, stack: RunningStack) -> None:
    """MeasurementError when processes may not open as many sockets as this needs; names the remedy."""
    hard = many_descriptors()
    clients = asked.shape.clients
    allowed = {"this process": (hard, clients + FILES_BESIDE)}
    limits = Path(f"/proc/{stack.pids()['gateway']}/limits").read_text(encoding="utf-8")
    line = next(one for one in limits.splitlines() if one.startswith("Max open files"))
    soft = line.split()[3]
    sockets = clients + asked.connections
    allowed["the gateway"] = (int(soft) if soft.isdigit() else 2**31, sockets + FILES_BESIDE)
    for who, (files, needed) in allowed.items():
        if files < needed:
            raise MeasurementError(
                f"--clients {clients:,}: {who} may open {files:,} files and needs {needed:,}; "
                f"raise the limit (ulimit -n {needed}, before the stack starts) or lower --clients"
            )
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()
    ports = int(high) - int(low) + 1
    if ports < sockets + FILES_BESIDE:
        raise MeasurementError(
            f"--clients {clients:,}: there are {ports:,} local ports; widen net.ipv4.ip_local_port_range"
        )


class Storm:
    """One run on a running stack."""

    def __init__(self, asked: Asked, stack: RunningStack) -> None:
        self._asked, self._stack = asked, stack
        address, tag = stack.address, draw_tag()
        run = random.SystemRandom().getrandbits(32)
        settings = stack_settings(stack.state_dir)
        shape = asked.shape
        self._filler = Filler(
            address, shape, tag, run, settings["outbox_partitions"], settings["mailbox_shards"]
        )
        groups = self._filler.groups
        url = address.require_url()
        self._watch = Watch(url, {one.conversation_id: one for one in groups}, run, time.monotonic)
        mine: dict[int, list[Any]] = {CLIENTS_FROM + at: [] for at in range(shape.clients)}
        for group in groups:
            for number in group.members:
                mine[number].append(group)
        user_id = self._filler.plan.user_id
        self.clients = [
            Away(self._watch, user_id(number), address.token(user_id(number)), of, shape.messages_each)
            for number, of in mine.items()
        ]
        self._began_s = 0.0

    async def run(self) -> dict[str, Any]:
        """Everything; the figures."""
        setup: dict[str, float] = {}
        for name, work in (
            ("first sign-on", self._first_sign_on),
            ("speakers", self._filler.connect),
            ("groups", self._filler.make_groups),
            ("filling", self._filler.speak),
        ):
            began_s = time.monotonic()
            await work()
            setup[name] = time.monotonic() - began_s
            print(f"{name}: {setup[name]:.1f} s", flush=True)
        await self._filler.close()
        asked = self._asked
        options = steady(asked.rate, asked.load_s, asked.connections, asked.shape.seed)
        async with SteadyLoad(options, self._stack.address) as load:
            await load.start()
            return {"setup_s": setup, **await self._beside(load)}

    async def _first_sign_on(self) -> None:
        gate = asyncio.Semaphore(LOGINS_AT_ONCE)

        async def one(client: Away) -> None:
            async with gate:
                await client.leave_word()

        await asyncio.gather(*(one(client) for client in self.clients))

    async def _beside(self, load: SteadyLoad) -> dict[str, Any]:
        """The storm beside the load."""
        asked = self._asked
        restarts = self._stack.restarts()
        begins_s = load.first_ns / _NS + asked.before_s
        await asyncio.sleep(begins_s - time.monotonic())
        meter, pings = Meter(self._stack), asyncio.create_task(self._keep_alive())
        try:
            took_s = await self._all_come_back(meter)
            print(f"storm: {took_s:.1f} s", flush=True)
            verdict = await load.finish()
        finally:
            pings.cancel()
            for client in self.clients:
                client.leave()
        ended = min(asked.load_s, asked.before_s + math.ceil(took_s))
        parts = [
            load.part("before", 0, asked.before_s),
            load.part("during", asked.before_s, ended),
            load.part("after", ended, asked.load_s),
        ]
        return {
            **self._figures(took_s),
            **meter.figures(),
            "others": [part._asdict() for part in parts],
            "others_verdict": {
                "clean": verdict.clean, "acked": verdict.acked, "lost": verdict.lost,
                "duplicated": verdict.duplicated_visible, "reordered": verdict.reordered,
                "unknown": verdict.unknown, "refused": verdict.refused,
            },
            "others_noted": load.noted,
            "generator_late_p99_ms": load.late_ms,
            "restarts": self._stack.restarts() - restarts,
        }  # fmt: skip

    async def _all_come_back(self, meter: Meter) -> float:
        """Until all are ready, or the limit; how many seconds it took."""
        measuring = asyncio.create_task(meter.run())
        await asyncio.sleep(0)
        self._watch.entries = 0
        self._watch.noted.clear()
        self._watch.ready.clear()
        self._began_s = time.monotonic()
        tasks = [asyncio.create_task(client.come_back()) for client in self.clients]
        done, late = await asyncio.wait(tasks, timeout=self._asked.limit_s)
        took_s = time.monotonic() - self._began_s
        for task in late:
            task.cancel()
        measuring.cancel()
        await asyncio.gather(measuring, *late, return_exceptions=True)
        for task in done:
            task.result()
        return took_s

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now_s = time.monotonic()
            for client in self.clients:
                client.tick(now_s)

    def _figures(self, took_s: float) -> dict[str, Any]:
        watch, count = self._watch, len(self.clients)
        ready = [at - self._began_s for at in watch.ready]
        own = sorted(watch.sync_s)
        return {
            "took_s": took_s,
            "ready": len(ready),
            "ready_s": {
                f"{share:.0%}": ready[math.ceil(share * count) - 1] if len(ready) >= share * count else None
                for share in SHARES
            },
            "client_p50_s": own[len(own) // 2] if own else None,
            "entries": watch.entries,
            "entries_per_s": watch.entries / took_s,
            "missing": sum(client.missing for client in self.clients),
            "noted": dict(sorted(watch.noted.items())),
        }


def problems(found: dict[str, Any], clients: int) -> list[str]:
    """What was not as it must be; empty when all is well."""
    said = []
    if found["ready"] != clients:
        said.append(f"{clients - found['ready']:,} clients were not ONLINE_READY in time")
    if found["missing"]:
        said.append(f"{found['missing']:,} entries never came")
    said += [f"{name}: {count:,}" for name, count in found["noted"].items() if name.startswith("WRONG")]
    if not found["others_verdict"]["clean"]:
        said.append(f"the others: {found['others_verdict']}")
    if found["restarts"]:
        said.append(f"{found['restarts']} roles died and were started again")
    return said


def report(found: dict[str, Any], clients: int) -> str:
    """The figures for people."""
    shares = ", ".join(
        f"{share} {'never' if at is None else f'{at:.1f} s'}" for share, at in found["ready_s"].items()
    )
    noted = ", ".join(f"{name} {count:,}" for name, count in found["noted"].items()) or "nothing"
    rows = [
        [part["name"], part["seconds"], part["messages"], part["ack"]["p50"], part["ack"]["p99"],
         part["ack"]["max"], part["e2e"]["p50"], part["e2e"]["p99"], part["e2e"]["max"]]
        for part in found["others"]
    ]  # fmt: skip
    head = ["the others", "s", "messages", "ACK P50 ms", "P99", "max", "end to end P50 ms", "P99", "max"]
    cpu = found["cpu_of_a_core"]
    memory = [
        [name, found["rss_mb_before"].get(name), most, cpu.get(name)]
        for name, most in sorted(found["rss_mb_most"].items())
    ]
    lines = [
        f"{found['ready']:,} of {clients:,} clients ONLINE_READY: {shares}",
        f"{found['entries']:,} entries, {found['entries_per_s']:,.0f}/s, missing {found['missing']:,}",
        f"refused, repeated and the like: {noted}",
        reporting.table(head, rows),
        f"the others: {found['others_verdict']}, besides {found['others_noted'] or 'nothing'}",
        reporting.table(["in the storm", "RSS MB before", "most", "of a core"], memory),
        f"this program: {found['own_busy']:.0%} of a core, P99 {found['own_late_p99_ms']:,.0f} ms late; the "
        f"load generator P99 {found['generator_late_p99_ms']:,.1f} ms late",
    ]
    if found["own_busy"] > BUSY or found["own_late_p99_ms"] > LATE_MS:
        lines.append("the clients themselves were busy or late: the gateway may be faster than this says")
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Asked]:
    """The options; ends the process with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.reconnect_storm",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--clients", type=int, default=10_000, metavar="N", help="that come back")
    parser.add_argument("--entries", type=int, default=100, metavar="N", help="that each of them missed")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="groups that each is in")
    parser.add_argument("--group", type=int, default=100, metavar="N", help="clients in a group")
    parser.add_argument("--body", type=int, default=128, metavar="BYTES")
    parser.add_argument("--rate", type=float, default=200.0, metavar="R", help="messages/s of the others")
    parser.add_argument("--connections", type=int, default=200, metavar="N", help="how many the others are")
    parser.add_argument("--before", type=int, default=15, metavar="S", help="of load before the storm")
    parser.add_argument("--limit", type=int, default=60, metavar="S", help="that the storm may take")
    parser.add_argument("--after", type=int, default=10, metavar="S", help="of load after --limit")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--quick", action="store_true", help="a broker that starts sooner and is slower")
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="of a stack that runs, or for a new one"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args(argv)
    numbers = (given.clients, given.entries, given.rounds, given.group, given.before, given.limit)
    if min(numbers) < 1 or given.after < 0 or given.rate <= 0 or given.connections < 2:
        parser.error("numbers from 1; --after: from 0; --rate: above 0; --connections: from 2")
    if given.entries % given.rounds:
        parser.error(f"--entries {given.entries}: must be a multiple of --rounds {given.rounds}")
    if given.group > 400 or given.body < BODY_BYTES_MIN:
        parser.error(f"--group: at most 400 (larger ones are paced); --body: from {BODY_BYTES_MIN}")
    each = given.entries // given.rounds
    shape = Shape(given.clients, given.rounds, given.group, each, given.body, given.seed)
    return given, Asked(shape, given.rate, given.connections, given.before, given.limit, given.after)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    given, asked = parse(argv)
    reporting.begin("reconnect storm", given.seed)
    try:
        with running_stack(given.state_dir, quick=given.quick) as stack:
            check_room(asked, stack)
            found = uvloop.run(Storm(asked, stack).run())
    except (MeasurementError, QimError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    print(report(found, asked.shape.clients))
    reporting.save(given.json, "reconnect_storm", given.seed, {"clients": asked.shape.clients, **found})
    wrong = problems(found, asked.shape.clients)
    for one in wrong:
        print(f"NOT RIGHT: {one}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
