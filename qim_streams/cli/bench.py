"""``qim bench``: load a stack, measure it, judge it.

Exit codes: 0 clean, 3 not clean, 2 the run could not be done.
"""

import asyncio
import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qim_streams.errors import ConfigError, QimError

if TYPE_CHECKING:
    from qim_streams.demo.traces import Trace
    from qim_streams.loadgen.options import BenchOptions
    from qim_streams.loadgen.outcome import Outcome
    from qim_streams.loadgen.run import Target

EXIT_CLEAN, EXIT_COULD_NOT, EXIT_NOT_CLEAN = 0, 2, 3
ACK_P99_MS, E2E_P99_MS = 150.0, 300.0
# A broker that has just started compiles itself beside the load for a while: at 1,000 messages a second
# end to end P99 is 157 ms after 8 s of warm-up and 53 after 40.
WARM_UP_S, WARM_UP_FRESH_S = 5.0, 30.0


@click.command()
@click.option(
    "--workload", default="direct", show_default=True, help="direct, group:N, mixed, trace:FILE or large"
)
@click.option("--rate", type=float, default=1_000.0, show_default=True, help="messages per second")
@click.option("--duration", type=float, default=30.0, show_default=True, help="seconds that are measured")
@click.option(
    "--warm-up",
    type=float,
    help=f"seconds before them  [default: {WARM_UP_S:g}, {WARM_UP_FRESH_S:g} on a stack that it starts]",
)
@click.option("--connections", type=int, help="devices that are online  [default: 200]")
@click.option("--users", type=int, help="users; those without a connection are offline members")
@click.option("--members", type=int, default=100_000, show_default=True, help="members of the group of large")
@click.option("--online", type=float, help="share of the users that is online, instead of --connections")
@click.option("--groups", type=int, default=10, show_default=True, help="how many groups group:N makes")
@click.option("--contacts", type=int, default=20, show_default=True, help="direct chats of a user")
@click.option("--processes", type=int, help="generator processes  [default: one per four cores]")
@click.option("--body", type=int, default=128, show_default=True, help="bytes of a message")
@click.option("--arrivals", type=click.Choice(["poisson", "even"]), default="poisson", show_default=True)
@click.option("--speed", type=float, default=1.0, show_default=True, help="how much faster to play a trace")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--encoding", type=click.Choice(["msgpack", "json"]), default="msgpack", show_default=True)
@click.option("--drain", type=float, default=60.0, show_default=True, help="seconds to wait for the rest")
@click.option("--offline-checked", type=int, default=100, show_default=True, help="offline mailboxes to read")
@click.option(
    "--kill", "kills", multiple=True, metavar="ROLE@S", help="SIGKILL a role S seconds in; repeatable"
)
@click.option("--find-max", is_flag=True, help="search the highest --rate that holds both latency bounds")
@click.option("--ack-p99-ms", type=float, default=ACK_P99_MS, show_default=True, help="bound of --find-max")
@click.option("--e2e-p99-ms", type=float, default=E2E_P99_MS, show_default=True, help="bound of --find-max")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the report here")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="draw latency over time (PNG)")
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path(".qim/bench"), show_default=True)
@click.option("--workers", multiple=True, metavar="ROLE=COUNT", help="of a stack that is started; repeatable")
@click.option(
    "--without", multiple=True, metavar="ROLE", help="leave qsession out of a stack that is started"
)
@click.option("--quick", is_flag=True, help="start a broker that is up sooner and slower: for trying out")
@click.option("--quiet", is_flag=True, help="no line per second")
def bench(**given: Any) -> None:
    """Load a stack with real WebSockets, open loop, and check every delivery.

    Uses the stack that runs in --state-dir, else starts one there and stops it afterwards. Latency counts
    from the intended send time. Exit code 0: nothing was lost, duplicated visibly or reordered and every
    outcome is known; 3: something was; 2: the run could not be done.
    """
    try:
        sys.exit(_bench(given))
    except QimError as error:
        click.echo(f"qim bench: {error}", err=True)
        sys.exit(EXIT_COULD_NOT)


def _bench(given: dict[str, Any]) -> int:
    from qim_streams.embedded.status import read_status

    state_dir: Path = given["state_dir"]
    status = read_status(state_dir)
    runs = status is not None and status.alive
    options, trace = _options(given, fresh=not runs)
    for name in ("json", "plot"):
        path: Path | None = given[f"{name}_file"]
        if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise ConfigError(f"--{name} {path}: {path.parent} is no directory that can be written to")
    if runs:
        return asyncio.run(_on_running(options, trace, given, state_dir))
    return _on_own(options, trace, given, state_dir)


def _options(given: dict[str, Any], *, fresh: bool = False) -> "tuple[BenchOptions, Trace | None]":
    """The checked options; ConfigError names the option. `fresh`: for a stack that has just started."""
    from qim_streams.demo.traces import SENDS, read_trace
    from qim_streams.loadgen.options import (
        LARGE_ONLINE_DEFAULT,
        BenchOptions,
        check,
        default_processes,
        parse_kill,
        parse_workload,
    )

    workload, group_size, path = parse_workload(given["workload"])
    trace = None
    users, connections, online = given["users"], given["connections"], given["online"]
    if path is not None:
        trace = read_trace(path)
        users = 1 + max(row.user for row in trace.rows)
        connections = connections or users
        if not trace.counts().keys() & SENDS:
            raise ConfigError(f"--workload {given['workload']}: the trace has no message")
    elif workload == "large":
        users = users or given["members"]
        online = online or (None if connections else LARGE_ONLINE_DEFAULT)
    if online is not None:
        if not 0 < online <= 1:
            raise ConfigError(f"--online {online:g}: must be above 0 and at most 1")
        connections = max(2, int((users or connections or 200) * online))
    connections = connections or max(200, min(group_size, 2_000))
    users = users or max(connections, group_size)
    processes = given["processes"]
    if processes is None:
        processes = default_processes(os.cpu_count() or 1)
    warm_up_s = given["warm_up"]
    if warm_up_s is None:  # that of a trace is silence
        warm_up_s = WARM_UP_FRESH_S if fresh and trace is None else WARM_UP_S
    options = BenchOptions(
        workload=workload,
        group_size=group_size,
        trace=path,
        speed=given["speed"],
        rate=given["rate"],
        duration_s=given["duration"],
        warm_up_s=warm_up_s,
        connections=connections,
        users=users,
        groups=given["groups"],
        contacts=given["contacts"],
        processes=processes,
        body=given["body"],
        seed=given["seed"],
        arrivals=given["arrivals"],
        encoding=given["encoding"],
        drain_s=given["drain"],
        offline_checked=given["offline_checked"],
        kills=tuple(parse_kill(text) for text in given["kills"]),
    )
    return check(options), trace


def _on_own(options: "BenchOptions", trace: "Trace | None", given: dict[str, Any], state_dir: Path) -> int:
    """Start a stack, run, stop it."""
    from qim_streams.cli.up import parse_workers
    from qim_streams.stack import plan
    from qim_streams.stack.run import Running, RunOptions, ServerOptions, run_stack

    largest = options.users if options.workload in ("large", "trace") else max(options.group_size, 100)
    if largest > 1_000:
        os.environ.setdefault("QIM_GROUP_MEMBERS_MAX", str(largest))
    codes: list[int] = []

    async def work(running: Running) -> int:
        click.echo(f"stack is up; gateway {running.gateway_url}")
        codes.append(await _on_running(options, trace, given, running.state_dir))
        return codes[0]

    click.echo(f"no stack runs in {state_dir}: starting one")
    without = frozenset(given["without"])
    stack = plan.StackOptions(state_dir, workers=parse_workers(given["workers"]), without=without)
    ended = run_stack(RunOptions(stack, ServerOptions(quick=given["quick"])), work)
    if not codes:
        raise ConfigError(f"the stack did not start (exit code {ended}); see {state_dir / 'log'}")
    return codes[0]


async def _on_running(
    options: "BenchOptions", trace: "Trace | None", given: dict[str, Any], state_dir: Path
) -> int:
    target = _target(state_dir)
    say = _say_nothing if given["quiet"] else click.echo
    if given["find_max"]:
        return await _find_max(options, trace, given, target)
    from qim_streams.loadgen.run import run_bench

    return _report(await run_bench(options, target, trace, say), given, target, {})


def _say_nothing(_: str) -> None:
    """Takes progress that nobody wants to see."""


def _target(state_dir: Path) -> "Target":
    from qim_streams.client.discovery import CLIENT_FILE, discover
    from qim_streams.loadgen.run import Target
    from qim_streams.loadgen.surroundings import stack_settings

    address = discover(state_dir)
    try:
        redis_url = json.loads((state_dir / CLIENT_FILE).read_text()).get("redis_url", "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{state_dir / CLIENT_FILE}: cannot be read ({error})") from None
    return Target(address, state_dir.resolve(), redis_url, stack_settings(state_dir)["mailbox_shards"])


async def _find_max(
    options: "BenchOptions", trace: "Trace | None", given: dict[str, Any], target: "Target"
) -> int:
    """Search; the report is the one of the highest rate that held, with every step."""
    from qim_streams.loadgen.options import MESSAGES_MAX, check
    from qim_streams.loadgen.resting import until_idle
    from qim_streams.loadgen.run import cpu_used_s, draw_tag, run_bench
    from qim_streams.loadgen.search import Search

    rate_max = MESSAGES_MAX / (options.warm_up_s + options.duration_s)
    search, best, tag = Search(options.rate, rate_max=rate_max), None, draw_tag()
    steps: list[dict[str, Any]] = []
    while (rate := search.next_rate()) is not None:
        # Only the first step may find a stack that has just started.
        warm_up_s = WARM_UP_S if steps and given["warm_up"] is None else options.warm_up_s
        step = check(replace(options, rate=rate, warm_up_s=warm_up_s))
        if steps and not await until_idle(partial(cpu_used_s, target)):
            click.echo("the stack still works on what the last run left: that is part of the next one")
        outcome = await run_bench(step, target, trace, _say_nothing, tag=tag, made=bool(steps))
        ack_ms, e2e_ms = outcome.ack_ms["p99"], outcome.e2e_ms["p99"]
        within = ack_ms <= given["ack_p99_ms"] and e2e_ms <= given["e2e_p99_ms"]
        held = outcome.clean and within and not outcome.verdict.refused
        search.report(rate, held)
        steps.append({"rate": rate, "held": held, "ack_p99_ms": ack_ms, "e2e_p99_ms": e2e_ms,
                      "achieved_per_s": outcome.acked / options.duration_s, "clean": outcome.clean,
                      "refused": outcome.verdict.refused})  # fmt: skip
        click.echo(
            f"{rate:>10,.0f} msg/s: ack P99 {ack_ms:,.0f} ms, e2e P99 {e2e_ms:,.0f} ms, "
            f"{'clean' if outcome.clean else 'NOT CLEAN'}, refused {outcome.verdict.refused:,}: "
            f"{'holds' if held else 'does not hold'}"
        )
        if best is None or (held and rate >= search.held):
            best = outcome
    assert best is not None
    click.echo(f"highest rate that holds: {search.held:,.0f} msg/s")
    code = _report(best, given, target, {"find_max": {"held_per_s": search.held, "steps": steps}})
    return code if search.held else EXIT_NOT_CLEAN


def _report(outcome: "Outcome", given: dict[str, Any], target: "Target", extra: dict[str, Any]) -> int:
    from qim_streams.loadgen.outcome import document, lines
    from qim_streams.loadgen.surroundings import surroundings

    for line in lines(outcome):
        click.echo(line)
    if given["json_file"] is not None:
        text = json.dumps({**document(outcome, surroundings(target.state_dir)), **extra}, indent=1)
        given["json_file"].write_text(text + "\n")
        click.echo(f"report: {given['json_file']}")
    if given["plot_file"] is not None:
        from qim_streams.loadgen.plot import draw

        click.echo(draw(outcome, given["plot_file"]))
    return EXIT_CLEAN if outcome.clean else EXIT_NOT_CLEAN
