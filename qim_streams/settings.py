"""Every setting, with unit, default, bound, description and section: one class, prefix ``QIM_``.

``qim config`` prints it, ``qim config --check`` validates it. Relations between settings are checked
here, at start-up, with a message that names the field and the remedy. Secrets are `SecretStr` and
never printed. Nothing else in the product reads the environment (failpoints excepted).
"""

import json
import os
from pathlib import Path
from typing import Any, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import SettingsConfigDict

from qim_streams import limits
from qim_streams.errors import ConfigError
from qim_streams.kafka_access import KafkaAccess
from qim_streams.settings_notification import NotificationSettings
from qim_streams.settings_security import SecuritySettings
from qim_streams.settings_tracing import TracingSettings

SECRET_BYTES_MIN = 32
SECRET_FILE_BYTES_MAX = 4_096
SECRETS = (
    "internal_secret",
    "jwt_secret",
    "jwt_secret_previous",
    "cursor_secret",
    "cursor_secret_previous",
    "admin_api_key",
)
WITH_PASSWORDS = ("redis_url", "kafka_sasl_password")  # may come from files, too, but are others' to choose
# Read elsewhere: by failpoints, and by the command line's client commands (click's envvar).
OTHER_VARIABLES = frozenset(
    {"QIM_FAILPOINT", "QIM_FAILPOINT_LATCH", "QIM_TENANT", "QIM_TOKEN", "QIM_GATEWAY_URL"}
)


def _setting(default: Any, section: str, description: str, **bounds: Any) -> Any:
    return Field(default=default, description=description, json_schema_extra={"section": section}, **bounds)


class Settings(NotificationSettings, SecuritySettings, TracingSettings):
    """The settings of every role; a role reads the ones of its section."""

    model_config = SettingsConfigDict(env_prefix="QIM_", extra="ignore", frozen=True)

    # -- stack
    state_dir: Path = _setting(Path(".qim"), "stack", "where the embedded servers and workers keep state")
    node_id: str = _setting("node-1", "stack", "stable name of this node; leases and static group membership")
    brokers: str = _setting("127.0.0.1:9092", "stack", "Kafka bootstrap servers, comma separated")
    kafka_requests_in_flight: int = _setting(1, "stack", "of a producer at a broker; 5 if far", ge=1, le=5)
    redis_url: SecretStr = _setting(SecretStr("redis://127.0.0.1:6379/0"), "stack", "Redis of the hot tier")
    redis_url_file: Path | None = _setting(None, "stack", "file with redis_url, password included")
    topic_profile: str = _setting(
        "dev", "stack", "column of topics.yaml: dev or production", pattern="^(dev|production)$"
    )
    outbox_partitions: int = _setting(
        2, "stack", "partitions of qim.outbox.v1; fixed once used", ge=1, le=4096
    )
    mailbox_shards: int = _setting(
        4, "stack", "MailboxShards to begin with; fixed once used, splits come on top", ge=1, le=4096
    )
    mailbox_shards_max: int = _setting(
        0, "stack", "partitions of qim.dispatch.v1: how far shards can be split; 0 = not", ge=0, le=4096
    )
    connection_shards: int = _setting(
        4, "stack", "partitions of qim.push.v1 = ConnectionShards", ge=1, le=4096
    )
    room_partitions: int = _setting(4, "stack", "partitions of qim.room.v1; fixed once used", ge=1, le=4096)
    log_level: str = _setting(
        "INFO", "stack", "DEBUG, INFO, WARNING or ERROR", pattern="^(DEBUG|INFO|WARNING|ERROR)$"
    )
    metrics_host: str = _setting("127.0.0.1", "stack", "address of this process's Prometheus port")
    metrics_port: int = _setting(0, "stack", "Prometheus port of this process; 0 = closed", ge=0, le=65535)

    # -- gateway
    gateway_host: str = _setting("127.0.0.1", "gateway", "address that client sockets bind to")
    gateway_port: int = _setting(8080, "gateway", "port of client sockets; 0 = any free", ge=0, le=65535)
    gateway_public_url: str = _setting(
        "", "gateway", "URL told to clients as preferred_endpoint; empty = none"
    )
    connections_max: int = _setting(20_000, "gateway", "open sockets per gateway", ge=1)
    auth_deadline_s: float = _setting(10.0, "gateway", "seconds from connect to AUTH_OK", gt=0)
    ping_interval_ms: int = _setting(30_000, "gateway", "told to clients as next_ping_interval_ms", ge=100)
    idle_timeout_ms: int = _setting(90_000, "gateway", "silence after which a socket is closed", ge=300)
    outbound_queue_bytes_max: int = _setting(
        1_048_576, "gateway", "per socket; a slower reader loses its live stream", ge=65_536
    )
    inflight_sends_max: int = _setting(256, "gateway", "unanswered SEND_MESSAGE per socket", ge=1)
    send_deadline_ms: int = _setting(10_000, "gateway", "until a send is answered OUTCOME_UNKNOWN", ge=100)
    frame_bytes_max: int = _setting(limits.FRAME_BYTES_MAX, "gateway", "largest client frame, bytes", ge=1024)
    presence_refresh_s: float = _setting(60.0, "gateway", "how often live presence is written again", gt=0)

    multi_login: str = _setting(
        "all",
        "gateway",
        "devices of a user at once: all, platform (one of each) or newest; the admin API sets others",
        pattern="^(all|platform|newest)$",
    )
    room_outbound_frame_rate: float = _setting(
        10.0, "gateway", "ROOM_BATCH frames a second and connection, at most", gt=0, le=100
    )
    rooms_by_users: bool = _setting(True, "gateway", "whether users may create rooms (CREATE_ROOM)")

    # -- rooms
    rooms_host: str = _setting("127.0.0.1", "rooms", "address of the RoomWriter's internal RPC")
    rooms_port: int = _setting(0, "rooms", "port of that RPC; 0 = any free", ge=0, le=65535)
    rooms_advertised_host: str = _setting(
        "", "rooms", "host under which gateways reach that RPC; empty = rooms_host"
    )
    room_msg_rate: float = _setting(20.0, "rooms", "messages a second of one room", gt=0, le=10_000)
    room_log_retention_minutes: int = _setting(
        30, "rooms", "age up to which messages are shown to who joins", ge=1, le=30
    )
    room_body_bytes_max: int = _setting(
        8 * 1024, "rooms", "largest body of a room's message, bytes", ge=1, le=64 * 1024
    )

    # -- writer
    writer_host: str = _setting("127.0.0.1", "writer", "address of the internal RPC")
    writer_port: int = _setting(0, "writer", "port of the internal RPC; 0 = any free", ge=0, le=65535)
    writer_advertised_host: str = _setting(
        "", "writer", "host under which gateways reach the internal RPC; empty = writer_host"
    )
    writer_queue_max: int = _setting(20_000, "writer", "requests waiting in a writer; more are refused", ge=1)
    commit_group_max: int = _setting(512, "writer", "messages committed in one group", ge=1, le=2_000)
    message_body_bytes_max: int = _setting(
        limits.BODY_BYTES_MAX, "writer", "largest message body, bytes", ge=1
    )
    client_dedup_retention_s: int = _setting(
        7 * 86_400, "writer", "how long a client_message_id is remembered", ge=60
    )
    group_members_max: int = _setting(1_000, "writer", "largest group", ge=2, le=100_000)
    large_group_members: int = _setting(500, "writer", "from this size per_sender rate applies", ge=2)
    per_sender_in_conversation_interval_ms: int = _setting(
        3_000, "writer", "1 message per this time and sender in a large group; 0 = off", ge=0
    )
    conversation_rate_per_s: float = _setting(
        2_000, "writer", "messages per second of one conversation; 0 = no bound", ge=0, le=1_000_000
    )
    conversation_burst_ms: int = _setting(
        2_000, "writer", "of that rate, what may come at once", ge=1, le=600_000
    )
    tenant_fanout_quota: int = _setting(
        2_000_000,
        "writer",
        "recipients per second of one tenant, all writers together; 0 = no bound; the admin API sets others",
        ge=0,
        le=1_000_000_000,
    )
    tenant_fanout_burst_s: float = _setting(
        2.0, "writer", "of that quota, what may come at once", ge=0.1, le=600
    )
    edit_window_s: int = _setting(
        900, "writer", "how long a sender may edit a message; 0 = never, -1 = for ever", ge=-1
    )
    recall_window_s: int = _setting(
        120, "writer", "how long a sender may recall a message; 0 = never, -1 = for ever", ge=-1
    )
    recall_window_admin_s: int = _setting(
        -1, "writer", "the same for owners and admins of a group and anybody's message", ge=-1
    )
    produce_timeout_ms: int = _setting(
        120_000, "writer", "until an unacknowledged Outbox append stops the writer", ge=1_000
    )

    # -- ownership
    lease_ttl_ms: int = _setting(15_000, "ownership", "shard_lease_ttl", ge=500)
    lease_renew_ms: int = _setting(3_000, "ownership", "how often leases are renewed", ge=100)

    # -- streams
    stream_session_timeout_ms: int = _setting(10_000, "streams", "consumer group session timeout", ge=1_000)
    stream_batch_max: int = _setting(1_000, "streams", "records in one batch of a stage", ge=1, le=10_000)
    stream_chunk_max: int = _setting(500, "streams", "records in one chunk from the consumer", ge=1, le=5_000)
    stream_static_membership: bool = _setting(
        True, "streams", "give workers a group.instance.id from role and node"
    )
    worker_slot: int = _setting(
        0, "streams", "number of this worker among those of its role on this node", ge=0, le=999
    )
    ready_lag_s: float = _setting(
        60.0, "streams", "a worker further behind its log than this is not ready; 0 = however far", ge=0
    )
    web_enabled: bool = _setting(False, "streams", "open the worker's web view")
    web_host: str = _setting("127.0.0.1", "streams", "address of the worker's web view")
    web_port: int = _setting(6066, "streams", "port of the worker's web view", ge=0, le=65535)
    dispatch_progress_retention_s: int = _setting(
        7 * 86_400, "streams", "how long a dispatch_id is remembered", ge=60
    )
    mailbox_writebatch_max_entries: int = _setting(
        limits.WRITEBATCH_ENTRIES_MAX,
        "streams",
        "entries per store call",
        ge=1,
        le=limits.WRITEBATCH_ENTRIES_MAX,
    )
    mailbox_large_record_entries: int = _setting(
        500, "streams", "recipients in one shard above which a record is written in slices", ge=1, le=2_000
    )
    mailbox_slice_entries: int = _setting(500, "streams", "entries of such a slice", ge=1, le=2_000)
    mailbox_slice_wait_ms: int = _setting(
        50, "streams", "how long a slice gives way to small records at most", ge=0, le=60_000
    )
    lane_stall_failover_s: float = _setting(
        120.0, "streams", "a record that waits longer for W costs its worker the shard; 0 = never", ge=0
    )
    mailbox_entries_max: int = _setting(
        10_000, "streams", "entries a mailbox keeps; older ones are trimmed, their readers rebuild", ge=4_000
    )
    mailbox_retention_s: int = _setting(
        30 * 86_400, "streams", "age at which entries leave a mailbox; 0 = never", ge=0
    )
    session_projection: str = _setting(
        "qsession",
        "streams",
        "who keeps the rows of session lists: qsession, or mailbox (the mailbox workers beside their work)",
        pattern="^(qsession|mailbox)$",
    )
    session_rows_per_dispatch_max: int = _setting(
        64,
        "streams",
        "recipients of a message in one shard that get a row each; above, its activity is the head's",
        ge=1,
        le=2_000,
    )
    bitmap_cache_max: int = _setting(4_096, "streams", "member bitmaps kept per worker", ge=16)
    body_cache_max: int = _setting(20_000, "streams", "recent bodies kept per worker", ge=16)

    # -- webhooks
    webhooks_file: Path | None = _setting(
        None, "webhooks", "YAML file of applications' endpoints; unset = no webhooks"
    )
    webhook: str = _setting("", "webhooks", "the endpoint of that file that this worker tells")

    # -- archive
    archive: str = _setting("rocksdb", "archive", "rocksdb or cassandra", pattern="^(rocksdb|cassandra)$")
    archive_rocksdb_dir: Path | None = _setting(None, "archive", "directory; default <state_dir>/archive")
    archive_lock_wait_s: float = _setting(
        20.0, "archive", "how long a starting archiver waits for the one it replaces", ge=0, le=600
    )
    cassandra_hosts: str = _setting(
        "127.0.0.1", "archive", "hosts of the Cassandra or ScyllaDB cluster, comma separated", min_length=1
    )
    cassandra_port: int = _setting(9042, "archive", "CQL port of every host", ge=1, le=65535)
    cassandra_keyspace: str = _setting(
        "qim", "archive", "keyspace of the archive", pattern="^[a-z][a-z0-9_]{0,47}$"
    )
    cassandra_local_dc: str = _setting(
        "", "archive", "data centre whose hosts are asked; empty = that of the first host that answers"
    )
    cassandra_consistency: str = _setting(
        "LOCAL_QUORUM",
        "archive",
        "of writes: LOCAL_QUORUM, QUORUM or EACH_QUORUM; reads use the one that sees them",
        pattern="^(LOCAL_QUORUM|QUORUM|EACH_QUORUM)$",
    )
    cassandra_user: str = _setting("", "archive", "role to log in as; empty = no login")
    cassandra_password_file: Path | None = _setting(None, "archive", "file that holds the role's password")
    cassandra_tls_ca_file: Path | None = _setting(
        None, "archive", "PEM file of the authorities that hosts are checked against; unset = no TLS"
    )
    cassandra_connect_timeout_ms: int = _setting(5_000, "archive", "to connect to a host", ge=100, le=60_000)
    cassandra_request_timeout_ms: int = _setting(
        5_000, "archive", "for one statement; above the cluster's own time-outs (2,000)", ge=100, le=6_000
    )
    hot_tier_messages_kept: int = _setting(
        200, "archive", "newest archived messages of a conversation that stay in Redis", ge=0, le=100_000
    )
    hot_tier_kept_s: int = _setting(
        7 * 86_400, "archive", "silence after which a conversation's archived messages leave Redis", ge=60
    )

    # -- api
    api_host: str = _setting("127.0.0.1", "api", "address of the HTTP admin API")
    api_port: int = _setting(8081, "api", "port of the HTTP admin API; 0 = any free", ge=0, le=65535)
    console_enabled: bool = _setting(True, "api", "serve the operator's console, below /console/")
    console_workers: str = _setting("", "api", "web views that the console reads, URLs with commas")

    @model_validator(mode="before")
    @classmethod
    def _secrets_of_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        found = dict(values)
        for name in (*SECRETS, *WITH_PASSWORDS):
            path = values.get(f"{name}_file")
            if path is None or path == "":
                continue
            if values.get(name):
                raise ValueError(f"{name}: is set beside {name}_file; unset one of them")
            found[name] = read_secret(name, Path(path))
        return found

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.lease_renew_ms * 3 > self.lease_ttl_ms:
            raise ValueError("lease_renew_ms: must be at most a third of lease_ttl_ms; lower it")
        if self.idle_timeout_ms < 2 * self.ping_interval_ms:
            raise ValueError("idle_timeout_ms: must be at least twice ping_interval_ms; raise it")
        if self.message_body_bytes_max + 4_096 > self.frame_bytes_max:
            raise ValueError("frame_bytes_max: must exceed message_body_bytes_max by 4096; raise it")
        if self.outbound_queue_bytes_max < 2 * self.frame_bytes_max:
            raise ValueError("outbound_queue_bytes_max: must hold two frames (2 x frame_bytes_max); raise it")
        if self.large_group_members > self.group_members_max:
            raise ValueError("large_group_members: is above group_members_max; lower it")
        if self.cassandra_user and self.cassandra_password_file is None:
            raise ValueError("cassandra_user: needs QIM_CASSANDRA_PASSWORD_FILE; set it, or no user")
        for name in SECRETS:
            value = getattr(self, name).get_secret_value()
            if value and len(value) < SECRET_BYTES_MIN:
                raise ValueError(
                    f"{name}: has {len(value)} characters, needs {SECRET_BYTES_MIN}; use a longer one"
                )
        return self

    @property
    def dispatch_partitions(self) -> int:
        """Partitions of the dispatch log: the shards of the beginning, and room for those of splits."""
        return max(self.mailbox_shards, self.mailbox_shards_max)

    def secret(self, name: str) -> bytes:
        """The bytes of a required secret; ConfigError that names the variable when it is not set."""
        value: SecretStr = getattr(self, name)
        text = value.get_secret_value()
        if not text:
            raise ConfigError(
                f"{name} is not set: export QIM_{name.upper()} ({SECRET_BYTES_MIN}+ random characters) "
                f"or QIM_{name.upper()}_FILE"
            )
        return text.encode()

    @property
    def kafka(self) -> KafkaAccess:
        """How the log is reached."""
        return KafkaAccess(
            servers=self.brokers,
            tls=self.kafka_tls,
            ca_file=self.kafka_tls_ca_file,
            cert_file=self.kafka_tls_cert_file,
            key_file=self.kafka_tls_key_file,
            mechanism=self.kafka_sasl_mechanism,
            user=self.kafka_sasl_user,
            password=self.kafka_sasl_password.get_secret_value(),
            requests_in_flight=self.kafka_requests_in_flight,
        )

    @property
    def audit_path(self) -> Path:
        """Where admin actions of this process are noted."""
        return self.audit_file or self.state_dir / "audit.jsonl"

    def archive_dir(self) -> Path:
        """Where the RocksDB archive lives."""
        return self.archive_rocksdb_dir or self.state_dir / "archive"


def read_secret(name: str, path: Path) -> str:
    """The secret of a file, without the white space around it; ValueError that names the setting."""
    try:
        with path.open("rb") as file:
            text = file.read(SECRET_FILE_BYTES_MAX + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}_file: {path}: {type(error).__name__}; give a readable text file") from None
    if len(text) > SECRET_FILE_BYTES_MAX or not text.strip():
        raise ValueError(f"{name}_file: {path}: empty or over {SECRET_FILE_BYTES_MAX} bytes")
    return text.strip()


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment and `overrides`; ConfigError with one line per wrong field."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise ConfigError("; ".join(_explained(error))) from None


def problems(**overrides: Any) -> list[str]:
    """One line per wrong field of the environment and `overrides`; empty when all is well."""
    try:
        Settings(**overrides)
    except ValidationError as error:
        return _explained(error)
    return []


def _explained(error: ValidationError) -> list[str]:
    return [_explain(item) for item in json.loads(error.json(include_url=False, include_input=False))]


def _explain(item: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in item["loc"])
    return f"QIM_{where.upper()}: {item['msg']}" if where else item["msg"].removeprefix("Value error, ")


def unknown_variables() -> list[str]:
    """QIM_* variables of the environment that no setting reads (typing errors, most likely)."""
    known = {f"QIM_{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    return sorted(name for name in os.environ if name.startswith("QIM_") and name not in known)
