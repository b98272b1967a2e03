"""What a log may look like: holes, removed records, a topic created anew; and appends to a real broker."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from qim_streams.embedded.kafka import EmbeddedKafka
from qim_streams.errors import ConfigError, LogAppendError
from qim_streams.streaming import topics
from qim_streams.streaming.doubt import EXIT_DOUBT
from qim_streams.streaming.producer import LogProducer, OutgoingRecord, ProducerSpec
from tests.integration.streaming.harness import Pipeline
from tests.integration.streaming.verdict import judge
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration]


def test_holes_of_the_log_are_passed_with_proof(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """T-B3, H6: aborted and committed transactions leave offsets without a record; W passes them."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "holes", partitions=1)
    writer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "holes"})
    writer.init_transactions(30)
    good: list[int] = []
    try:
        worker = pipeline.start("worker", stall_timeout_s=4.0)
        pipeline.wait_logged("worker", "starts at offset")
        for number in range(6):
            writer.begin_transaction()
            for _ in range(5):
                writer.produce(pipeline.config.source, b"x", partition=0, on_delivery=_remember(good))
            writer.flush(30)
            writer.commit_transaction(30)
            if number == 3:
                pipeline.stop(worker)  # a start at a hole, too
                worker = pipeline.start("worker", stall_timeout_s=4.0)
        eventually_sync(lambda: dict(pipeline.watermarks()).get(0, -1) >= good[-1], 30, "all processed")
        # The log now ends with a control record: that is no stall, however long it lasts.
        eventually_sync(lambda: worker.poll() is not None or _watched(pipeline), 30, "the watchdog to look")
        assert worker.poll() is None
        assert pipeline.stop(worker) == 0
    finally:
        pipeline.close()
    verdict = judge(pipeline.outputs(), {0: good}, pipeline.watermarks())
    assert verdict.clean
    assert verdict.repeated == 0
    assert good[-1] == 34  # 30 records and 5 markers between them


def _remember(offsets: list[int]) -> Callable[[object, Any], None]:
    return lambda error, message: offsets.append(message.offset())


def _watched(pipeline: Pipeline) -> bool:
    return "the log ends with offsets that hold no record" in pipeline.log_text("worker")


def test_a_second_compacted_source_is_read_from_its_beginning(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Two co-partitioned sources, each with its own start; the compacted one anew at each assignment."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "hints")
    hint_log = tmp_path / "hints.log"
    writer = Producer({"bootstrap.servers": kafka.bootstrap})
    pipeline.create(pipeline.config.hint_source, 4, {"cleanup.policy": "compact"})
    try:
        for number in range(40):
            writer.produce(pipeline.config.hint_source, b"v", b"%d" % number, partition=number % 4)
        writer.flush(30)
        pipeline.feed(200)
        first = pipeline.start("first", hints=True)
        pipeline.wait_processed()
        eventually_sync(lambda: len(_keys(hint_log)) == 40, 20, "all hints")
        hint_log.unlink()
        second = pipeline.start("second", hints=True)  # a rebalance: both read their part again
        eventually_sync(lambda: set(_keys(hint_log)) == {b"%d" % n for n in range(40)}, 30, "all hints again")
        pipeline.feed(200)
        pipeline.wait_processed()
        assert pipeline.stop(second) == 0
        assert pipeline.stop(first) == 0
    finally:
        pipeline.close()
    verdict = judge(pipeline.outputs(), pipeline.expected(), pipeline.watermarks())
    assert verdict.clean
    assert verdict.repeated == 0


def _keys(path: Path) -> list[bytes]:
    return [line.split()[1] for line in path.read_bytes().splitlines()] if path.exists() else []


def test_a_changelog_that_ends_with_a_hole_is_recovered(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Stock recovery waits for the last record for ever; here it is looked for once more, then passed."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "tail", partitions=1)
    writer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "tail"})
    writer.init_transactions(30)
    try:
        pipeline.feed(50)
        worker = pipeline.start("worker")
        pipeline.wait_processed()
        pipeline.stop(worker)
        writer.begin_transaction()
        writer.produce(pipeline.config.changelog, b"x", b"somebody else's key", partition=0)
        writer.flush(30)
        writer.abort_transaction(30)  # its marker is the last offset
        pipeline.feed(50)
        worker = pipeline.start("worker")
        pipeline.wait_logged("worker", "the changelog ends with a hole")
        pipeline.wait_processed()
        assert pipeline.stop(worker) == 0
    finally:
        pipeline.close()
    verdict = judge(pipeline.outputs(), pipeline.expected(), pipeline.watermarks())
    assert verdict.clean
    assert verdict.repeated == 0


def test_records_removed_unread_stop_the_worker(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Retention above our position is a loss: the worker says so and does not go on."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "removed", partitions=1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    try:
        pipeline.feed(50)
        worker = pipeline.start("worker")
        pipeline.wait_processed()
        pipeline.stop(worker)
        pipeline.feed(50)
        for future in admin.delete_records([TopicPartition(pipeline.config.source, 0, 70)]).values():
            future.result(30)
        worker = pipeline.start("worker")
        assert pipeline.wait_exit(worker) == EXIT_DOUBT
        assert "offsets 50 to 69 were removed by retention unread" in pipeline.log_text("worker")
    finally:
        pipeline.close()


def test_a_topic_created_anew_is_not_served(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """T-B4: offsets start again below W; the worker refuses instead of waiting for ever or guessing."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "anew", partitions=1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    try:
        pipeline.feed(50)
        worker = pipeline.start("worker")
        pipeline.wait_processed()
        pipeline.stop(worker)
        for future in admin.delete_topics([pipeline.config.source]).values():
            future.result(30)
        eventually_sync(lambda: pipeline.config.source not in admin.list_topics(timeout=5).topics, 20, "gone")
        eventually_sync(lambda: _created(pipeline), 20, "created anew")
        pipeline.feed(10)
        worker = pipeline.start("worker")
        assert pipeline.wait_exit(worker) == EXIT_DOUBT
        assert "re-created or truncated" in pipeline.log_text("worker")
    finally:
        pipeline.close()


def _created(pipeline: Pipeline) -> bool:
    try:
        pipeline.create(pipeline.config.source, 1)
    except Exception:
        return False
    return True


async def test_appends_land_where_they_were_sent(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Every record in its partition, offsets as they lie in the log, in order over many calls."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "append")
    producer = LogProducer(ProducerSpec(kafka.bootstrap, "test"))
    await producer.start()
    topic = pipeline.config.output
    calls = [
        [OutgoingRecord(topic, (call + n) % 4, b"same key", b"%d" % (call * 10 + n)) for n in range(10)]
        for call in range(50)
    ]
    offsets = await asyncio.gather(*(producer.append(call) for call in calls))
    with pytest.raises(LogAppendError):
        await producer.append([OutgoingRecord(topic, 77, None, b"nowhere")])
    await producer.close()
    lying = {partition: [int(v) for v in values] for partition, values in pipeline.read(topic).items()}
    for call, where in zip(calls, offsets, strict=True):
        for record, offset in zip(call, where, strict=True):
            assert lying[record.partition][offset] == int(record.value or b"")
    for values in lying.values():
        assert values == sorted(values)
    pipeline.close()


async def test_an_append_survives_a_broker_restart(tmp_path: Path) -> None:
    """T-R1: appends wait while the broker is away, and come through once and in order."""
    with EmbeddedKafka(tmp_path / "kafka", quick=True) as broker:
        pipeline = Pipeline(broker.bootstrap, tmp_path, "restart")
        producer = LogProducer(ProducerSpec(broker.bootstrap, "test"))
        await producer.start()
        topic = pipeline.config.output
        await producer.append([OutgoingRecord(topic, 0, None, b"0")])
        broker.kill()
        calls = [producer.append_nowait([OutgoingRecord(topic, 0, None, b"%d" % n)]) for n in range(1, 30)]
        broker.restart()
        assert [offset for [offset] in await asyncio.gather(*calls)] == list(range(1, 30))
        await producer.close()
        assert [int(value) for value in pipeline.read(topic)[0]] == list(range(30))


def test_topics_are_created_checked_and_never_altered(kafka: EmbeddedKafka) -> None:
    """`apply` twice is once; every kind of difference is named with topic and field."""
    admin = topics.admin_client(kafka.bootstrap)
    declared = topics.load().resolve("dev", {"qim.outbox.v1": 2, "qim.dispatch.v1": 3})
    assert topics.check(admin, declared)[0].endswith("does not exist; run `qim topics apply`")
    assert sorted(topics.apply(admin, declared)) == sorted(declared)
    eventually_sync(lambda: topics.check(admin, declared) == [], 20, "metadata")
    assert topics.apply(admin, declared) == []
    other = topics.load().resolve("dev", {"qim.outbox.v1": 2, "qim.dispatch.v1": 4})
    dispatch = "qim.dispatch.v1"
    moved = {n for n, t in topics.load().topics.items() if dispatch in (n, t.copartition_with)}
    assert {problem.split(":")[0] for problem in topics.check(admin, other)} == moved
    resource = ConfigResource(
        ConfigResource.Type.TOPIC, "qim.dispatch.v1", set_config={"cleanup.policy": "compact"}
    )
    for future in admin.alter_configs([resource]).values():
        future.result(30)
    problems = eventually_sync(lambda: topics.check(admin, declared), 20, "the difference")
    assert any("qim.dispatch.v1: cleanup.policy is compact, declared is delete" in p for p in problems)


def test_a_broker_that_is_not_there_is_said(tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    declared = topics.load().resolve("dev")
    short = pytest.MonkeyPatch()
    short.setattr(topics, "_ANSWER_TIMEOUT_S", 0.5)
    with pytest.raises(ConfigError, match="is the broker up"):
        topics.check(admin, declared)
    short.undo()


def test_the_new_topic_request_is_what_was_declared() -> None:
    """The configuration that a topic is created with comes from the declaration alone."""
    dispatch = topics.load().resolve("production")["qim.dispatch.v1"]
    made = NewTopic(dispatch.name, dispatch.partitions, dispatch.replication, config=dispatch.config())
    assert (made.num_partitions, made.replication_factor) == (256, 3)
    assert made.config["cleanup.policy"] == "delete"
    assert made.config["min.insync.replicas"] == "2"
