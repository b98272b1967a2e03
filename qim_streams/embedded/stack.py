"""The servers of one state directory: what is not given as an external address is started here.

Two ways to use it, both blocking and on the main thread::

    with EmbeddedStack(state_dir) as stack:           # start, use, stop: tests, scripts
        use(stack.brokers, stack.redis_url)

    stack.prepare()                                   # a supervisor runs the servers as roles
    roles = stack.server_roles() + worker_roles(stack.brokers, stack.redis_url)
    try:
        await Supervisor(roles, state_dir).run()
    finally:
        stack.close()

Invariants:

* The state directory belongs to one stack at a time, by a lock that its process's death releases; a second
  one is refused with the first one's pid. Stacks in different directories know nothing of each other.
* `stack.json` (mode 0600: it holds the Redis password) exists exactly while the stack is open, apart from
  a process that was killed; whether it is true is decided by the lock.
* `wipe` never touches a directory that is in use, nor one that is not a state directory.
"""

import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from qim_streams.embedded import files
from qim_streams.embedded.cassandra import EmbeddedCassandra
from qim_streams.embedded.errors import EmbeddedError, JavaMissingError, StateDirLockedError
from qim_streams.embedded.java import find_java
from qim_streams.embedded.kafka import FORMATTED_NAME, KAFKA_JARS, EmbeddedKafka
from qim_streams.embedded.locking import DirectoryLock, lock_holder
from qim_streams.embedded.maven import Progress, cache_root, is_cached, print_progress
from qim_streams.embedded.redis_server import AppendFsync, EmbeddedRedis
from qim_streams.embedded.restarts import FOLDER
from qim_streams.embedded.roles import RoleSpec
from qim_streams.embedded.server import LocalServer
from qim_streams.embedded.status import LOCK_NAME, STATUS_NAME
from qim_streams.embedded.tansu import EmbeddedTansu

BrokerKind = Literal["auto", "kafka", "tansu"]

STACK_NAME = "stack.json"
MARKER_NAME = "made-by-qim"
FORMAT = 1
SERVER_ORDER = 0  # before every worker
_OWN_ENTRIES = frozenset(
    {LOCK_NAME, STATUS_NAME, STACK_NAME, MARKER_NAME, "secrets.json", "partitions.json"}
    | {FOLDER, "redis", "kafka", "tansu", "cassandra", "log", "roles", "archive"}
)
_FOLLOWS_LOG = ("redis", "roles", "archive", "cassandra")


class EmbeddedStack:
    """Broker, Redis and, if asked for, Cassandra of one state directory. See the module for how to use it."""

    def __init__(
        self,
        state_dir: Path,
        *,
        brokers: str | None = None,
        redis_url: str | None = None,
        broker: BrokerKind = "auto",
        cassandra: bool = False,
        kafka_port: int = 0,
        redis_port: int = 0,
        appendfsync: AppendFsync = "everysec",
        quick: bool = False,
        cache: Path | None = None,
        progress: Progress = print_progress,
    ) -> None:
        """Nothing happens before `prepare` or `start`.

        `brokers`, `redis_url`: external servers, None = embedded. `broker`: which embedded one; "auto" is
        Kafka when Java is there, else the in-memory fallback. `cassandra`: start one, too (it needs Java).
        Ports: 0 = any free one, kept while the object lives. `quick`: see `EmbeddedKafka`.
        """
        self.state_dir = state_dir.absolute()
        self._external_brokers, self._external_redis_url = brokers, redis_url
        self._lock = DirectoryLock(self.state_dir / LOCK_NAME)
        self.redis: EmbeddedRedis | None = None
        self.kafka: EmbeddedKafka | EmbeddedTansu | None = None
        self.cassandra: EmbeddedCassandra | None = None
        logs = self.state_dir / "log"
        if cassandra:
            self.cassandra = EmbeddedCassandra(
                self.state_dir / "cassandra",
                quick=quick,
                cache=cache,
                log_path=logs / "cassandra.log",
                progress=progress,
            )
        if redis_url is None:
            self.redis = EmbeddedRedis(
                self.state_dir / "redis",
                port=redis_port,
                appendfsync=appendfsync,
                log_path=logs / "redis.log",
                progress=progress,
            )
        if brokers is None and choose_broker(broker, self.state_dir, cache or cache_root()) == "kafka":
            self.kafka = EmbeddedKafka(
                self.state_dir / "kafka",
                port=kafka_port,
                quick=quick,
                cache=cache,
                log_path=logs / "kafka.log",
                progress=progress,
            )
        elif brokers is None:
            self.kafka = EmbeddedTansu(
                self.state_dir / "tansu",
                port=kafka_port,
                cache=cache,
                log_path=logs / "tansu.log",
                progress=progress,
            )

    @property
    def brokers(self) -> str:
        """Bootstrap servers; known after `prepare` or `start`."""
        if self.kafka is not None:
            return self.kafka.bootstrap
        assert self._external_brokers is not None
        return self._external_brokers

    @property
    def redis_url(self) -> str:
        """Redis URL, with its password: a secret; known after `prepare` or `start`."""
        if self.redis is not None:
            return self.redis.url
        assert self._external_redis_url is not None
        return self._external_redis_url

    @property
    def roles_redis_url(self) -> str:
        """The same for roles, which may do less; a given URL is theirs as it is."""
        return self.redis_url if self.redis is None else self.redis.roles_url

    @property
    def servers(self) -> list[LocalServer]:
        """The embedded servers in start order; empty when everything is external."""
        return [server for server in (self.redis, self.kafka, self.cassandra) if server is not None]

    def prepare(self) -> Self:
        """Lock the directory and make the servers startable: addresses are known, nothing runs.

        StateDirLockedError when another process holds the directory; JavaMissingError, JarDownloadError,
        PortInUseError as they come; after an error nothing is held.
        """
        self._lock.acquire()
        try:
            _claim(self.state_dir)
            if isinstance(self.kafka, EmbeddedTansu):
                _forget_earlier_run(self.state_dir)
            for server in self.servers:
                server.prepare()
            self._publish()
        except BaseException:
            self.close()
            raise
        return self

    def server_roles(self) -> list[RoleSpec]:
        """The prepared servers as roles for a `Supervisor`, before all workers (order 0)."""
        return [_as_role(server) for server in self.servers]

    def start(self) -> Self:
        """`prepare` and start the servers; returns when they answer."""
        self.prepare()
        try:
            for server in self.servers:
                server.start()
            self._publish()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop what `start` started and let go of the directory. Data stay."""
        try:
            for server in reversed(self.servers):
                server.stop()
        finally:
            if self._lock.held:
                (self.state_dir / STACK_NAME).unlink(missing_ok=True)
            self._lock.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _publish(self) -> None:
        document = {
            "format": FORMAT,
            "pid": os.getpid(),
            "started_at_ms": int(time.time() * 1_000),
            "brokers": self.brokers,
            "broker_kind": "external" if self.kafka is None else self.kafka.name,
            "redis_url": self.redis_url,
            "redis_kind": "external" if self.redis is None else self.redis.name,
            "cassandra_port": None if self.cassandra is None else self.cassandra.port,
            "pids": {server.name: server.pid for server in self.servers if server.pid is not None},
        }
        files.write_private_json(self.state_dir / STACK_NAME, document)


def choose_broker(kind: BrokerKind, state_dir: Path, cache: Path) -> Literal["kafka", "tansu"]:
    """The embedded broker for `kind`.

    "auto" is Kafka, or Tansu when Kafka cannot be had (no usable Java, or neither jars nor `mvn`). A
    directory that already has Kafka's log stays with Kafka: its other stores refer to that log.
    """
    if kind != "auto":
        return kind
    if (state_dir / "kafka" / FORMATTED_NAME).exists():
        return "kafka"
    try:
        find_java()
    except JavaMissingError:
        return "tansu"
    can_fetch = is_cached(KAFKA_JARS, cache) or shutil.which("mvn") is not None
    return "kafka" if can_fetch else "tansu"


def read_stack(state_dir: Path) -> dict[str, Any] | None:
    """`stack.json` of an open stack (addresses, password), None when no stack holds the directory."""
    if lock_holder(state_dir / LOCK_NAME) is None:
        return None
    return files.read_json(state_dir / STACK_NAME)


def wipe(state_dir: Path) -> None:
    """Delete everything in a state directory except its lock.

    StateDirLockedError while a stack or a server holds it; EmbeddedError for a directory that holds other
    people's files too. A directory that does not exist is wiped already.
    """
    if not state_dir.exists():
        return
    if not (state_dir / MARKER_NAME).exists():
        raise EmbeddedError(
            f"{state_dir} was not made by qim, or had other files before: remove what you do not need by hand"
        )
    with DirectoryLock(state_dir / LOCK_NAME):
        for owner in state_dir.glob("*/owner.lock"):
            if (pid := lock_holder(owner)) is not None:
                raise StateDirLockedError(f"{owner.parent} is in use by pid {pid}; stop that server", pid)
        for entry in state_dir.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name not in (LOCK_NAME, MARKER_NAME):
                entry.unlink()


def _claim(state_dir: Path) -> None:
    """Mark a directory that holds nothing but our own files; `wipe` deletes only in marked ones."""
    if all(entry.name in _OWN_ENTRIES for entry in state_dir.iterdir()):
        (state_dir / MARKER_NAME).touch(mode=0o600)


def _forget_earlier_run(state_dir: Path) -> None:
    """Drop what refers to a log that no longer exists: the in-memory broker starts empty each time, and
    stores that know its old offsets would refuse to go on, rightly."""
    if not (state_dir / MARKER_NAME).exists():
        return
    for name in _FOLLOWS_LOG:
        shutil.rmtree(state_dir / name, ignore_errors=True)


def _as_role(server: LocalServer) -> RoleSpec:
    command = server.prepare()
    return RoleSpec(
        name=server.name,
        argv=command.argv,
        env=command.env,
        inherit_settings=False,
        ports={setting.partition("_")[2]: port for setting, port in server.ports.items()},
        ready=server.check_ready,
        order=SERVER_ORDER,
        ready_deadline_s=server.start_deadline_s,
        stop_grace_s=server.stop_grace_s,
        cwd=server.data_dir,
        pass_fds=(server.lock_descriptor,),
        exited=server.exited,
    )
