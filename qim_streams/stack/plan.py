"""Which processes a local stack runs, with which command, environment and ports. Pure.

Every role gets the whole configuration through ``QIM_*`` variables and a state directory of its own;
variables of the caller's environment pass through, so any setting can be tried on a local stack.

Spec: §1 (the roles).
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qim_streams.errors import ConfigError

STREAM_ROLES = {
    "fanout": "agents.fanout_coordinator",
    "mailbox": "agents.mailbox_node",
    "archiver": "agents.history_archiver",
    "qsession": "agents.qsession",
    "notification": "agents.notification",
    "webhook": "agents.webhooks",
}
SERVER_ROLES = ("writer", "rooms", "gateway", "api")
START_ORDER = (
    "writer",
    "rooms",
    "fanout",
    "mailbox",
    "archiver",
    "qsession",
    "notification",
    "gateway",
    "api",
)
SCALABLE = frozenset({"fanout", "mailbox", "qsession", "notification"})
# Nothing waits for them; what they make is missing or dearer.
OPTIONAL = frozenset({"rooms", "archiver", "qsession", "notification"})
WEBHOOK_PREFIX = "webhook-"
READY_FILE = "ready"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the servers of the stack are. `cassandra_port`: of an embedded node, 0 for none."""

    brokers: str
    redis_url: str
    cassandra_port: int = 0


@dataclass(frozen=True, slots=True)
class RolePlan:
    """One process. `port`: where it listens, `metrics_port`: where it shows its metrics (0: nowhere),
    `state_dir`: its own directory."""

    name: str
    role: str
    argv: list[str]
    env: dict[str, str]
    port: int
    state_dir: Path
    metrics_port: int = 0


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What a caller may choose. `workers` says how many processes a scalable role gets.

    `archive`: rocksdb or cassandra; empty: what the environment says. `without`: optional roles to leave out.
    `webhooks`: names of the endpoints that are told, a process each. `sizes`: partition counts by setting,
    over what the environment says; without one, the settings hold.
    """

    state_dir: Path
    node_id: str = "node-1"
    workers: Mapping[str, int] = field(default_factory=dict)
    web: bool = False
    archive: str = ""
    without: frozenset[str] = frozenset()
    metrics: bool = False
    webhooks: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


def role_names(options: StackOptions) -> list[tuple[str, str, int]]:
    """(process name, role, slot) of every process, in start order; ConfigError for a wrong count."""
    # The RocksDB archive has one writer.
    scalable = SCALABLE | {"archiver"} if options.archive == "cassandra" else SCALABLE
    for role, count in options.workers.items():
        if role not in scalable or not 1 <= count <= 64:
            raise ConfigError(
                f"--workers {role}={count}: only {', '.join(sorted(scalable))} take 1 to 64 workers"
            )
    unknown = options.without - OPTIONAL
    if unknown or options.without & options.workers.keys():
        raise ConfigError(
            f"--without {', '.join(sorted(options.without))}: only {', '.join(sorted(OPTIONAL))} may be left "
            "out, and not beside --workers of the same role"
        )
    named = [
        (role if slot == 0 else f"{role}-{slot}", role, slot)
        for role in START_ORDER
        if role not in options.without
        for slot in range(options.workers.get(role, 1))
    ]
    return named + [(f"{WEBHOOK_PREFIX}{name}", "webhook", 0) for name in options.webhooks]


def plan_roles(
    options: StackOptions,
    addresses: Addresses,
    secrets: Mapping[str, str],
    ports: Mapping[str, int],
    environ: Mapping[str, str],
    metrics_ports: Mapping[str, int] | None = None,
) -> list[RolePlan]:
    """The processes in start order. `ports` has one free port per process name (see `role_names`),
    `metrics_ports` another one, None: the caller's environment decides."""
    # Read already: `secrets` and `addresses` have what is in them.
    files = {f"QIM_{name.upper()}_FILE" for name in (*secrets, "redis_url")}
    passed = {name: value for name, value in environ.items() if name.startswith("QIM_") and name not in files}
    shared = passed | {f"QIM_{name.upper()}": value for name, value in secrets.items()}
    shared |= {
        "QIM_BROKERS": addresses.brokers,
        "QIM_REDIS_URL": addresses.redis_url,
        "QIM_NODE_ID": options.node_id,
        "QIM_ARCHIVE_ROCKSDB_DIR": environ.get("QIM_ARCHIVE_ROCKSDB_DIR", str(options.state_dir / "archive")),
    }
    if passed.get("QIM_WEBHOOKS_FILE"):
        shared["QIM_WEBHOOKS_FILE"] = str(Path(passed["QIM_WEBHOOKS_FILE"]).resolve())
    shared |= {f"QIM_{name.upper()}": str(count) for name, count in options.sizes.items()}
    if options.archive:
        shared["QIM_ARCHIVE"] = options.archive
    if addresses.cassandra_port:
        shared |= {
            "QIM_CASSANDRA_HOSTS": "127.0.0.1",
            "QIM_CASSANDRA_PORT": str(addresses.cassandra_port),
        }
    if options.web:
        views = [
            f"http://127.0.0.1:{ports.get(name, 0)}"
            for name, role, _ in role_names(options)
            if role in STREAM_ROLES
        ]
        shared["QIM_CONSOLE_WORKERS"] = ",".join(views)
    plans = []
    for name, role, slot in role_names(options):
        state_dir = options.state_dir / "roles" / name
        env = shared | {"QIM_STATE_DIR": str(state_dir), "QIM_WORKER_SLOT": str(slot)}
        if role == "webhook":
            env["QIM_WEBHOOK"] = name.removeprefix(WEBHOOK_PREFIX)
        port = (metrics_ports or {}).get(name, 0)
        if port:
            env["QIM_METRICS_PORT"] = str(port)
        made = _plan(name, role, env, ports.get(name, 0), state_dir, options.web)
        plans.append(replace(made, metrics_port=port))
    return plans


def _plan(name: str, role: str, env: dict[str, str], port: int, state_dir: Path, web: bool) -> RolePlan:
    if role in STREAM_ROLES:
        env |= {"QIM_WEB_ENABLED": str(web).lower(), "QIM_WEB_PORT": str(port)}
        argv = [
            sys.executable,
            "-m",
            "faust",
            "--loop",
            "uvloop",
            "-A",
            STREAM_ROLES[role],
            "worker",
            "--loglevel",
            "info",
        ]
        return RolePlan(name, role, argv, env, port if web else 0, state_dir)
    env |= {f"QIM_{role.upper()}_PORT": str(port)}
    return RolePlan(name, role, [sys.executable, "-m", "qim_streams.cli", role], env, port, state_dir)
