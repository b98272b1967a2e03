"""What a run is asked to do: parsed, checked against each other, with errors that name the remedy.

Pure.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from qim_streams.errors import ConfigError
from qim_streams.limits import BODY_BYTES_MAX
from qim_streams.loadgen.message import BODY_BYTES_MIN

MESSAGES_MAX = 20_000_000  # of one run: each costs some 200 bytes of bookkeeping
MEMBERS_MAX = 100_000
WORKLOADS = ("direct", "group", "mixed", "trace", "large")
LARGE_ONLINE_DEFAULT = 0.01


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL for a role of the local stack, `at_s` seconds into the measured part."""

    role: str
    at_s: float


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One run. `users` of whom `connections` are online; `body` is ignored by mixed and trace."""

    workload: str = "direct"
    group_size: int = 0
    trace: Path | None = None
    speed: float = 1.0
    rate: float = 1_000.0
    duration_s: float = 30.0
    warm_up_s: float = 5.0
    connections: int = 200
    users: int = 200
    groups: int = 10
    contacts: int = 20
    processes: int = 2
    body: int = 128
    seed: int = 1
    arrivals: str = "poisson"
    encoding: str = "msgpack"
    drain_s: float = 60.0
    offline_checked: int = 100
    kills: tuple[Kill, ...] = field(default=())

    @property
    def name(self) -> str:
        """The workload as the user writes it."""
        if self.workload == "group":
            return f"group:{self.group_size}"
        return f"trace:{self.trace}" if self.workload == "trace" else self.workload

    def at_rate(self, rate: float, duration_s: float) -> "BenchOptions":
        """The same run at another rate and duration."""
        return replace(self, rate=rate, duration_s=duration_s)


def default_processes(cores: int) -> int:
    """One generator process for every four cores, at most 8.

    Beside a stack on two cores a second process costs a third more CPU per message (36 and 49 µs at
    4,000 messages a second) and is not needed: one takes some 25,000 messages a second.
    """
    return max(1, min(8, cores // 4))


def parse_workload(text: str) -> tuple[str, int, Path | None]:
    """(workload, group size, trace file) of ``direct``, ``group:N``, ``mixed``, ``trace:FILE``, ``large``."""
    name, colon, rest = text.partition(":")
    if name == "group":
        if not rest.isdigit() or not 2 <= int(rest) <= MEMBERS_MAX:
            raise ConfigError(f"--workload {text}: write group:N with N from 2 to {MEMBERS_MAX:,}")
        return name, int(rest), None
    if name == "trace":
        if not rest:
            raise ConfigError("--workload trace: write trace:FILE.csv, e.g. trace:tests/data/room-a.csv")
        return name, 0, Path(rest)
    if name not in WORKLOADS or colon:
        raise ConfigError(f"--workload {text}: is none of direct, group:N, mixed, trace:FILE, large")
    return name, 0, None


def parse_kill(text: str) -> Kill:
    """``mailbox@10`` as a `Kill`."""
    role, at, second = text.rpartition("@")
    try:
        at_s = float(second)
    except ValueError:
        at_s = -1.0
    if not at or not role or not 0 <= at_s < 1e6:
        raise ConfigError(f"--kill {text}: write ROLE@SECOND, e.g. mailbox@10")
    return Kill(role, at_s)


def check(options: BenchOptions) -> BenchOptions:
    """The options, or ConfigError that names the option and the remedy."""
    for name, value, low, high in (
        ("--rate", options.rate, 0.01, 1e6),
        ("--duration", options.duration_s, 1, 86_400),
        ("--warm-up", options.warm_up_s, 0, 3_600),
        ("--connections", options.connections, 2, 100_000),
        ("--users", options.users, 2, 1_000_000),
        ("--groups", options.groups, 1, 100_000),
        ("--contacts", options.contacts, 1, 1_000),
        ("--processes", options.processes, 1, 64),
        ("--body", options.body, BODY_BYTES_MIN, BODY_BYTES_MAX),
        ("--speed", options.speed, 0.001, 1e9),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{name} {value:g}: must be from {low:g} to {high:g}")
    if options.connections > options.users:
        raise ConfigError(
            f"--connections {options.connections}: more than --users {options.users}; raise --users"
        )
    if options.group_size > options.users:
        raise ConfigError(f"--users {options.users}: fewer than the members of {options.name}; raise it")
    if options.processes > options.connections:
        raise ConfigError(f"--processes {options.processes}: more than --connections; lower it")
    messages = options.rate * (options.warm_up_s + options.duration_s)
    if messages > MESSAGES_MAX:
        raise ConfigError(
            f"--rate {options.rate:g} for {options.duration_s:g} s: {messages:,.0f} messages are more than "
            f"{MESSAGES_MAX:,} that one run keeps account of; lower --rate or --duration"
        )
    for kill in options.kills:
        if kill.at_s >= options.duration_s:
            raise ConfigError(f"--kill {kill.role}@{kill.at_s:g}: is after --duration {options.duration_s:g}")
    return options
