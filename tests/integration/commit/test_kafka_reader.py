"""KafkaLogReader on a real broker: gapless from a start to the end, or an error."""

from collections.abc import AsyncIterator

import pytest

from qim_streams.commit.kafka_reader import KafkaLogReader
from qim_streams.errors import InvariantViolation, StoreUnavailable
from qim_streams.settings import Settings
from qim_streams.streaming import topics
from qim_streams.streaming.producer import LogProducer, OutgoingRecord, ProducerSpec
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

TOPIC, PARTITION = "qim.room.v1", 2  # a topic that no writer uses


@pytest.fixture
async def producer(servers: Settings) -> AsyncIterator[LogProducer]:
    producer = LogProducer(ProducerSpec(servers.brokers, "reader-test"))
    await producer.start()
    yield producer
    await producer.close()


@pytest.fixture
async def reader(servers: Settings) -> AsyncIterator[KafkaLogReader]:
    reader = KafkaLogReader(servers.brokers, TOPIC)
    yield reader
    await reader.close()


async def read(
    reader: KafkaLogReader, start: int, partition: int = PARTITION
) -> list[tuple[int, bytes, bytes]]:
    return [row async for batch in reader.read(partition, start) for row in batch]


async def is_there(reader: KafkaLogReader) -> bool:
    """A topic that was just made has no leader for a moment."""
    try:
        return await read(reader, 0) == []
    except StoreUnavailable:
        return False


async def test_from_any_start_to_the_end(producer: LogProducer, reader: KafkaLogReader) -> None:
    await eventually(lambda: is_there(reader))
    wanted = [OutgoingRecord(TOPIC, PARTITION, b"k%d" % n, b"v%d" % n) for n in range(2_500)]
    await producer.append(wanted)
    expected = [(n, b"k%d" % n, b"v%d" % n) for n in range(2_500)]
    assert await read(reader, 0) == expected
    assert await read(reader, 2_400) == expected[2_400:]
    assert await read(reader, 2_500) == []
    await producer.append([OutgoingRecord(TOPIC, PARTITION, b"late", b"")])
    assert await read(reader, 2_500) == [(2_500, b"late", b"")]
    assert await read(reader, 0, partition=3) == []


async def test_what_is_gone_or_was_never_there_is_an_error(
    servers: Settings, producer: LogProducer, reader: KafkaLogReader
) -> None:
    from confluent_kafka import TopicPartition

    await producer.append([OutgoingRecord(TOPIC, 1, b"k", b"v")] * 10)
    with pytest.raises(InvariantViolation, match="created anew"):
        await read(reader, 11, partition=1)
    admin = topics.admin_client(servers.brokers)
    for future in admin.delete_records([TopicPartition(TOPIC, 1, 5)]).values():
        future.result(10)
    with pytest.raises(InvariantViolation, match="5 to 9"):
        await read(reader, 4, partition=1)
    assert [offset for offset, _, _ in await read(reader, 5, partition=1)] == [5, 6, 7, 8, 9]


async def test_without_a_broker_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qim_streams.commit.kafka_reader.ANSWER_TIMEOUT_S", 0.5)
    reader = KafkaLogReader("127.0.0.1:9", TOPIC)
    with pytest.raises(StoreUnavailable):
        await read(reader, 0)
    await reader.close()
