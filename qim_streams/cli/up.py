"""``qim up``, ``qim down``, ``qim status``: a whole stack on this machine."""

import os
import signal
import sys
import time
from pathlib import Path

import click

from qim_streams.embedded.roles import RestartPolicy
from qim_streams.embedded.stack import wipe
from qim_streams.embedded.status import read_status
from qim_streams.errors import ConfigError
from qim_streams.settings import Settings, load_settings
from qim_streams.stack import plan

DOWN_TIMEOUT_S = 60.0


def parse_workers(values: tuple[str, ...]) -> dict[str, int]:
    """``("mailbox=2",)`` as a mapping; ConfigError names what is wrong."""
    counts = {}
    for value in values:
        role, _, count = value.partition("=")
        if not count.isdigit():
            raise ConfigError(f"--workers {value!r}: write ROLE=COUNT, as in mailbox=2")
        counts[role] = int(count)
    return counts


def _redis_of_environment(settings: Settings) -> str | None:
    """The Redis that the environment names, itself or by a file; None: an embedded one."""
    named = os.environ.get("QIM_REDIS_URL") or os.environ.get("QIM_REDIS_URL_FILE")
    return settings.redis_url.get_secret_value() if named else None


@click.command()
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path(".qim/up"), show_default=True)
@click.option("--broker", "brokers", help="bootstrap servers of an external Kafka or Redpanda")
@click.option("--redis", "redis_url", help="URL of an external Redis; better given as QIM_REDIS_URL")
@click.option(
    "--embedded-broker", type=click.Choice(["auto", "kafka", "tansu"]), default="auto", show_default=True
)
@click.option(
    "--archive",
    type=click.Choice(["rocksdb", "cassandra"]),
    help="default: QIM_ARCHIVE, else rocksdb; cassandra is the cluster of QIM_CASSANDRA_HOSTS, else started",
)
@click.option(
    "--fsync",
    type=click.Choice(["everysec", "always"]),
    default="everysec",
    show_default=True,
    help="when the embedded Redis syncs its log to disk",
)
@click.option(
    "--workers",
    multiple=True,
    metavar="ROLE=COUNT",
    help="processes of fanout, mailbox, qsession or notification (or archiver, with cassandra); repeatable",
)
@click.option("--without", multiple=True, metavar="ROLE", help="leave archiver or qsession out; repeatable")
@click.option(
    "--restarts",
    type=click.IntRange(0, 10_000),
    default=12,
    show_default=True,
    help="restarts a role may use within a minute before the stack gives up",
)
@click.option(
    "--backoff",
    type=click.FloatRange(0.0, 60.0),
    default=RestartPolicy().backoff_last_s,
    show_default=True,
    metavar="SECONDS",
    help="longest wait before a role that died again and again is started once more",
)
@click.option("--quick", is_flag=True, help="an embedded broker that starts fast and stays slower: for tests")
@click.option("--web", is_flag=True, help="open the workers' web views on loopback")
@click.option("--metrics", is_flag=True, help="open a Prometheus port per role on loopback, and list them")
def up(
    state_dir: Path,
    brokers: str | None,
    redis_url: str | None,
    embedded_broker: str,
    archive: str | None,
    fsync: str,
    workers: tuple[str, ...],
    without: tuple[str, ...],
    restarts: int,
    backoff: float,
    quick: bool,
    web: bool,
    metrics: bool,
) -> None:
    """Start the servers and one process per role; a table shows them; Ctrl-C stops everything.

    Without options everything is embedded. QIM_BROKERS and QIM_REDIS_URL name external servers, too.
    """
    from qim_streams.stack.run import RunOptions, ServerOptions, run_stack

    settings = load_settings() if archive is None else load_settings(archive=archive)
    servers = ServerOptions(
        brokers=brokers or os.environ.get("QIM_BROKERS"),
        redis_url=redis_url or _redis_of_environment(settings),
        broker=embedded_broker,  # type: ignore[arg-type] # click.Choice holds it to the literal
        appendfsync=fsync,  # type: ignore[arg-type]
        quick=quick,
        cassandra=settings.archive == "cassandra" and "QIM_CASSANDRA_HOSTS" not in os.environ,
    )
    options = RunOptions(
        plan.StackOptions(
            state_dir,
            settings.node_id,
            parse_workers(workers),
            web,
            settings.archive,
            frozenset(without),
            metrics,
        ),
        servers,
        RestartPolicy(restarts_max=restarts, backoff_last_s=backoff),
    )
    sys.exit(run_stack(options))


@click.command()
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path(".qim/up"), show_default=True)
@click.option("--wipe", "wipe_state", is_flag=True, help="then delete the stack's state: every message")
def down(state_dir: Path, wipe_state: bool) -> None:
    """Stop the stack of a state directory, if one runs; exit 1 when it does not stop within a minute."""
    status_now = read_status(state_dir)
    if status_now is not None and status_now.alive:
        os.kill(status_now.pid, signal.SIGTERM)
        deadline = time.monotonic() + DOWN_TIMEOUT_S
        while (seen := read_status(state_dir)) is not None and seen.alive:
            if time.monotonic() > deadline:
                raise ConfigError(f"pid {status_now.pid} still runs after {DOWN_TIMEOUT_S:.0f} s: kill it")
            time.sleep(0.1)
        click.echo("stopped")
    else:
        click.echo(f"no stack runs in {state_dir}")
    if wipe_state:
        wipe(state_dir)
        click.echo(f"deleted {state_dir}")


@click.command()
@click.option("--state-dir", type=click.Path(path_type=Path), default=Path(".qim/up"), show_default=True)
def status(state_dir: Path) -> None:
    """Roles, pids, ports and restarts of a stack; exit 1 when none runs."""
    seen = read_status(state_dir)
    if seen is None or not seen.alive:
        raise ConfigError(f"no stack runs in {state_dir}: start one with `qim up --state-dir {state_dir}`")
    click.echo(f"{seen.state} (pid {seen.pid})" + (f": {seen.message}" if seen.message else ""))
    for role in seen.roles:
        ports = " ".join(f"{name}={port}" for name, port in role.ports.items())
        state, pid = role.state.value, role.pid or "-"
        click.echo(f"  {role.name:<12} {state:<9} pid {pid:<8} restarts {role.restarts}  {ports}")
        for reason in role.reasons:
            click.echo(f"    not serving: {reason}")
