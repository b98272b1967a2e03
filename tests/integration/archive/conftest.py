"""One real Kafka for these tests, with the declared topics on it."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from qim_streams.embedded.kafka import EmbeddedKafka
from qim_streams.embedded.process import ChildProcess
from qim_streams.settings import Settings
from qim_streams.streaming import topics
from qim_streams.streaming.topics import ResolvedTopic
from tests.support.waiting import eventually_sync

PARTITIONS = 4
EMPTIED = {"qim.outbox.v1", "qim.dead-letter.v1"}
_numbers = itertools.count(1)


def declared(server: EmbeddedKafka) -> dict[str, ResolvedTopic]:
    """The topics as they must be."""
    settings = Settings(brokers=server.bootstrap, outbox_partitions=PARTITIONS, mailbox_shards=PARTITIONS)
    return topics.load().resolve_for(settings)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A running single-node Kafka; everything on it is thrown away afterwards."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), quick=True) as server:
        topics.apply(topics.admin_client(server.bootstrap), declared(server))
        yield server


@dataclass
class Log:
    """Appending to and reading from the log, and the processes on it."""

    brokers: str
    children: list[ChildProcess] = field(default_factory=list)

    def append(self, topic: str, partition: int, records: list[tuple[bytes | None, bytes | None]]) -> None:
        """Append (key, value) pairs to a partition and wait for them."""
        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 1})
        for key, value in records:
            producer.produce(topic, value, key, partition)
        assert producer.flush(30) == 0

    def read(self, topic: str, partitions: int) -> dict[int, list[tuple[int, bytes | None, bytes | None]]]:
        """(offset, key, value) of everything in `topic`, per partition."""
        name = f"test-read-{next(_numbers)}"
        consumer = Consumer(
            {"bootstrap.servers": self.brokers, "group.id": name, "enable.auto.commit": False}
        )
        found: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {p: [] for p in range(partitions)}
        try:
            for partition in range(partitions):
                _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
                consumer.assign([TopicPartition(topic, partition, 0)])
                while len(found[partition]) < end:
                    for one in consumer.consume(500, timeout=5):
                        assert one.error() is None, one.error()
                        found[partition].append((one.offset(), one.key(), one.value()))
        finally:
            consumer.close()
        return found


@pytest.fixture
def log(kafka: EmbeddedKafka) -> Iterator[Log]:
    """The log; processes that a test leaves behind are killed."""
    log = Log(kafka.bootstrap)
    yield log
    for child in log.children:
        child.kill()


@pytest.fixture
def fresh_outbox(kafka: EmbeddedKafka) -> None:
    """The Outbox and the dead letters emptied: deleted and made anew."""
    admin = topics.admin_client(kafka.bootstrap)
    for future in admin.delete_topics(list(EMPTIED)).values():
        future.result(30)
    eventually_sync(
        lambda: not EMPTIED & set(admin.list_topics(timeout=10).topics), 30, "the topics to be deleted"
    )
    wanted = declared(kafka)
    topics.apply(admin, wanted)
    eventually_sync(lambda: topics.check(admin, wanted) == [], 30, "the topics to be there")
