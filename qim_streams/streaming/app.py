"""The one way to make a Faust application here: every setting that matters written out.

`build_app(spec)` gives an application that locks its data directory, checks the topics, starts a
`LogProducer`, consumes chunks (`consumer`) and drains before it stops. A role then declares its tables
(`acked_table`) and, per source, its lanes and agent::

    app = build_app(spec)
    lanes = app.add_source("qim.outbox.v1", SourceRole(start_position=…, handle=…))

    @app.agent(lanes_topic(app, "qim.outbox.v1"), concurrency=1)
    async def coordinator(stream):
        await lanes.drain(stream)

Never used here, because each loses records or time (see the decision record): take, group_by, through,
sinks, exactly_once, producer_threaded, concurrency above 1, standby replicas, the leader topic.

Spec: §11, §14.1.
"""

import asyncio
import json
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import faust
from faust import streams as faust_streams
from faust.app.base import BootStrategy
from faust.sensors.monitor import Monitor
from faust.transport.drivers import aiokafka as driver
from mode.supervisors import CrashingSupervisor

from qim_streams.errors import ConfigError, LogAppendError
from qim_streams.exposition import serve_metrics
from qim_streams.kafka_access import KafkaAccess, access_of
from qim_streams.readiness import Readiness, StoreWatch, document
from qim_streams.server_header import name_servers
from qim_streams.streaming.assignor import AvoidingAssignor
from qim_streams.streaming.consumer import StreamConsumer
from qim_streams.streaming.datadir import DataDirLock
from qim_streams.streaming.doubt import EXIT_CONFIG, die
from qim_streams.streaming.lanes import PartitionLanes
from qim_streams.streaming.producer import LogProducer, ProducerSpec
from qim_streams.streaming.quiet import quiet_drivers
from qim_streams.streaming.recovery import PromptTableManager
from qim_streams.streaming.source import SourceRole
from qim_streams.streaming.spec import HEALTH_FILE, AppSpec
from qim_streams.streaming.table import AckedTable
from qim_streams.streaming.topics import ensure_topics_or_exit
from qim_streams.streaming.watchdog import LoopWatch
from qim_streams.streaming.worker import PromptWorker
from qim_streams.tls import CertificateWatch

log = logging.getLogger(__name__)

_STREAM_BUFFER_CHUNKS: Final = 16_384
_FAUST_PRODUCER_BATCH_BYTES: Final = 512 * 1024
_FAUST_PRODUCER_TIMEOUT_S: Final = 60.0
_LOOP_BEAT_S: Final = 1.0


class StreamTransport(driver.Transport):
    """Faust's Kafka transport with our consumer."""

    Consumer = StreamConsumer


class FailFastMonitor(Monitor):
    """A record that Faust's own producer could not send is lost silently; here it ends the process."""

    def on_send_error(self, producer: Any, exc: BaseException, state: Any) -> None:
        """End the process."""
        die("Faust's producer failed to send a record", exc)


class ExplicitBoot(BootStrategy):
    """Web only where the spec says so: ``faust worker`` switches it on by default."""

    def _should_enable_web(self) -> bool:
        return bool(self.app.stream_spec.web_enabled)


class StreamApp(faust.App):
    """A Faust application built from an `AppSpec`. Use `build_app`."""

    BootStrategy = ExplicitBoot

    def __init__(self, spec: AppSpec) -> None:
        self.stream_spec = spec
        self.stream_sources = {source.topic: source for source in spec.sources}
        self.stream_lanes: dict[str, PartitionLanes] = {}
        self.log_producer = LogProducer(
            ProducerSpec(
                brokers=spec.brokers,
                client_id=spec.group_id,
                in_flight_records_max=spec.log_in_flight_records_max,
                message_timeout_ms=spec.log_message_timeout_ms,
            ),
            on_fatal=lambda reason: die(f"the log producer failed for good: {reason}"),
        )
        self._datadir_lock = DataDirLock(spec.datadir, spec.role)
        self._loop_watch = LoopWatch(spec.loop_stall_timeout_s)
        self.readiness = Readiness(self._reasons)
        self._watches: list[StoreWatch] = []
        self.avoided: dict[int, int] = {}  # partition -> until when the group shall not give it to us
        self._resources: list[tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]] = []
        self._certificates = CertificateWatch(spec.tls_reload_s)
        web_tls = None if spec.web_tls is None else self._certificates.context(spec.web_tls)
        name_servers()
        super().__init__(spec.group_id, **_options(spec, web_tls))

    def _new_transport(self) -> StreamTransport:
        return StreamTransport(self.conf.broker_consumer, self)

    def add_source(self, topic: str, role: SourceRole) -> PartitionLanes:
        """The lanes of a declared source; ConfigError for an unknown or repeated one."""
        source = self.stream_sources.get(topic)
        if source is None:
            raise ConfigError(f"worker {self.stream_spec.role}: {topic} is not among its sources")
        if topic in self.stream_lanes:
            raise ConfigError(f"worker {self.stream_spec.role}: {topic} has lanes already")
        lanes = self.stream_lanes[topic] = PartitionLanes(self.stream_spec, source, role)
        return lanes

    def source_topic(self, topic: str) -> Any:
        """The Faust topic of a source: raw bytes, decoded by the role (a decode error would be acked)."""
        return self.topic(topic, key_serializer="raw", value_serializer="raw", acks=True)

    def acked_table(self, name: str, partitions: int, help_text: str = "") -> AckedTable:
        """A changelog table with `partitions`, equal to those of the source it follows."""
        table: AckedTable = self.Table(
            name, partitions=partitions, key_type=bytes, value_type=bytes, help=help_text
        )
        return table

    def add_resource(
        self, opening: Callable[[], Awaitable[object]], closing: Callable[[], Awaitable[object]]
    ) -> None:
        """Have `opening` awaited before the worker joins its group, `closing` after everything has stopped.

        A ConfigError of `opening` ends the process with 1, anything else with 70. Closed in reverse order.
        """
        self._resources.append((opening, closing))

    def watch_store(self, name: str, ask: Callable[[], Awaitable[object]]) -> None:
        """Say that this worker is not ready while the store that `ask` asks does not answer."""
        watch = StoreWatch(name, ask)
        self._watches.append(watch)
        self.readiness.add(watch.reasons)

    def _reasons(self) -> list[str]:
        if not self.serving:
            return [self._not_serving()]
        reasons: list[str] = self.consumer.watch.reasons()
        return reasons

    def _not_serving(self) -> str:
        if self.should_stop:
            return "the worker is stopping"
        if not self.tables.recovery.completed.is_set():
            return "tables are being read back from their changelogs"
        if self.rebalancing or self.consumer.given is None:
            return "the consumer group has not said yet which partitions are its"
        return "not every partition has found its start"

    @property
    def serving(self) -> bool:
        """Ready: in the group, recovered, and every owned partition has started.

        Also a worker that the group gave no partition, because it has more workers than partitions: it
        stands by, and whoever waits for it (a rolling restart) would wait for ever.
        """
        return (
            not self.should_stop
            and self.tables.recovery.completed.is_set()
            and not self.rebalancing
            and self.consumer.ready
        )

    # -- life cycle

    async def on_first_start(self) -> None:
        """Refuse to run with a foreign data directory or other topics than declared."""
        spec = self.stream_spec
        missing = [topic for topic in self.stream_sources if topic not in self.stream_lanes]
        if missing:
            die(f"no role was given for the sources {missing}", code=EXIT_CONFIG)
        try:
            self._datadir_lock.acquire()
        except ConfigError as error:
            die(str(error), code=EXIT_CONFIG)
        if spec.topics:
            await asyncio.to_thread(ensure_topics_or_exit, spec.brokers, spec.topics)
        await super().on_first_start()

    async def on_start(self) -> None:
        """Connect the log producer before anything can write."""
        await super().on_start()
        try:
            await self.log_producer.start()
        except LogAppendError as error:
            die(str(error), code=EXIT_CONFIG)
        await self._open_resources()
        self._loop_watch.start()
        for watch in self._watches:
            self.add_future(watch.run())
        self.add_future(self._beat())
        self.add_future(self._certificates.run())

    async def _open_resources(self) -> None:
        try:
            serve_metrics(self.stream_spec.metrics_bind, self.stream_spec.metrics_port)
        except ConfigError as error:
            die(str(error), code=EXIT_CONFIG)
        for opening, _ in self._resources:
            try:
                await opening()
            except ConfigError as error:
                die(str(error), code=EXIT_CONFIG)
            except Exception as error:  # noqa: BLE001 - whatever it is, the worker must not join its group
                die("a resource of the worker cannot be opened", error)

    async def _beat(self) -> None:
        told = self.stream_spec.ready_file is None
        stood_by = False
        while not self.should_stop:
            self._loop_watch.beat()
            serving = self.serving
            if not told and serving:
                told = self._tell_ready()
            stands_by = serving and not self.consumer.given
            if stands_by and not stood_by:
                log.info("the group has no partition for this worker: it stands by")
            stood_by = stands_by
            self._tell_health()
            await asyncio.sleep(_LOOP_BEAT_S)

    def _tell_ready(self) -> bool:
        path = self.stream_spec.ready_file
        assert path is not None
        path.write_text(str(os.getpid()))
        return True

    def _tell_health(self) -> None:
        """For a supervisor that asks again and again; a full disk must not end a worker that serves."""
        path = self.stream_spec.ready_file
        if path is None:
            return
        said = document(self.readiness.reasons()) | {"pid": os.getpid(), "at_ms": time.time_ns() // 1_000_000}
        fresh = path.with_name(f"{HEALTH_FILE}.new")
        try:
            fresh.write_text(json.dumps(said))
            fresh.replace(path.with_name(HEALTH_FILE))
        except OSError as error:
            log.warning("health is not told: %s", error)

    async def on_stop(self) -> None:
        """Drain lanes and commit while tables and producer still run, then stop as Faust does."""
        self._loop_watch.stop()
        if self._consumer is not None:
            await self._consumer.quiesce("stop")
        await super().on_stop()

    async def on_shutdown(self) -> None:
        """Close the producer and give the data directory up, after everything else has stopped."""
        await super().on_shutdown()
        for _, closing in reversed(self._resources):
            await closing()
        await self.log_producer.close()
        self._datadir_lock.release()


def build_app(spec: AppSpec) -> StreamApp:
    """The application of `spec`. Create it at import, without a running event loop."""
    if faust_streams._CStreamIterator is None:
        # The pure Python iterator acknowledges messages of an older generation that it skips.
        raise ConfigError(
            "Faust runs without its compiled stream iterator; install the wheel of this platform"
        )
    quiet_drivers()
    return StreamApp(spec)


def credentials(access: KafkaAccess) -> Any:
    """Faust's credentials for this access; None for a log that is spoken to in the clear."""
    if access.mechanism:
        return faust.SASLCredentials(
            username=access.user,
            password=access.password,
            mechanism=access.mechanism,
            ssl_context=access.context() if access.tls else None,
        )
    return faust.SSLCredentials(context=access.context()) if access.tls else None


def _options(spec: AppSpec, web_tls: ssl.SSLContext | None) -> dict[str, Any]:
    return {
        "env_prefix": f"QIM_FAUST_{spec.role.upper().replace('-', '_')}_",
        "broker": [f"kafka://{broker.strip()}" for broker in str(spec.brokers).split(",")],
        "broker_credentials": credentials(access_of(spec.brokers)),
        "datadir": str(spec.datadir),
        "store": "rocksdb://",
        "Table": AckedTable,
        "TableManager": PromptTableManager,
        "Monitor": FailFastMonitor,
        "PartitionAssignor": AvoidingAssignor,
        "Worker": PromptWorker,
        "agent_supervisor": CrashingSupervisor,
        "autodiscover": False,
        "cython_optimizations": True,
        "key_serializer": "raw",
        "value_serializer": "raw",
        "processing_guarantee": "at_least_once",
        # consumer
        "consumer_auto_offset_reset": "earliest",
        "consumer_group_instance_id": spec.instance_id,
        "consumer_max_fetch_size": spec.partition_fetch_bytes_max,
        "broker_max_poll_records": None,
        "broker_max_poll_interval": spec.max_poll_interval_s,
        "broker_session_timeout": spec.session_timeout_s,
        "broker_heartbeat_interval": spec.heartbeat_interval_s,
        "broker_rebalance_timeout": spec.rebalance_timeout_s,
        "broker_request_timeout": spec.request_timeout_s,
        "broker_commit_interval": spec.commit_interval_s,
        "broker_commit_every": 1_000_000_000,  # chunks are committed by time only
        # streams
        "stream_buffer_maxsize": _STREAM_BUFFER_CHUNKS,
        "stream_wait_empty": False,  # a dropped message would hang the rebalance; see consumer.quiesce
        "stream_recovery_delay": 0.0,
        # Faust's own producer sends nothing of ours; should it ever, the settings are safe ones
        "producer_acks": -1,
        "producer_threaded": False,
        "producer_linger": 0.0,
        "producer_max_batch_size": _FAUST_PRODUCER_BATCH_BYTES,
        "producer_request_timeout": _FAUST_PRODUCER_TIMEOUT_S,
        # tables and topics
        "table_standby_replicas": 0,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "recovery_consistency_check": True,
        # The assignor compares this with what an earlier process of the same static member said, and
        # refuses the assignment when it differs: it must not depend on a port that was free today.
        "canonical_url": f"http://worker.invalid/{spec.instance_id}" if spec.instance_id else None,
        # web
        "web_enabled": spec.web_enabled,
        "web_bind": spec.web_bind,
        "web_host": spec.web_bind,
        "web_port": spec.web_port,
        "web_ssl_context": web_tls,
        "web_tables_enabled": False,
        "web_router_enabled": False,
        "web_stats_enabled": False,
        "web_graph_enabled": False,
        "web_metrics_enabled": False,
    }
