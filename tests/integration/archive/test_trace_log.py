"""Reading a real log for a trace: by time and offset, bounded, without a consumer group. Spec: §1."""

from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from qim_streams.embedded.kafka import EmbeddedKafka
from qim_streams.errors import StoreUnavailable
from qim_streams.trace.kafka_log import KafkaLogReader
from qim_streams.trace.ports import LogEntry

pytestmark = pytest.mark.integration
TOPIC, T0 = "trace-test", 1_700_000_000_000


@pytest.fixture(scope="module")
def brokers(kafka: EmbeddedKafka) -> str:
    """A topic with 300 records in each of two partitions, one per 10 ms, and an empty third partition."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, 3, 1)]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(300):
        for partition in (0, 1):
            producer.produce(TOPIC, b"%d" % number, b"key", partition, timestamp=T0 + 10 * number)
    assert producer.flush(30) == 0
    return kafka.bootstrap


@pytest.fixture
async def reader(brokers: str) -> AsyncIterator[KafkaLogReader]:
    """A reader of that log."""
    reader = KafkaLogReader(brokers)
    yield reader
    await reader.close()


async def test_partitions(reader: KafkaLogReader) -> None:
    assert await reader.partitions(TOPIC) == 3
    assert await reader.partitions("no-such-topic") == 0


async def test_offsets_by_time(reader: KafkaLogReader) -> None:
    assert await reader.offsets_at(TOPIC, [0, 1, 2], T0 + 1_000) == {0: 100, 1: 100, 2: 0}
    assert await reader.offsets_at(TOPIC, [0], T0 + 1_001) == {0: 101}
    assert await reader.offsets_at(TOPIC, [0, 2], T0 + 10**9) == {0: 300, 2: 0}, (
        "the end, where none is later"
    )
    assert await reader.offsets_at(TOPIC, [0], -5) == {0: 0}
    assert await reader.offsets_at(TOPIC, [], T0) == {}


async def test_a_scan_shows_everything_once_and_in_order(reader: KafkaLogReader) -> None:
    seen: list[LogEntry] = []

    def visit(entry: LogEntry) -> bool:
        seen.append(entry)
        return False

    scan = await reader.scan(TOPIC, {0: 250, 1: 0, 2: 0}, visit, 10_000)
    assert (scan.entries, scan.complete) == (350, True)
    assert [one.offset for one in seen if one.partition == 1] == list(range(300))
    assert [one.offset for one in seen if one.partition == 0] == list(range(250, 300))
    (entry,) = [one for one in seen if (one.partition, one.offset) == (1, 7)]
    assert entry == LogEntry(TOPIC, 1, 7, T0 + 70, b"key", b"7")


async def test_a_visitor_that_has_enough_ends_its_partition_only(reader: KafkaLogReader) -> None:
    seen: list[tuple[int, int]] = []

    def visit(entry: LogEntry) -> bool:
        seen.append((entry.partition, entry.offset))
        return entry.partition == 0 and entry.offset == 5

    scan = await reader.scan(TOPIC, {0: 0, 1: 290}, visit, 10_000)
    assert scan.complete
    assert [offset for partition, offset in seen if partition == 0] == list(range(6))
    assert [offset for partition, offset in seen if partition == 1] == list(range(290, 300))


async def test_the_bound_is_kept_and_told(reader: KafkaLogReader) -> None:
    scan = await reader.scan(TOPIC, {0: 0, 1: 0}, lambda entry: False, 37)
    assert (scan.entries, scan.complete) == (37, False)


async def test_nothing_to_read(reader: KafkaLogReader) -> None:
    for starts in ({2: 0}, {0: 300}, {0: 10**9}, {}):
        scan = await reader.scan(TOPIC, starts, lambda entry: False, 10)
        assert (scan.entries, scan.complete) == (0, True)


async def test_scans_follow_each_other_and_join_no_group(reader: KafkaLogReader, brokers: str) -> None:
    for _ in range(3):
        assert (await reader.scan(TOPIC, {0: 0}, lambda entry: False, 1_000)).entries == 300
    groups = AdminClient({"bootstrap.servers": brokers}).list_consumer_groups().result(20)
    assert not [one.group_id for one in groups.valid if "trace" in one.group_id]


async def test_a_broker_that_is_away() -> None:
    reader = KafkaLogReader("127.0.0.1:1", timeout_s=1.0)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        await reader.partitions(TOPIC)
    with pytest.raises(StoreUnavailable):
        await reader.offsets_at(TOPIC, [0], T0)
    await reader.close()
