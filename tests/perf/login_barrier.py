"""Signing on again and again while messages stream in at full speed: nothing twice, nothing missing.

    python -m tests.perf.login_barrier [--rate R] [--connections N] [--devices N] [--seconds S] ... (--help)

Users talk in direct chats, `--rate` messages a second, open loop. Beside it `--devices` of them have a second
device, which signs on with its cursor, pulls, is ONLINE_READY, takes what is pushed for a moment, drops its
socket, and begins anew. Afterwards their mailboxes are read as a whole: of every session, what was pulled
must be exactly what lies in (cursor, sync_to_seq], and what was pushed exactly what follows it. Told are
sign-ons per second, how long AUTH_OK and ONLINE_READY took, and the latencies of the others beside it.

Exit codes: 0 measured, and every session was exact; 1 something was missing or doubled, 2 wrong usage.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from qim_streams.errors import QimError
from qim_streams.loadgen.verdict import Verdict
from qim_streams.wire.frames import Event, LiveLost
from tests.perf import reporting
from tests.perf.processes import MeasurementError
from tests.perf.running_stack import RunningStack, running_stack
from tests.perf.storm_load import SteadyLoad, steady
from tests.support.wire_client import WireClient, WireError, pull_range

WARM_UP_S = 3.0
TAKE_S = 0.5  # most of what a session stays online
SHOWN_MAX = 10
TROUBLE = (WireError, aiohttp.ClientError, OSError)
_NS = 1_000_000_000


@dataclass(slots=True)
class Session:
    """What one connection got. Both ranges are (exclusive, inclusive]."""

    after_seq: int
    sync_to_seq: int
    pulled: list[bytes]
    pushed: list[bytes]
    last_pushed: int
    lost: bool  # LIVE_LOST was said: what was pushed may have a gap


@dataclass
class Device:
    """A second device of a user, and all its sessions."""

    user: str
    chance: random.Random
    cursor: str | None = None
    sessions: list[Session] = field(default_factory=list)
    auth_s: list[float] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    troubles: int = 0


class Barrier:
    """One run on a running stack."""

    def __init__(self, stack: RunningStack, given: argparse.Namespace) -> None:
        self._stack, self._given = stack, given
        self._address = stack.address
        self._ending = False

    async def run(self) -> dict[str, Any]:
        """Everything; the figures."""
        given = self._given
        options = steady(given.rate, given.seconds, given.connections, given.seed, warm_up_s=WARM_UP_S)
        async with SteadyLoad(options, self._address) as load:
            users = random.Random(given.seed).sample(range(given.connections), given.devices)
            devices = [Device(load.user_id(one), random.Random(one)) for one in users]
            await load.start()
            await asyncio.sleep(load.first_ns / _NS - time.monotonic())
            began_s = time.monotonic()
            coming = [asyncio.create_task(self._come_and_go(one)) for one in devices]
            await asyncio.sleep(given.seconds)
            self._ending = True
            await asyncio.gather(*coming)
            took_s = time.monotonic() - began_s
            verdict = await load.finish()
            part = load.part("the others", 0, given.seconds)
            wrong = [line for one in devices for line in await self._check(one)]
        return {
            **_figures(devices, took_s),
            "others": part._asdict(),
            "others_clean": verdict.clean,
            "others_text": _said(verdict),
            "wrong": wrong,
        }

    async def _come_and_go(self, device: Device) -> None:
        while not self._ending:
            try:
                await self._session(device)
            except TROUBLE:
                device.troubles += 1  # sent away for a moment, as in any crowd
            await asyncio.sleep(self._given.pause * device.chance.uniform(0.5, 1.5))

    def _wire(self, user: str, name: str) -> WireClient:
        return WireClient(self._address.require_url(), self._address.token(user), name)

    async def _session(self, device: Device) -> None:
        async with self._wire(device.user, "second") as wire:
            began_s = time.monotonic()
            auth = await wire.auth(device.cursor)
            device.auth_s.append(time.monotonic() - began_s)
            pulled = await pull_range(wire, auth.after_seq, auth.sync_to_seq, 200)
            ready = await wire.sync_complete(auth.sync_to_seq)
            device.ready_s.append(time.monotonic() - began_s)
            await asyncio.sleep(device.chance.uniform(0.0, TAKE_S))
            pushed = wire.pushed()
            lost = any(isinstance(one, LiveLost) for one in wire.frames)
        device.cursor = pulled.cursors[-1][1] if pulled.cursors else ready.cursor
        device.sessions.append(
            Session(
                auth.after_seq, auth.sync_to_seq, _ids(pulled.events), _ids(pushed),
                pushed[-1].mailbox_seq if pushed else auth.sync_to_seq, lost,
            )
        )  # fmt: skip

    async def _check(self, device: Device) -> list[str]:
        """What was not exact about a device's sessions."""
        async with self._wire(device.user, "reader") as wire:
            auth = await wire.auth()
            whole = (await pull_range(wire, auth.trim_watermark, auth.sync_to_seq)).events
        return [
            f"{device.user}, session {number}: {line}"
            for number, one in enumerate(device.sessions)
            for line in inexact(one, whole)
        ]


def inexact(session: Session, whole: Sequence[Event]) -> list[str]:
    """How a session differs from the mailbox."""
    found = []
    between = [e.event_id for e in whole if session.after_seq < e.mailbox_seq <= session.sync_to_seq]
    if session.pulled != between:
        found.append(f"pulled {len(session.pulled)} of {len(between)} in ({session.after_seq}, "
                     f"{session.sync_to_seq}]")  # fmt: skip
    above = [e.event_id for e in whole if session.sync_to_seq < e.mailbox_seq <= session.last_pushed]
    if len(set(session.pushed)) != len(session.pushed):
        found.append(f"{len(session.pushed) - len(set(session.pushed))} pushed twice")
    if session.pushed != above and not session.lost:
        found.append(f"pushed {len(session.pushed)} of {len(above)} above {session.sync_to_seq}")
    return found


def _ids(events: Sequence[Event]) -> list[bytes]:
    return [one.event_id for one in events]


def _said(verdict: Verdict) -> str:
    return (
        f"acked {verdict.acked:,}, lost {verdict.lost}, twice {verdict.duplicated_visible}, "
        f"reordered {verdict.reordered}, unknown {verdict.unknown}, refused {verdict.refused}"
    )


def _figures(devices: Sequence[Device], took_s: float) -> dict[str, Any]:
    sessions = [one for device in devices for one in device.sessions]
    return {
        "sign_ons": len(sessions),
        "sign_ons_per_s": len(sessions) / took_s,
        "auth_ms": _ms([one for device in devices for one in device.auth_s]),
        "ready_ms": _ms([one for device in devices for one in device.ready_s]),
        "pulled": sum(len(one.pulled) for one in sessions),
        "pushed": sum(len(one.pushed) for one in sessions),
        "live_lost": sum(one.lost for one in sessions),
        "sent_away": sum(device.troubles for device in devices),
    }


def _ms(seconds: list[float]) -> dict[str, float]:
    seconds.sort()
    if not seconds:
        raise MeasurementError("nobody signed on")
    at = {"p50": len(seconds) // 2, "p99": len(seconds) * 99 // 100, "max": len(seconds) - 1}
    return {name: seconds[index] * 1e3 for name, index in at.items()}


def report(found: dict[str, Any], given: argparse.Namespace) -> str:
    """The figures for people."""
    rows = [
        ["AUTH_OK", *found["auth_ms"].values()],
        ["ONLINE_READY", *found["ready_ms"].values()],
        ["the others' ACK", *(found["others"]["ack"][name] for name in ("p50", "p99", "max"))],
        ["the others, end to end", *(found["others"]["e2e"][name] for name in ("p50", "p99", "max"))],
    ]
    return "\n".join(
        (
            f"{found['sign_ons']:,} sign-ons of {given.devices} devices, {found['sign_ons_per_s']:.1f}/s, "
            f"beside {given.rate:g} messages/s; {found['sent_away']} sent away, {found['live_lost']} told "
            "LIVE_LOST",
            f"{found['pulled']:,} entries pulled, {found['pushed']:,} pushed: {len(found['wrong'])} sessions "
            "not exact",
            reporting.table(["ms", "P50", "P99", "max"], rows),
            f"the others: {'clean' if found['others_clean'] else 'NOT CLEAN'}, {found['others_text']}",
        )
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; ends the process with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.login_barrier",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--rate", type=float, default=3_000.0, metavar="R", help="messages/s of all")
    parser.add_argument("--connections", type=int, default=200, metavar="N", help="users who talk")
    parser.add_argument("--devices", type=int, default=20, metavar="N", help="that sign on again and again")
    parser.add_argument("--pause", type=float, default=0.1, metavar="S", help="between two sessions")
    parser.add_argument("--seconds", type=int, default=20, metavar="S")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--quick", action="store_true", help="a broker that starts sooner and is slower")
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="of a stack that runs, or for a new one"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args(argv)
    if not 1 <= given.devices <= given.connections or given.seconds < 1 or given.rate <= 0:
        parser.error("--devices: from 1 to --connections; --seconds: from 1; --rate: above 0")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    given = parse(argv)
    reporting.begin("login barrier", given.seed)
    try:
        with running_stack(given.state_dir, quick=given.quick) as stack:
            found = uvloop.run(Barrier(stack, given).run())
    except (MeasurementError, QimError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    print(report(found, given))
    reporting.save(given.json, "login_barrier", given.seed, found)
    for line in found["wrong"][:SHOWN_MAX]:
        print(f"NOT RIGHT: {line}", file=sys.stderr)
    return 0 if found["others_clean"] and not found["wrong"] else 1


if __name__ == "__main__":
    sys.exit(main())
