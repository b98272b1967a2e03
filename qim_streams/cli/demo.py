"""``qim demo``: a stack, real clients, real rooms, a verdict."""

import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qim_streams.errors import ConfigError
from qim_streams.stack import plan

if TYPE_CHECKING:
    from qim_streams.demo.shows import Receiver
    from qim_streams.stack.run import Running

TOKEN_TTL_S = 3_600
TRACES = ("room-a.csv", "room-b.csv")


def trace_paths(folder: Path | None) -> list[Path]:
    """The room traces to play; ConfigError names what is missing."""
    folder = folder or Path(__file__).resolve().parents[2] / "tests" / "data"
    paths = [folder / name for name in TRACES]
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"{path} is missing: give --traces a folder with {' and '.join(TRACES)}")
    return paths


@click.command()
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path(".qim/demo"), show_default=True)
@click.option("--traces", type=click.Path(path_type=Path), help="folder with the rooms to play")
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="share of each room to play",
)
@click.option("--stay", is_flag=True, help="keep the stack up afterwards (Ctrl-C stops it)")
def demo(state_dir: Path, traces: Path | None, scale: float, stay: bool) -> None:
    """Start a stack, talk through every level, play two real rooms, check every mailbox, stop.

    Beside conversations: a chat room, presence, and a notification, whose provider and webhook are here.
    Exit code 0 when nothing was lost, duplicated or reordered, 1 otherwise.
    """
    from qim_streams.demo.receiver import DemoReceiver, environment
    from qim_streams.embedded.ports import free_ports
    from qim_streams.stack.run import DEMO_TENANT, RunOptions, ServerOptions, run_stack

    paths = trace_paths(traces)
    began_s = time.monotonic()
    (port,), secret = free_ports(1), secrets.token_urlsafe(48)

    async def play(running: "Running") -> int:
        click.echo(f"stack is up after {time.monotonic() - began_s:.1f} s; gateway {running.gateway_url}")
        async with DemoReceiver(port, secret) as receiver:
            code = await _play(running, paths, scale, receiver)
        click.echo(f"admin API {running.api_url} (key in {running.state_dir / 'client.json'})")
        if stay:
            click.echo("the stack stays up; Ctrl-C stops it")
        return code

    options = RunOptions(plan.StackOptions(state_dir), ServerOptions(quick=True))
    with tempfile.TemporaryDirectory(prefix="qim-demo-") as folder:
        # The roles' settings come from this process's environment: there notifications lead to us.
        os.environ.update(environment(Path(folder), port, secret, DEMO_TENANT))
        code = run_stack(options, play, stay=stay)
    sys.exit(code)


async def _play(running: "Running", paths: list[Path], scale: float, receiver: "Receiver") -> int:
    from qim_streams.demo.levels import TraceProbe, place_lines
    from qim_streams.demo.run import run_demo
    from qim_streams.demo.shows import chat_room, notification, presence
    from qim_streams.gateway.tokens import mint_token
    from qim_streams.roles.tracing import tracing
    from qim_streams.runtime import now_ms
    from qim_streams.stack.run import DEMO_TENANT

    secret, audience = running.settings.secret("jwt_secret"), running.settings.jwt_audience

    def mint(user_id: str) -> str:
        return mint_token(secret, audience, DEMO_TENANT, user_id, TOKEN_TTL_S, int(time.time()))[0]

    async with tracing(running.settings) as deps:
        probe = TraceProbe(deps, DEMO_TENANT, now_ms)
        shows = (chat_room, presence, notification(receiver))
        report = await run_demo(
            running.gateway_url, mint, paths, click.echo, scale=scale, probe=probe, shows=shows
        )
        click.echo("")
        for line in [*place_lines(probe.trace), *report.lines()]:
            click.echo(line)
    return report.exit_code
