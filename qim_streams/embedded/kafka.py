"""One Apache Kafka node (KRaft, broker and controller in one JVM) on the loopback address.

Jars come from Maven Central once (`maven`); the log directory is formatted once and kept over restarts,
also when the ports change. Everything is durable as on one real broker: `acks=all` with one replica.

Measured on 2 cores: ready in 1.1 s with a class-data archive (2.5 s without), 1.3-1.8 s of CPU, 310 MB
resident. The default leaves the optimizing compiler on: under 3,000 records/s it needs 73 µs of CPU per
record after 15 s, against 102 µs without; `quick=True` turns it off for short tests (half the CPU in the
first seconds).

Settings of note: topics are created only on purpose; a consumer group starts to work without the usual
3 s wait; session timeouts from 1 s are accepted; internal topics have 4 partitions; record timestamps are
the producers' and may run 2 h ahead (clocks that jump are part of the fault model).

What it does not do: replicate, authenticate, encrypt, or listen anywhere but on 127.0.0.1.
"""

import base64
import uuid
from pathlib import Path
from typing import ClassVar

from qim_streams.embedded import files
from qim_streams.embedded.errors import EmbeddedError, ServerStartError
from qim_streams.embedded.java import ClassArchive, JavaRuntime, find_java
from qim_streams.embedded.maven import JarFolder, JarSet, Progress, cache_root, ensure_jars, print_progress
from qim_streams.embedded.ports import LOOPBACK, accepts
from qim_streams.embedded.process import child_env, start_child, tail
from qim_streams.embedded.server import CLEAN_EXITS, LocalServer, ServerCommand

KAFKA_VERSION = "4.3.1"
KAFKA_JARS = JarSet(
    name="kafka",
    version=KAFKA_VERSION,
    coordinates=(
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
        # Warnings and errors on standard error, so that the log says why a broker did not start.
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    checksums=f"kafka-{KAFKA_VERSION}.sha256",
)
FORMATTED_NAME = "formatted.json"
FORMAT_TIMEOUT_S = 60.0
MESSAGE_BYTES_MAX = 2 * 1024 * 1024
HEAP_MB_DEFAULT = 512
PORT_SETTING = "kafka_port"
CONTROLLER_SETTING = "kafka_controller_port"
_BASE_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",  # the supervisor restarts it; a broker without memory helps nobody
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
)
_QUICK_OPTION = "-XX:TieredStopAtLevel=1"


class EmbeddedKafka(LocalServer):
    """A Kafka of this machine: `start`, `stop`, `kill`, `restart`, `pause`, `resume` (see `server`)."""

    name: ClassVar[str] = "kafka"

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        controller_port: int = 0,
        heap_mb: int = HEAP_MB_DEFAULT,
        quick: bool = False,
        cache: Path | None = None,
        log_path: Path | None = None,
        progress: Progress = print_progress,
    ) -> None:
        """Nothing happens before `start`. `quick`: cheaper start, dearer sustained load."""
        super().__init__(
            data_dir,
            {PORT_SETTING: port, CONTROLLER_SETTING: controller_port},
            log_path=log_path,
            progress=progress,
        )
        self._heap_mb, self._quick = heap_mb, quick
        self._cache = cache or cache_root()
        self._java: JavaRuntime | None = None
        self._jars: JarFolder | None = None
        self._archive: ClassArchive | None = None

    @property
    def port(self) -> int:
        """Client port; known after `prepare` or `start`."""
        return self._chosen[PORT_SETTING]

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`."""
        return f"{LOOPBACK}:{self.port}"

    def is_ready(self) -> bool:
        """True when the broker answers a metadata request that names itself as a broker."""
        return accepts(self.port) and answers_metadata(self.bootstrap)

    def exited(self, code: int) -> None:
        """Keep the class-data archive of a clean run, drop that of any other."""
        super().exited(code)
        if self._archive is not None:
            if code in CLEAN_EXITS:
                self._archive.adopt()
            else:
                self._archive.discard()

    def _render(self) -> ServerCommand:
        java = self._java = self._java or find_java()
        jars = self._jars = self._jars or ensure_jars(KAFKA_JARS, cache=self._cache, progress=self._progress)
        config = self.data_dir / "server.properties"
        text = render_properties(self.data_dir / "log", self.port, self._chosen[CONTROLLER_SETTING])
        files.write_private(config, text.encode())
        archive = ClassArchive(self._cache / "class-data", self.name, java, jars.classpath)
        self._format_once([java.program, *archive.reading_options()], jars.classpath, config)
        self._archive = archive
        options = [f"-Xmx{self._heap_mb}m", *_BASE_OPTIONS, *archive.options()]
        if self._quick:
            options.append(_QUICK_OPTION)
        argv = (java.program, *options, "-cp", jars.classpath, "kafka.Kafka", str(config))
        return ServerCommand(argv, child_env({}, settings=False))

    def _format_once(self, java: list[str], classpath: str, config: Path) -> None:
        marker = self.data_dir / FORMATTED_NAME
        known = files.read_json(marker)
        if known is not None:
            check_data_version(str(known.get("kafka_version")), self.data_dir)
            return
        log_path = self.data_dir / "format.log"
        child = start_child(
            "kafka format",
            [
                *java, "-Xmx128m", *_BASE_OPTIONS, _QUICK_OPTION, "-cp", classpath,
                "kafka.tools.StorageTool", "format", "--cluster-id", new_cluster_id(),
                # A format that was cut short is completed, not refused.
                "--ignore-formatted", "--config", str(config),
            ],
            env=child_env({}, settings=False),
            log_path=log_path,
        )  # fmt: skip
        code = child.wait(FORMAT_TIMEOUT_S)
        if code != 0:
            child.kill()
            said = " | ".join(tail(log_path, lines_max=3)) or "nothing"
            raise ServerStartError(f"kafka cannot format {self.data_dir} (code {code}): it says {said}")
        files.write_private_json(marker, {"kafka_version": KAFKA_VERSION})


def render_properties(log_dir: Path, port: int, controller_port: int) -> str:
    """The broker's `server.properties`."""
    values: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "log.dirs": _escape(str(log_dir)),
        "auto.create.topics.enable": "false",
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "log.message.timestamp.type": "CreateTime",
        "log.message.timestamp.after.max.ms": 7_200_000,
        # A killed broker may register again only when its old session has ended: 9 s by default.
        "broker.heartbeat.interval.ms": 500,
        "broker.session.timeout.ms": 3_000,
        # Sizes for one small machine. The cleaner's map must hold the keys of one whole segment.
        "log.segment.bytes": 134_217_728,
        "log.cleaner.dedupe.buffer.size": 67_108_864,
        "log.segment.delete.delay.ms": 5_000,
        "num.network.threads": 1,
        "num.io.threads": 2,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def check_data_version(written_by: str, data_dir: Path) -> None:
    """EmbeddedError when a newer Kafka wrote the data: an older one must not open it."""
    if _numbers(written_by) > _numbers(KAFKA_VERSION):
        raise EmbeddedError(
            f"{data_dir} was written by Kafka {written_by}, newer than {KAFKA_VERSION}: use the newer "
            "qim-streams, or wipe the directory (`qim down --wipe`)"
        )


def answers_metadata(bootstrap: str, timeout_s: float = 1.0) -> bool:
    """True when a Kafka broker at `bootstrap` answers a metadata request and knows a live broker."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    # log_level 0: connection refusals are expected here and the caller decides what they mean.
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 1_000})
    try:
        return bool(client.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def new_cluster_id() -> str:
    """A cluster id as Kafka makes them: 16 random bytes in URL-safe base64, no '-' in front."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):  # the format tool would take it for an option
            return text


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _escape(value: str) -> str:
    """A value of a Java properties file (backslashes escape there)."""
    return value.replace("\\", "\\\\")
