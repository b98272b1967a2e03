"""What a worker is: role, sources, timeouts and bounds, checked before anything starts.

Every value that decides about loss, latency or memory is written here and passed to Faust explicitly;
Faust's defaults are not relied upon. Times are seconds unless the name says otherwise.

Spec: §5, §11.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from qim_streams.certificates import internal_files
from qim_streams.errors import ConfigError
from qim_streams.kafka_access import Brokers
from qim_streams.settings import Settings
from qim_streams.streaming.topics import ResolvedTopic, TopicSet
from qim_streams.tls import ServerFiles

HEALTH_FILE = "health.json"  # beside the ready file: written every second, for a supervisor
GROUP_PREFIX = "qim-"


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A topic the worker reads.

    `compacted` sources have honest holes, so a gap needs no proof there. `on_lost_range` says what
    happens when retention removed records below the first one kept and above our position: `exit`
    (an operator decides) or `skip` (logged and counted; for caches and hints only).
    """

    topic: str
    partitions: int
    compacted: bool = False
    on_lost_range: Literal["exit", "skip"] = "exit"


@dataclass(frozen=True, slots=True)
class AppSpec:
    """One worker of one role. `datadir` is absolute and belongs to this worker alone."""

    role: str
    brokers: Brokers
    sources: tuple[SourceSpec, ...]
    datadir: Path
    instance_id: str | None = None
    # what must exist before the worker joins its group; empty: nothing is checked
    topics: Mapping[str, ResolvedTopic] = field(default_factory=dict)

    session_timeout_s: float = 10.0
    heartbeat_interval_s: float = 2.0
    rebalance_timeout_s: float = 30.0
    request_timeout_s: float = 90.0
    max_poll_interval_s: float = 300.0
    commit_interval_s: float = 0.5

    fetch_wait_ms: int = 50
    fetch_min_bytes: int = 1
    partition_fetch_bytes_max: int = 1024 * 1024

    chunk_records_max: int = 500
    batch_records_max: int = 1_000
    lane_records_max: int = 4_096
    checkpoint_s: float = 0.5  # longest time between a batch and the durable position after it
    checkpoint_records_max: int = 4_000

    drain_timeout_s: float = 12.0
    retry_total_s: float = 120.0
    retry_delay_max_s: float = 1.0
    start_timeout_s: float = 120.0

    stall_timeout_s: float = 60.0
    uncommitted_timeout_s: float = 60.0
    recovery_stall_timeout_s: float = 300.0
    loop_stall_timeout_s: float = 60.0
    ready_lag_s: float = 0.0  # not ready while a source is further behind; 0: however far

    log_in_flight_records_max: int = 100_000
    log_message_timeout_ms: int = 120_000

    # written (with the pid) once the worker serves: for a supervisor that waits for it
    ready_file: Path | None = None
    web_enabled: bool = False
    web_bind: str = "127.0.0.1"
    web_port: int = 6066
    web_tls: ServerFiles | None = None
    tls_reload_s: float = 10.0
    metrics_bind: str = "127.0.0.1"
    metrics_port: int = 0  # 0: closed

    def __post_init__(self) -> None:
        """Check relations; ConfigError names the field and the remedy."""
        problems = list(_problems(self))
        if problems:
            raise ConfigError(f"worker {self.role or '?'}: " + "; ".join(problems))

    @property
    def group_id(self) -> str:
        """The consumer group and Faust application id; changelogs are named after it."""
        return GROUP_PREFIX + self.role

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        role: str,
        sources: Sequence[str],
        topics: TopicSet,
        *,
        lossy_sources: Sequence[str] = (),
    ) -> "AppSpec":
        """The spec of `role` reading `sources`, as settings and ``topics.yaml`` say.

        Checked before start: every topic that names the role as producer or consumer.
        `lossy_sources` are the sources whose retention may pass us (see `SourceSpec`).
        """
        resolved = topics.resolve_for(settings)
        for name in sources:
            if name not in resolved:
                raise ConfigError(f"worker {role}: source {name!r} is not declared in topics.yaml")
        mine = {
            name: resolved[name]
            for name, topic in topics.topics.items()
            if name in sources or role == topic.producer or role in topic.consumers
        }
        slot = settings.worker_slot
        return cls(
            role=role,
            brokers=settings.kafka,
            sources=tuple(
                SourceSpec(
                    name,
                    resolved[name].partitions,
                    compacted=resolved[name].cleanup == "compact",
                    on_lost_range="skip" if name in lossy_sources else "exit",
                )
                for name in sources
            ),
            datadir=settings.state_dir.resolve() / "workers" / f"{role}-{slot}",
            instance_id=f"{role}-{settings.node_id}-{slot}" if settings.stream_static_membership else None,
            topics=mine,
            session_timeout_s=settings.stream_session_timeout_ms / 1000,
            heartbeat_interval_s=settings.stream_session_timeout_ms / 5000,
            chunk_records_max=settings.stream_chunk_max,
            batch_records_max=settings.stream_batch_max,
            ready_lag_s=settings.ready_lag_s,
            ready_file=settings.state_dir.resolve() / "ready",
            web_enabled=settings.web_enabled,
            web_bind=settings.web_host,
            web_port=settings.web_port,
            tls_reload_s=settings.tls_reload_s,
            web_tls=internal_files(settings, must_show=True),
            metrics_bind=settings.metrics_host,
            metrics_port=settings.metrics_port,
        )


def _problems(spec: AppSpec) -> list[str]:
    names = [source.topic for source in spec.sources]
    checks = [
        (bool(spec.role), "role: is empty"),
        (bool(spec.sources), "sources: give at least one topic"),
        (len(set(names)) == len(names), "sources: a topic is named twice"),
        (all(s.partitions >= 1 for s in spec.sources), "sources: partitions must be at least 1"),
        (spec.datadir.is_absolute(), f"datadir: {spec.datadir} must be an absolute path"),
        (
            spec.heartbeat_interval_s * 3 <= spec.session_timeout_s,
            "heartbeat_interval_s: must be at most a third of session_timeout_s; lower it",
        ),
        (
            spec.session_timeout_s <= spec.request_timeout_s,
            "session_timeout_s: must not exceed request_timeout_s; lower it",
        ),
        (
            spec.drain_timeout_s + spec.heartbeat_interval_s < spec.rebalance_timeout_s,
            "drain_timeout_s: must leave a heartbeat before rebalance_timeout_s; lower it",
        ),
        (spec.chunk_records_max >= 1, "chunk_records_max: must be at least 1"),
        (
            spec.lane_records_max >= spec.batch_records_max >= 1,
            "lane_records_max: must hold a batch (batch_records_max); raise it",
        ),
        (
            1 <= spec.checkpoint_records_max <= 10_000,
            "checkpoint_records_max: must be 1 to 10000, what a page of progress may hold",
        ),
        (
            0 <= spec.checkpoint_s <= spec.drain_timeout_s,
            "checkpoint_s: must not exceed drain_timeout_s; lower it",
        ),
        (spec.fetch_wait_ms >= 1, "fetch_wait_ms: must be at least 1"),
        (
            spec.stall_timeout_s > spec.session_timeout_s,
            "stall_timeout_s: must exceed session_timeout_s; raise it",
        ),
    ]
    return [text for ok, text in checks if not ok]
