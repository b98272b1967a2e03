"""A worker process for the tests: consume, append to an output topic, write W to a table.

Configured by JSON in ``QIM_TEST_WORKER``; see `WorkerConfig`. Behaviour that tests ask for: a delay per
record, a failure at one offset, an outage while a file exists, poison records to the dead letters, or a
stock Faust agent instead of our lanes (to pin what it does wrong).
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qim_streams.errors import RecordError, StoreUnavailable
from qim_streams.streaming.app import StreamApp, build_app
from qim_streams.streaming.dead_letter import DeadLetterSink
from qim_streams.streaming.producer import OutgoingRecord
from qim_streams.streaming.source import SourceBatch, SourceRole, one_by_one
from qim_streams.streaming.spec import AppSpec, SourceSpec
from qim_streams.streaming.web import add_standard_pages

WATERMARK = b"w"
ENVIRONMENT = "QIM_TEST_WORKER"


@dataclass(frozen=True)
class WorkerConfig:
    """One test worker. `fail_at` is (partition, offset); `latch` makes it fail once."""

    role: str
    brokers: str
    partitions: int
    datadir: str
    watermark_log: str
    instance_id: str | None = None
    session_timeout_s: float = 2.0
    stock: bool = False
    delay_s: float = 0.0
    fail_at: tuple[int, int] | None = None
    latch: str | None = None
    outage_file: str | None = None
    web_port: int = 0
    stall_timeout_s: float = 20.0
    hints: bool = False  # read the second, compacted source from its beginning as well

    @property
    def source(self) -> str:
        return f"{self.role}.in"

    @property
    def output(self) -> str:
        return f"{self.role}.out"

    @property
    def hint_source(self) -> str:
        return f"{self.role}.hints"

    @property
    def dead_letters(self) -> str:
        return f"{self.role}.dead"

    @property
    def changelog(self) -> str:
        return f"qim-{self.role}-progress-changelog"

    def environment(self) -> dict[str, str]:
        return {ENVIRONMENT: json.dumps(asdict(self))}


class PassThrough:
    """The role: every record becomes one output record that names its source offset."""

    def __init__(self, app: StreamApp, config: WorkerConfig) -> None:
        self.app, self.config = app, config
        self.table = app.acked_table("progress", config.partitions)
        self.dead = DeadLetterSink(app.log_producer, config.role, 1, lambda: 0, topic=config.dead_letters)
        self.log = os.open(config.watermark_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def watermark(self, partition: int) -> int:
        value = self.table.read(partition, WATERMARK)
        return -1 if value is None else int(value)

    async def start_position(self, partition: int) -> int:
        stands = self.watermark(partition)
        if stands >= 0:  # who was here before may have died between the table and this log
            os.write(self.log, b"%d %d\n" % (partition, stands))
        return stands + 1

    async def handle(self, batch: SourceBatch) -> None:
        assert batch.previous_offset == self.watermark(batch.partition), "expected_previous is not W"
        self._maybe_out()
        good, poison = [], []
        for record in batch.records:
            self._maybe_fail(batch.partition, record)
            if record.value.startswith(b"poison"):
                poison.append((batch.partition, record, RecordError("a poison record")))
            else:
                good.append(OutgoingRecord(self.config.output, batch.partition, None, b"%d" % record.offset))
        if self.config.delay_s:
            await asyncio.sleep(self.config.delay_s * len(batch.records))
        await asyncio.gather(
            self.app.log_producer.append(good), self.dead.send_many(self.config.source, poison)
        )
        self.table.write_batch(batch.partition, {WATERMARK: b"%d" % batch.last_offset})
        await self.table.barrier(batch.partition)
        os.write(self.log, b"%d %d\n" % (batch.partition, batch.last_offset))

    async def first_hint(self, partition: int) -> int:
        return 0

    async def handle_hints(self, batch: SourceBatch) -> None:
        self.table.read(batch.partition, WATERMARK)  # raises unless both sources lie on this worker
        with Path(self.config.watermark_log).with_name("hints.log").open("ab") as log:
            log.writelines(b"%d %s\n" % (batch.partition, record.key) for record in batch.records)

    def _maybe_out(self) -> None:
        if self.config.outage_file and Path(self.config.outage_file).exists():
            raise StoreUnavailable("the test store is down")

    def _maybe_fail(self, partition: int, record: Any) -> None:
        if self.config.fail_at != (partition, record.offset):
            return
        if self.config.latch is not None:
            latch = Path(self.config.latch)
            if latch.exists():
                return
            latch.touch()
        raise RuntimeError(f"the test fails at {self.config.fail_at}")


def build(config: WorkerConfig) -> StreamApp:
    """The application of `config`."""
    spec = AppSpec(
        role=config.role,
        brokers=config.brokers,
        sources=(
            SourceSpec(config.source, config.partitions),
            *([SourceSpec(config.hint_source, config.partitions, compacted=True)] if config.hints else []),
        ),
        datadir=Path(config.datadir),
        instance_id=config.instance_id,
        session_timeout_s=config.session_timeout_s,
        heartbeat_interval_s=config.session_timeout_s / 5,
        rebalance_timeout_s=15.0,
        drain_timeout_s=6.0,
        stall_timeout_s=config.stall_timeout_s,
        batch_records_max=200,
        chunk_records_max=100,
        web_enabled=config.web_port > 0,
        web_port=config.web_port or 6066,
    )
    app = build_app(spec)
    role = PassThrough(app, config)
    lanes = app.add_source(
        config.source, SourceRole(start_position=role.start_position, handle=one_by_one(role.handle))
    )
    add_standard_pages(app)
    if config.hints:
        _add_hints(app, role)

    @app.agent(app.source_topic(config.source), concurrency=1, name="pass-through")
    async def pass_through(stream: Any) -> None:
        await lanes.drain(stream)

    return app


def _add_hints(app: StreamApp, role: PassThrough) -> None:
    topic = role.config.hint_source
    hints = app.add_source(topic, SourceRole(role.first_hint, one_by_one(role.handle_hints)))

    @app.agent(app.source_topic(topic), concurrency=1, name="hints")
    async def read_hints(stream: Any) -> None:
        await hints.drain(stream)


def build_stock(config: WorkerConfig) -> Any:
    """A plain Faust agent with default acknowledgements, as the manual shows it."""
    import faust

    app = faust.App(
        f"qim-{config.role}",
        broker=f"kafka://{config.brokers}",
        datadir=config.datadir,
        store="memory://",
        web_enabled=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
    )
    output = app.topic(config.output, key_serializer="raw", value_serializer="raw")

    @app.agent(app.topic(config.source, key_serializer="raw", value_serializer="raw"), concurrency=1)
    async def stock(stream: Any) -> None:
        async for event in stream.events():
            offset = event.message.offset
            if config.fail_at == (event.message.partition, offset):
                raise RuntimeError(f"the test fails at {config.fail_at}")
            await (await output.send(value=b"%d" % offset, partition=event.message.partition))

    return app


def main() -> None:
    """Run the worker until it is stopped."""
    values = json.loads(os.environ[ENVIRONMENT])
    if values["fail_at"] is not None:
        values["fail_at"] = tuple(values["fail_at"])
    config = WorkerConfig(**values)
    app = build_stock(config) if config.stock else build(config)
    sys.argv = ["worker", "worker", "-l", "info", *(["--without-web"] if config.stock else [])]
    app.main()


if __name__ == "__main__":
    main()
