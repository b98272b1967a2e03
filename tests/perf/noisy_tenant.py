"""What a tenant at ten times its fan-out quota costs another one.

    python -m tests.perf.noisy_tenant [--quota 200] [--times 10] [--rate 150] [--seconds 20] ... (--help)

A stack of its own. The calm tenant talks in direct chats at `--rate`, open loop, from the beginning to the
end, in four stretches of `--seconds`: alone; beside the noisy tenant at its quota; beside it at `--times` its
quota; alone again. The noisy tenant talks in direct chats, too, a message having two recipients. Its quota is
set by the admin API once its chats are open.

Told are the calm tenant's latencies in each stretch, the ratio of P99 of the third to the first, and of the
fourth to the first: what the machine did by itself. The second says how much of it is what the noisy tenant
is entitled to.

Exit codes: 0 measured, the calm tenant was refused nothing and lost nothing, the noisy one got no more than
its quota, and both ratios are within `--ratio-max`; 1 otherwise; 2 wrong usage.

T-X6. Spec: §3.2 L3, §13.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from qim_streams.loadgen.options import BenchOptions
from qim_streams.loadgen.verdict import Verdict
from qim_streams.wire.codes import code_of
from tests.perf import reporting
from tests.perf.processes import MeasurementError
from tests.perf.running_stack import RunningStack, found_on_own
from tests.perf.storm_load import Part, SteadyLoad, checked, steady, stretch_begins

NOISY = "noisy"
KNOWN_S = 6.0
BURST_S = 4.0  # of a quota that may come at once, and of what writers have not told each other
STRETCHES = ("alone", "at its quota", "over its quota", "alone again")


class Asked(NamedTuple):
    """What the command line says. `quota`: recipients a second of the noisy tenant."""

    quota: int
    times: float
    seconds: int
    ratio_max: float

    def begins(self, stretch: int) -> int:
        """The second of the measured part in which a stretch begins."""
        return stretch_begins(stretch, self.seconds)

    @property
    def load_s(self) -> int:
        """How long the calm tenant talks."""
        return self.begins(len(STRETCHES))


async def set_quota(stack: RunningStack, quota: int) -> None:
    """Give the noisy tenant its quota. MeasurementError: the admin API refuses."""
    known = stack.address
    key = {"Authorization": f"Bearer {known.admin_api_key}"}
    async with httpx.AsyncClient(base_url=known.admin_url, headers=key, timeout=20) as api:
        answer = await api.put(f"/v1/tenants/{NOISY}/rules", json={"fanout_per_s": quota})
    if answer.status_code != 200:
        raise MeasurementError(f"the quota was not set: {answer.text}")


def talk_of(asked: Asked, options: BenchOptions, times: float) -> BenchOptions:
    """The noisy tenant's load at so many times its quota, for one stretch."""
    return replace(options, rate=asked.quota / 2 * times, duration_s=asked.seconds, warm_up_s=0.0)


async def measure(asked: Asked, options: BenchOptions, stack: RunningStack) -> dict[str, Any]:
    """All stretches; the figures."""
    noisy = replace(stack.address, tenant=NOISY)
    at_quota, over = (SteadyLoad(talk_of(asked, options, times), noisy) for times in (1.0, asked.times))
    async with SteadyLoad(options, stack.address) as calm, at_quota, over:
        for load in (calm, at_quota, over):
            await load.prepare()
        await set_quota(stack, asked.quota)
        await asyncio.sleep(KNOWN_S)  # every writer asks again by then
        await calm.start()
        found: dict[str, Any] = {}
        for stretch, load in ((1, at_quota), (2, over)):
            await calm.almost(asked.begins(stretch))
            await load.start()
            found[STRETCHES[stretch]] = noisy_figures(await load.finish(), load.opening, asked.seconds)
        verdict = await calm.finish()
        parts = calm.stretches(STRETCHES, asked.seconds)
    return {
        "noisy": found,
        "calm": [part._asdict() for part in parts],
        "ratios": ratios(parts),
        "clean": verdict.clean,
        "refused": verdict.refused,
        "load_average": [round(one, 1) for one in os.getloadavg()],
    }


def noisy_figures(verdict: Verdict, opening: int, seconds: int) -> dict[str, Any]:
    """What the noisy tenant got in a stretch, without the messages that opened its chats before."""
    acked = verdict.acked - opening
    return {
        "offered": verdict.sent - opening,
        "acked": acked,
        "recipients_per_s": 2 * acked / seconds,
        "refused": {str(code): count for code, count in verdict.refusals.items()},
        "clean": verdict.clean,
    }


def ratios(parts: Sequence[Part]) -> dict[str, dict[str, float]]:
    """P99 of each later stretch over that of the first, of the ACKs and from end to end."""
    first = parts[0]
    return {
        part.name: {what: getattr(part, what)["p99"] / getattr(first, what)["p99"] for what in ("ack", "e2e")}
        for part in parts[1:]
    }


def problems(found: dict[str, Any], asked: Asked) -> list[str]:
    """What was not as it must be; empty when all is well."""
    said = []
    if not found["clean"] or found["refused"]:
        said.append(f"the calm tenant: clean {found['clean']}, {found['refused']} refused")
    quota_code = str(code_of("QUOTA_EXCEEDED").code)
    most = 2 + asked.quota * (asked.seconds + BURST_S) / 2
    for name, one in found["noisy"].items():
        if not one["clean"] or set(one["refused"]) - {quota_code}:
            said.append(f"the noisy tenant {name}: {one}")
        if one["acked"] > most:
            said.append(f"the noisy tenant {name}: {one['acked']} messages, its quota allows {most:.0f}")
    if not found["noisy"][STRETCHES[2]]["refused"]:
        said.append("the noisy tenant was refused nothing over its quota")
    for what, ratio in found["ratios"][STRETCHES[2]].items():
        if ratio > asked.ratio_max:
            said.append(f"the calm tenant's {what} P99 is {ratio:.2f} times that without the storm")
    return said


def report(found: dict[str, Any]) -> str:
    """The figures for people."""
    head = ["calm tenant", "messages", "ACK P50 ms", "P99", "ratio", "end to end P50 ms", "P99", "ratio"]
    rows = []
    for part in found["calm"]:
        ratio = found["ratios"].get(part["name"], {"ack": 1.0, "e2e": 1.0})
        row: list[Any] = [part["name"], part["messages"]]
        for what in ("ack", "e2e"):
            row += [part[what]["p50"], part[what]["p99"], ratio[what]]
        rows.append(row)
    noisy = "\n".join(f"noisy tenant {name}: {one}" for name, one in found["noisy"].items())
    end = f"clean: {found['clean']}, refused {found['refused']}, load average {found['load_average']}"
    return f"{reporting.table(head, rows)}\n{noisy}\n{end}"


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Asked, BenchOptions]:
    """The options; ends the process with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.noisy_tenant",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--quota", type=int, default=200, metavar="N", help="recipients a second")
    parser.add_argument("--times", type=float, default=10.0, metavar="X", help="how far over it")
    parser.add_argument("--rate", type=float, default=150.0, help="messages a second of the calm tenant")
    parser.add_argument("--connections", type=int, default=50, metavar="N", help="devices of each tenant")
    parser.add_argument("--seconds", type=int, default=20, metavar="S", help="of each stretch")
    parser.add_argument("--ratio-max", type=float, default=1.2, metavar="X", help="of both P99")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args(argv)
    asked = Asked(args.quota, args.times, args.seconds, args.ratio_max)
    if asked.quota < 2 or asked.times <= 1 or asked.seconds < 1:
        parser.error("--quota: at least 2, --times: more than 1, --seconds: at least 1")
    options = steady(args.rate, asked.load_s, args.connections, args.seed)
    checked(parser, talk_of(asked, options, asked.times))
    return args, asked, checked(parser, options)


def main(argv: Sequence[str] | None = None) -> int:
    """Start a stack, load it, tell. The exit code."""
    args, asked, options = parse(argv)
    reporting.begin("a noisy tenant beside a calm one", args.seed)
    found = found_on_own(partial(measure, asked, options))
    if found is None:
        return 1
    wrong = problems(found, asked)
    return reporting.conclude(report(found), args.json, "noisy_tenant", args.seed, found, wrong)


if __name__ == "__main__":
    sys.exit(main())
