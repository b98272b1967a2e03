"""One Apache Cassandra node on the loopback address: the real archive for tests and for trying it out.

Jars come from Maven Central once (`maven`). The node keeps its data and its ports over restarts; keyspaces
are made by whoever uses it (`qim archive init`).

Measured on 2 cores: CQL answers after 4 to 6 s, 5 s of CPU, 400 MB resident. Sizes are for one small
machine: one token, small memtables and caches, no compiler that optimizes for the long run (`quick`).
A write is acknowledged when the commit log is on the disk (`batch`). With the usual `periodic` even a kill of
the process loses the last 100 ms, because the log is replayed up to its last marker only; a cluster answers
that with its replicas, and this node has none.

What it does not do: replicate, authenticate, encrypt, serve JMX, or listen anywhere but on 127.0.0.1.
"""

import socket
from pathlib import Path
from typing import ClassVar

import yaml

from qim_streams.embedded import files
from qim_streams.embedded.java import JavaRuntime, find_java
from qim_streams.embedded.maven import JarFolder, JarSet, Progress, cache_root, ensure_jars, print_progress
from qim_streams.embedded.ports import LOOPBACK
from qim_streams.embedded.process import child_env
from qim_streams.embedded.server import LocalServer, ServerCommand

CASSANDRA_VERSION = "5.0.9"
CASSANDRA_JARS = JarSet(
    name="cassandra",
    version=CASSANDRA_VERSION,
    coordinates=(f"org.apache.cassandra:cassandra-all:{CASSANDRA_VERSION}",),
    checksums=f"cassandra-{CASSANDRA_VERSION}.sha256",
    otherwise="name a Cassandra of your own (QIM_CASSANDRA_HOSTS), or take the RocksDB archive",
)
AGENT_JAR = "jamm-0.4.0.jar"  # measures the heap that objects take; memtables need it
HEAP_MB_DEFAULT = 512
HEAP_START_MB = 128  # as root the node locks the heap that it starts with in memory
PORT_SETTING = "cassandra_port"
STORAGE_SETTING = "cassandra_storage_port"
DATACENTER = "datacenter1"  # what SimpleSnitch says
READY_TIMEOUT_S = 1.0
# A CQL frame: version 4 request, no flags, stream 0, opcode OPTIONS, no body. Any node answers SUPPORTED.
_OPTIONS_FRAME = bytes((4, 0, 0, 0, 5, 0, 0, 0, 0))
_SUPPORTED_HEAD = bytes((0x84, 0, 0, 0, 6))
_OPENS = ("java.base/sun.nio.ch", "java.base/jdk.internal.ref", "java.base/java.io")
_BASE_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dcassandra-foreground=yes",
    # A single node has nobody to wait for.
    "-Dcassandra.ring_delay_ms=1",
    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
    "-Dcassandra.superuser_setup_delay_ms=0",
)
_QUICK_OPTION = "-XX:TieredStopAtLevel=1"
_LOGBACK = """<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{ISO8601} %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""


class EmbeddedCassandra(LocalServer):
    """A Cassandra of this machine: `start`, `stop`, `kill`, `restart`, `pause`, `resume` (see `server`)."""

    name: ClassVar[str] = "cassandra"
    start_deadline_s: ClassVar[float] = 120.0
    stop_grace_s: ClassVar[float] = 30.0

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        storage_port: int = 0,
        heap_mb: int = HEAP_MB_DEFAULT,
        quick: bool = True,
        cache: Path | None = None,
        log_path: Path | None = None,
        progress: Progress = print_progress,
    ) -> None:
        """Nothing happens before `start`. `quick`: cheaper start, dearer sustained load."""
        super().__init__(
            data_dir,
            {PORT_SETTING: port, STORAGE_SETTING: storage_port},
            log_path=log_path,
            progress=progress,
        )
        self._heap_mb, self._quick = heap_mb, quick
        self._cache = cache or cache_root()
        self._java: JavaRuntime | None = None
        self._jars: JarFolder | None = None

    @property
    def port(self) -> int:
        """CQL port; known after `prepare` or `start`."""
        return self._chosen[PORT_SETTING]

    def is_ready(self) -> bool:
        """True when the node answers a CQL OPTIONS request."""
        return answers_cql(self.port)

    def _render(self) -> ServerCommand:
        java = self._java = self._java or find_java()
        jars = self._jars = self._jars or ensure_jars(
            CASSANDRA_JARS, cache=self._cache, progress=self._progress
        )
        config = self.data_dir / "cassandra.yaml"
        settings = render_settings(self.data_dir, self.port, self._chosen[STORAGE_SETTING])
        files.write_private(config, yaml.safe_dump(settings).encode())
        logback = self.data_dir / "logback.xml"
        files.write_private(logback, _LOGBACK.encode())
        options = [
            f"-Xms{min(HEAP_START_MB, self._heap_mb)}m",
            f"-Xmx{self._heap_mb}m",
            *_BASE_OPTIONS,
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
            f"-javaagent:{jars.path / AGENT_JAR}",
            f"-Dcassandra.config={config.as_uri()}",
            f"-Dcassandra.storagedir={self.data_dir}",
            f"-Dlogback.configurationFile={logback}",
        ]
        if self._quick:
            options.append(_QUICK_OPTION)
        argv = (
            java.program, *options, "-cp", jars.classpath, "org.apache.cassandra.service.CassandraDaemon",
        )  # fmt: skip
        return ServerCommand(argv, child_env({}, settings=False))


def render_settings(data_dir: Path, port: int, storage_port: int) -> dict[str, object]:
    """The node's `cassandra.yaml`."""
    return {
        "cluster_name": "qim-embedded",
        "num_tokens": 1,
        "initial_token": "0",
        "auto_bootstrap": False,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "seed_provider": [
            {
                "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                "parameters": [{"seeds": f"{LOOPBACK}:{storage_port}"}],
            }
        ],
        "listen_address": LOOPBACK,
        "rpc_address": LOOPBACK,
        "storage_port": storage_port,
        "native_transport_port": port,
        "data_file_directories": [str(data_dir / "data")],
        "commitlog_directory": str(data_dir / "commitlog"),
        "saved_caches_directory": str(data_dir / "saved_caches"),
        "hints_directory": str(data_dir / "hints"),
        "cdc_raw_directory": str(data_dir / "cdc_raw"),
        "commitlog_sync": "batch",
        "commitlog_segment_size": "8MiB",
        "commitlog_total_space": "128MiB",
        "memtable_heap_space": "64MiB",
        "memtable_offheap_space": "64MiB",
        "memtable_flush_writers": 1,
        "concurrent_reads": 8,
        "concurrent_writes": 8,
        "concurrent_compactors": 1,
        "file_cache_size": "32MiB",
        "networking_cache_size": "16MiB",
        "key_cache_size": "8MiB",
        "counter_cache_size": "0MiB",
        "row_cache_size": "0MiB",
        "auto_snapshot": False,
        "incremental_backups": False,
        "hinted_handoff_enabled": False,
        "disk_optimization_strategy": "ssd",
        "dynamic_snitch": False,
    }


def answers_cql(port: int, timeout_s: float = READY_TIMEOUT_S) -> bool:
    """True when a node at the loopback `port` answers a CQL OPTIONS request."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(_OPTIONS_FRAME)
            answer = connection.recv(len(_SUPPORTED_HEAD), socket.MSG_WAITALL)
    except OSError:
        return False
    return answer == _SUPPORTED_HEAD
