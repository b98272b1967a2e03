"""One run from set-up to verdict: the phases in order.

1. plan, generator processes, sign-on, groups, first messages of direct chats;
2. warm-up and measured part (CPU of the roles, watermarks, kills beside);
3. drain: until every send has its outcome and every promised delivery came, or nothing moves any more;
4. what is still missing is looked for in the mailboxes; users who were not online are read as a sample;
5. the verdict.

It knows the stack by its address, its status file (pids, for CPU and kills) and its Redis (watermarks).
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qim_streams.client.discovery import StackAddress
from qim_streams.demo.traces import Trace
from qim_streams.embedded.roles import RoleState
from qim_streams.embedded.status import read_status
from qim_streams.errors import ConfigError
from qim_streams.loadgen.fleet import Fleet
from qim_streams.loadgen.histogram import Histogram, merge_series, merged
from qim_streams.loadgen.options import BenchOptions, Kill
from qim_streams.loadgen.outcome import Outcome
from qim_streams.loadgen.plan import Plan, make_plan
from qim_streams.loadgen.procfs import Usage
from qim_streams.loadgen.progress import Progress
from qim_streams.loadgen.redis_watermarks import WatermarkPoll
from qim_streams.loadgen.verdict import Verdict, judge

START_DELAY_NS = 300_000_000
STEP_S = 0.2
STILL_S = 20.0  # nothing moves for so long: what is missing will not come by itself
READY_S = 180.0  # how long a role that was killed may take to come back
READ_BACK_ROUNDS, READ_BACK_WAIT_S = 10, 2.0
SET_UP = {"connect": "devices online", "groups": "groups made", "open": "chats opened"}
_NS = 1_000_000_000

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """The stack: `state_dir` None means that its processes and its Redis are out of reach."""

    address: StackAddress
    state_dir: Path | None
    redis_url: str = field(default="", repr=False)
    mailbox_shards: int = 0


def draw_tag() -> str:
    """A name for the users and conversations of a run that no other run has."""
    return f"{random.SystemRandom().getrandbits(32):08x}"


async def run_bench(
    options: BenchOptions, target: Target, trace: Trace | None, say: Say, *, tag: str = "", made: bool = False
) -> Outcome:
    """Carry out one run. ConfigError when it cannot be done.

    `tag` names users and conversations, by default new ones; with `made` those of the tag exist already.
    """
    run = random.SystemRandom().getrandbits(32)
    plan = make_plan(options, tag or draw_tag(), target.address.require_tenant(), trace)
    progress = Progress(options, say)
    shards = target.mailbox_shards if target.redis_url else 0
    outcome = Outcome(options, Verdict())
    async with Fleet(options, plan, target.address, run, shards, progress.heard) as fleet:
        await _set_up(fleet, outcome, say, ("connect",) if made else tuple(SET_UP))
        await _measure(fleet, options, target, outcome)
        await _drain(fleet, options, target, outcome, say)
        await _check(fleet, plan, options, outcome, say)
        await fleet.all("stop")
    return outcome


async def _set_up(fleet: Fleet, outcome: Outcome, say: Say, names: Sequence[str]) -> None:
    for name in names:
        began_s = time.monotonic()
        count = sum(await fleet.all(name))
        outcome.setup_s[name] = time.monotonic() - began_s
        if count:
            say(f"{count:,} {SET_UP[name]} in {outcome.setup_s[name]:.1f} s")


async def _measure(fleet: Fleet, options: BenchOptions, target: Target, outcome: Outcome) -> None:
    start_ns = time.monotonic_ns() + START_DELAY_NS
    first_ns = start_ns + int(options.warm_up_s * _NS)
    end_ns = first_ns + int(options.duration_s * _NS)
    poll = None
    if target.redis_url and target.mailbox_shards:
        poll = WatermarkPoll(target.redis_url, target.mailbox_shards)
        poll.start()
    meter = asyncio.create_task(_meter(target, first_ns, end_ns, outcome))
    kills = [asyncio.create_task(_kill(target, kill, first_ns, outcome)) for kill in options.kills]
    try:
        for part in await fleet.all("run", start_ns):
            outcome.generator_cpu_s.append(part["cpu_s"])
            outcome.stopped_early |= part["stopped_early"]
        await meter
        for task in kills:
            await task
    finally:
        for task in (meter, *kills):
            task.cancel()
        outcome.watermarks = poll


async def _meter(target: Target, first_ns: int, end_ns: int, outcome: Outcome) -> None:
    """Read the roles once a second from the start to the end of the measured part."""
    if target.state_dir is None:
        return
    usage = Usage()
    await _sleep_until(first_ns)
    usage.read(_roots(target.state_dir))
    outcome.rss_before = dict(usage.rss)
    while time.monotonic_ns() < end_ns:
        await _sleep_until(min(end_ns, time.monotonic_ns() + _NS))
        usage.read(_roots(target.state_dir))
    outcome.role_cpu_s, outcome.rss_after = usage.cpu_s(), dict(usage.rss)


def cpu_used_s(target: Target) -> float:
    """Seconds of CPU that the stack's processes have used since they were started; 0 out of reach."""
    if target.state_dir is None:
        return 0.0
    usage = Usage()
    usage.read(_roots(target.state_dir))
    return usage.total_s()


def _roots(state_dir: Path) -> dict[str, int]:
    status = read_status(state_dir)
    return {role.name: role.pid for role in status.roles if role.pid} if status is not None else {}


async def _sleep_until(at_ns: int) -> None:
    await asyncio.sleep(max(0.0, (at_ns - time.monotonic_ns()) / _NS))


async def _kill(target: Target, kill: Kill, first_ns: int, outcome: Outcome) -> None:
    assert target.state_dir is not None
    await _sleep_until(first_ns + int(kill.at_s * _NS))
    pid = _roots(target.state_dir).get(kill.role)
    if pid is None:
        raise ConfigError(f"--kill {kill.role}: no such process of the stack runs at {kill.at_s:g} s")
    os.kill(pid, signal.SIGKILL)
    outcome.faults.append({"role": kill.role, "at_s": kill.at_s, "signal": "SIGKILL", "pid": pid})


async def _drain(fleet: Fleet, options: BenchOptions, target: Target, outcome: Outcome, say: Say) -> None:
    """Until nothing is open. Patience (`drain_s`, and `STILL_S` without any movement) counts from when all
    roles are ready: what a killed role owes comes after it is back."""
    began_s = patient_s = moved_s = time.monotonic()
    before: Any = None
    while True:
        parts = await fleet.all("settle")
        waiting, delivered, expected = (sum(part[at] for part in parts) for at in range(3))
        now_s = time.monotonic()
        outcome.drain_s = now_s - began_s
        if not waiting and delivered >= expected:
            return
        if (waiting, delivered) != before:
            before, moved_s = (waiting, delivered), now_s
        if not _all_ready(target) and now_s - began_s < READY_S:
            patient_s = moved_s = now_s
        if now_s - patient_s > options.drain_s or now_s - moved_s > STILL_S:
            say(f"drain ends with {waiting:,} sends unanswered, {delivered:,} of {expected:,} delivered")
            return
        await asyncio.sleep(STEP_S)


def _all_ready(target: Target) -> bool:
    status = read_status(target.state_dir) if target.state_dir is not None else None
    return status is None or all(role.state is RoleState.READY for role in status.roles)


async def _check(fleet: Fleet, plan: Plan, options: BenchOptions, outcome: Outcome, say: Say) -> None:
    offline = _offline_sample(plan, options)
    if offline:
        say(f"reading the mailboxes of {len(offline):,} users who were not online")
        await fleet.each("offline", _split(offline, plan.processes))
    outcome.offline_checked = len(offline)
    checked = [*range(plan.connections), *offline]
    accounts = await fleet.all("account")
    verdict = judge(plan, [one["ledger"] for one in accounts], checked)
    for at in range(READ_BACK_ROUNDS):
        if not verdict.missing:
            break
        found = await _read_back(fleet, plan, verdict, offline, say)
        outcome.recovered_by_pull += found
        if at and not found:
            break
        accounts = await fleet.all("account")
        verdict = judge(plan, [one["ledger"] for one in accounts], checked)
        await asyncio.sleep(READ_BACK_WAIT_S)  # a stage that is late may still be writing
    outcome.verdict = verdict
    _take(accounts, outcome)


async def _read_back(fleet: Fleet, plan: Plan, verdict: Verdict, offline: Sequence[int], say: Say) -> int:
    """Read the mailboxes of everybody who lacks something; how many deliveries that found."""
    lacking = sorted({one.user for one in verdict.missing})
    say(f"{verdict.lost:,} deliveries are missing: reading {len(lacking):,} mailboxes")
    online = [user for user in lacking if user < plan.connections]
    found: int = sum(await fleet.each("pull", _split(online, plan.processes)))
    others = set(offline).intersection(lacking)
    found += sum(await fleet.each("offline", _split(sorted(others), plan.processes)))
    return found


def _split(users: Sequence[int], processes: int) -> list[tuple[list[int]]]:
    return [([user for user in users if user % processes == number],) for number in range(processes)]


def _offline_sample(plan: Plan, options: BenchOptions) -> list[int]:
    offline = range(plan.connections, plan.users)
    count = min(options.offline_checked, len(offline))
    return sorted(random.Random(f"offline-{options.seed}").sample(offline, count))


def _take(accounts: Sequence[dict[str, Any]], outcome: Outcome) -> None:
    noted: Counter[str] = Counter()
    for account in accounts:
        merge_series(outcome.ack, account["ack"])
        merge_series(outcome.e2e, account["e2e"])
        outcome.late.merge(account["late"])
        outcome.sent += account["sent"]
        for name in ("acked_at", "delivered_at"):
            counts = getattr(outcome, name)
            for second, count in enumerate(account[name]):
                counts[second] = counts.get(second, 0) + count
        noted.update(account["noted"])
    outcome.noted = dict(noted)
    outcome.late = merged([outcome.late])
    poll = outcome.watermarks
    if poll is None:
        outcome.mailboxed_note = "not measured: the stack's Redis is not known"
        return
    poll.stop()
    outcome.mailboxed = _mailboxed(accounts, poll)


def _mailboxed(accounts: Sequence[dict[str, Any]], poll: WatermarkPoll) -> Histogram:
    """Per sampled message, the time until the last of the shards that it was seen in covered it."""
    last: dict[int, int] = {}
    for account in accounts:
        rows = account["samples"]
        for key, shard, seq, intended_ns in zip(
            rows.keys, rows.shards, rows.seqs, rows.intended, strict=True
        ):
            covered_ns = poll.covered_ns(shard, seq)
            if covered_ns is not None:
                took_us = (covered_ns - intended_ns) // 1_000
                last[key] = max(last.get(key, 0), took_us)
    whole = Histogram()
    for took_us in last.values():
        whole.add(took_us)
    return whole
