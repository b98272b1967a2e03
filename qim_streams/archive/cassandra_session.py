"""One session with a Cassandra or ScyllaDB cluster: connecting, running statements, errors as ours.

Invariants:

* Every option that matters is set here and nowhere else: consistency, time-out, no retry and no second
  try by the driver (`FallthroughRetryPolicy`, no speculation), no timestamps of the client's clock. A
  statement is repeated only by code that knows that this is safe.
* A connection is made at the first call that needs one and again, at most once per `RECONNECT_S`, after it
  failed. Once made, the driver keeps it: a cluster that went away and came back is found again.
* At most `window` statements of a run are in flight. Results cross from the driver's threads to the event
  loop in bunches, one wake-up each.

Why TCP_NODELAY: with Nagle's algorithm batches that are sent one at a time wait about 45 ms each for a
delayed acknowledgement.

What it does not do: know any table.

Spec: §14.8.
"""

import asyncio
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    ProtocolVersion,
    RequestExecutionException,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import ConnectionBusy, ConnectionException
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    NoSpeculativeExecutionPolicy,
    TokenAwarePolicy,
)
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ErrorMessage
from cassandra.query import tuple_factory

from qim_streams.errors import ConfigError, Outcome, QimError, StoreError, StoreUnavailable
from qim_streams.tls import client_context

WINDOW: Final = 256  # statements in flight of one run
RECONNECT_S: Final = 1.0
RECONNECT_MAX_S: Final = 10.0  # the driver's own, with jitter
CONSISTENCIES: Final = ("LOCAL_QUORUM", "QUORUM", "EACH_QUORUM")
_READ_CONSISTENCY: Final = {"EACH_QUORUM": "LOCAL_QUORUM"}  # a read of it does not exist
_TRANSIENT: Final = (
    RequestExecutionException,
    OperationTimedOut,
    NoHostAvailable,
    ConnectionException,
    ConnectionBusy,
    NoConnectionsAvailable,
    UnresolvableContactPoints,
    OSError,
    TimeoutError,
)
_WRITE, _READ = EXEC_PROFILE_DEFAULT, "read"

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class CassandraOptions:
    """Where the cluster is and how it is spoken to. `password` is a secret."""

    hosts: tuple[str, ...]
    port: int
    keyspace: str
    local_dc: str = ""  # empty: that of the first host that answers
    consistency: str = "LOCAL_QUORUM"
    user: str = ""
    password_file: Path | None = None
    tls_ca_file: Path | None = None
    tls_cert_file: Path | None = None  # that the cluster asks for
    tls_key_file: Path | None = None
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 5.0

    @property
    def where(self) -> str:
        """For the texts of errors."""
        return f"cassandra {','.join(self.hosts)}:{self.port}"


def translate(error: BaseException, where: str) -> Exception:
    """Our error for one of the driver's. Time-outs and lost connections leave the outcome unknown."""
    if isinstance(error, QimError):
        return error
    text = f"{where}: {type(error).__name__}: {error}"
    if isinstance(error, NoHostAvailable) and _is_refused_login(error):
        return ConfigError(f"{text}; check QIM_CASSANDRA_USER and QIM_CASSANDRA_PASSWORD_FILE")
    if isinstance(error, AuthenticationFailed | Unauthorized):
        return ConfigError(
            f"{text}; check QIM_CASSANDRA_USER, QIM_CASSANDRA_PASSWORD_FILE and what the role may do"
        )
    if isinstance(error, Unavailable):
        return StoreUnavailable(text, Outcome.NOT_APPLIED)  # too few replicas: nothing was tried
    if is_transient(error):
        return StoreUnavailable(text, Outcome.UNKNOWN)
    if isinstance(error, InvalidRequest):
        return StoreError(f"{text}; was the keyspace made by `qim archive init`?", Outcome.NOT_APPLIED)
    return StoreError(text, Outcome.UNKNOWN)


def is_transient(error: BaseException) -> bool:
    """Whether the same statement may succeed later."""
    if isinstance(error, ErrorMessage):  # what the driver has no class of its own for
        return "overloaded" in str(error).lower() or "bootstrapping" in str(error).lower()
    return isinstance(error, _TRANSIENT)


def _is_refused_login(error: NoHostAvailable) -> bool:
    causes = list(error.errors.values()) if isinstance(error.errors, dict) else list(error.errors or ())
    return bool(causes) and all(isinstance(cause, AuthenticationFailed) for cause in causes)


class CassandraSession:
    """Runs statements. Nothing is sent before the first call."""

    def __init__(self, options: CassandraOptions, *, keyspace: bool = True, window: int = WINDOW) -> None:
        """`keyspace`: work in that of the options; False: in none, as the one who makes it must."""
        self.options = options
        self._keyspace = options.keyspace if keyspace else None
        self._window = window
        self._connecting = asyncio.Lock()
        self._cluster: Cluster | None = None
        self._session: Session | None = None
        self._failed: tuple[float, Exception] | None = None
        self._closed = False

    async def connect(self) -> Session:
        """The driver's session. StoreUnavailable when no host answers, ConfigError when it refuses us."""
        self._require_open()
        if self._session is not None:
            return self._session
        async with self._connecting:
            if self._session is None:
                self._require_open()
                await self._open()
            return self._session

    async def prepare(self, texts: Sequence[str]) -> list[Any]:
        """Prepared statements, marked as safe to repeat. Their errors as those of `run`."""
        session = await self.connect()
        try:
            prepared = [await asyncio.to_thread(session.prepare, text) for text in texts]
        except Exception as error:
            raise translate(error, self.options.where) from error
        for one in prepared:
            one.is_idempotent = True
        return prepared

    async def execute(
        self, text: str, values: Sequence[object] = (), *, read: bool = False, timeout_s: float | None = None
    ) -> Rows:
        """Run one text with %s placeholders, off the hot path; `timeout_s` None: that of the options."""
        session = await self.connect()
        profile = _READ if read else _WRITE
        limit_s = self.options.request_timeout_s if timeout_s is None else timeout_s
        try:
            found = await asyncio.to_thread(
                session.execute, text, tuple(values) or None, execution_profile=profile, timeout=limit_s
            )
        except Exception as error:
            raise translate(error, self.options.where) from error
        return list(found)

    async def run(self, statements: Sequence[Any], *, read: bool = False) -> "list[Rows | Exception]":
        """Run bound statements, `window` at a time; rows or the driver's exception of each, in order."""
        session = await self.connect()
        run = _Run(session, statements, _READ if read else _WRITE, self._window)
        return await run.finish()

    async def read(self, statements: Sequence[Any]) -> list[Rows]:
        """The rows of each statement; the first error is raised as ours."""
        rows: list[Rows] = []
        for result in await self.run(statements, read=True):
            if isinstance(result, Exception):
                raise translate(result, self.options.where) from result
            rows.append(result)
        return rows

    async def close(self) -> None:
        """Disconnect; calls after this raise StoreError. Closing twice is harmless."""
        self._closed = True
        async with self._connecting:
            cluster, self._cluster, self._session = self._cluster, None, None
            if cluster is not None:
                await asyncio.to_thread(cluster.shutdown)

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.options.where}: closed", Outcome.NOT_APPLIED)

    async def _open(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._failed is not None and now_s - self._failed[0] < RECONNECT_S:
            raise self._failed[1]
        cluster: Any = None
        try:
            cluster = await asyncio.to_thread(make_cluster, self.options)
            session = await asyncio.to_thread(cluster.connect)
            if self._keyspace is not None:  # by itself: else a missing one looks like a missing host
                await asyncio.to_thread(session.set_keyspace, self._keyspace)
        except BaseException as error:
            if cluster is not None:
                await asyncio.to_thread(cluster.shutdown)
            if not isinstance(error, Exception):
                raise
            ours = self._missing_keyspace(error) or translate(error, self.options.where)
            self._failed = (asyncio.get_running_loop().time(), ours)
            raise ours from error
        session.use_client_timestamp = False  # every write that may be repeated names its own
        session.default_fetch_size = None  # answers are bounded by their LIMIT
        self._cluster, self._session, self._failed = cluster, session, None

    def _missing_keyspace(self, error: Exception) -> Exception | None:
        if isinstance(error, InvalidRequest) and "does not exist" in str(error):
            return ConfigError(
                f"{self.options.where} has no keyspace {self.options.keyspace}: run `qim archive init`, or "
                "set QIM_CASSANDRA_KEYSPACE"
            )
        return None


def make_cluster(options: CassandraOptions) -> Cluster:
    """The driver's cluster object with every option that matters. Reads the files it is told of."""
    # While a host is away the driver writes a traceback at each of its attempts; our callers say it once.
    logging.getLogger("cassandra").setLevel(logging.ERROR)
    balancing = TokenAwarePolicy(DCAwareRoundRobinPolicy(local_dc=options.local_dc))
    write = options.consistency

    def profile(consistency: str) -> ExecutionProfile:
        return ExecutionProfile(
            load_balancing_policy=balancing,
            retry_policy=FallthroughRetryPolicy(),
            speculative_execution_policy=NoSpeculativeExecutionPolicy(),
            consistency_level=ConsistencyLevel.name_to_value[consistency],
            request_timeout=options.request_timeout_s,
            row_factory=tuple_factory,
        )

    return Cluster(
        contact_points=list(options.hosts),
        port=options.port,
        protocol_version=ProtocolVersion.V4,  # what Cassandra and ScyllaDB both speak
        execution_profiles={_WRITE: profile(write), _READ: profile(_READ_CONSISTENCY.get(write, write))},
        auth_provider=_login(options),
        ssl_context=_tls(options),
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        reconnection_policy=ExponentialReconnectionPolicy(RECONNECT_S, RECONNECT_MAX_S),
        connect_timeout=options.connect_timeout_s,
        control_connection_timeout=options.connect_timeout_s,
        idle_heartbeat_interval=10,
        idle_heartbeat_timeout=10,
        schema_metadata_enabled=False,
        token_metadata_enabled=True,
        monitor_reporting_enabled=False,
    )


def _login(options: CassandraOptions) -> PlainTextAuthProvider | None:
    if not options.user:
        return None
    if options.password_file is None:
        raise ConfigError("cassandra_user is set without a password: set QIM_CASSANDRA_PASSWORD_FILE")
    try:
        password = options.password_file.read_text().strip()
    except OSError as error:
        raise ConfigError(f"QIM_CASSANDRA_PASSWORD_FILE: {error}") from error
    return PlainTextAuthProvider(options.user, password)


def _tls(options: CassandraOptions) -> ssl.SSLContext | None:
    if options.tls_ca_file is None:
        return None
    return client_context(
        "QIM_CASSANDRA_TLS_CA_FILE", options.tls_ca_file, options.tls_cert_file, options.tls_key_file
    )


class _Run:
    """Statements in a bounded window. Sent from the event loop, answered from the driver's threads."""

    def __init__(self, session: Session, statements: Sequence[Any], profile: Any, window: int) -> None:
        self._session, self._statements, self._profile = session, statements, profile
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._results: list[Rows | Exception] = [[]] * len(statements)
        self._answered: deque[tuple[int, Rows | Exception]] = deque()
        self._lock = threading.Lock()
        self._told = False
        self._next = self._inflight = 0
        self._done: asyncio.Future[None] = self._loop.create_future()

    async def finish(self) -> "list[Rows | Exception]":
        """All results, in the order of the statements."""
        self._send()
        await self._done
        return self._results

    def _send(self) -> None:
        while self._next < len(self._statements) and self._inflight < self._window:
            index, self._next = self._next, self._next + 1
            self._inflight += 1
            try:
                self._session.execute_async(
                    self._statements[index], execution_profile=self._profile
                ).add_callbacks(self._answer, self._answer, callback_args=(index,), errback_args=(index,))
            except Exception as error:  # noqa: BLE001 - the driver raises here what it else hands over
                self._answer(error, index)
        if not self._inflight and not self._done.done():
            self._done.set_result(None)

    def _answer(self, result: Any, index: int) -> None:
        """Called on any thread."""
        with self._lock:
            self._answered.append((index, result if isinstance(result, Exception) else list(result or ())))
            if self._told:
                return
            self._told = True
        try:
            self._loop.call_soon_threadsafe(self._collect)
        except RuntimeError:
            return  # the loop is closed: nobody waits for the answer any more

    def _collect(self) -> None:
        with self._lock:
            self._told = False
            answered, self._answered = self._answered, deque()
        for index, result in answered:
            self._results[index] = result
        self._inflight -= len(answered)
        self._send()
