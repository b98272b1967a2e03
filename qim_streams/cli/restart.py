"""``qim restart``: one role after the other is ended cleanly and started again, each awaited."""

import time
from collections.abc import Iterator
from pathlib import Path

import click

from qim_streams.embedded import restarts
from qim_streams.embedded.roles import RoleState
from qim_streams.embedded.stack import SERVER_ORDER
from qim_streams.embedded.status import RoleStatus, StackStatus, read_status
from qim_streams.errors import ConfigError

ALL = "all"
LOOK_S = 0.05


@click.command()
@click.argument("roles", nargs=-1, required=True, metavar="ROLE...|all")
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path(".qim/up"), show_default=True)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1.0, 3_600.0),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="for each role, until it and all others are ready",
)
def restart(roles: tuple[str, ...], state_dir: Path, timeout_s: float) -> None:
    """Restart roles of a running stack: drained, ended, started, ready, then the next.

    Names are those of `qim status`; `all` is every role but the embedded servers. The next role waits until
    all roles are ready, so never are two away at once; exit 1 when one does not come back in time.
    """
    for name in _chosen(_running(state_dir), roles):
        before = _role(_running(state_dir), name).pid
        began_s = time.monotonic()
        restarts.ask(state_dir, name)
        for seen in _looks(state_dir, began_s + timeout_s, name):
            now = _role(seen, name)
            if now.pid not in (None, before) and all(map(_serves, seen.roles)):
                break
        click.echo(f"{name}: pid {before} -> {now.pid}, ready after {time.monotonic() - began_s:.1f} s")


def _running(state_dir: Path) -> StackStatus:
    """The stack's status; ConfigError when none runs, or when it is starting or stopping."""
    seen = read_status(state_dir)
    if seen is None or not seen.alive:
        raise ConfigError(f"no stack runs in {state_dir}: start one with `qim up --state-dir {state_dir}`")
    if seen.state != "running":
        raise ConfigError(f"the stack in {state_dir} is {seen.state}: wait until `qim status` says running")
    return seen


def _chosen(seen: StackStatus, asked: tuple[str, ...]) -> list[str]:
    """The names to restart, in the order of their start; ConfigError for one that there is not."""
    known = [role.name for role in seen.roles]
    unknown = sorted(set(asked) - {ALL, *known})
    if unknown:
        raise ConfigError(f"no role {', '.join(unknown)}; there are {', '.join(known)}, and {ALL}")
    wanted = set(asked)
    if ALL in wanted:
        wanted |= {role.name for role in seen.roles if role.order != SERVER_ORDER}
    return [name for name in known if name in wanted]


def _looks(state_dir: Path, deadline_s: float, name: str) -> Iterator[StackStatus]:
    """The stack's status again and again; ConfigError when it ends, or at the deadline."""
    while time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
        yield _running(state_dir)
    late = [
        f"{role.name} is {role.state.value} {'; '.join(role.reasons)}".rstrip()
        for role in _running(state_dir).roles
        if not _serves(role)
    ]
    raise ConfigError(f"{name}: not ready in time ({', '.join(late) or 'not restarted'}); see `qim status`")


def _serves(role: RoleStatus) -> bool:
    return role.state is RoleState.READY and not role.reasons


def _role(seen: StackStatus, name: str) -> RoleStatus:
    return next(role for role in seen.roles if role.name == name)
