"""The log producer on a stand-in for librdkafka: order, bounds, errors."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from qim_streams.errors import LogAppendError, Outcome, ProducerFatalError, RecordTooLargeError
from qim_streams.kafka_access import KafkaAccess
from qim_streams.streaming import producer as module
from qim_streams.streaming.producer import LogProducer, OutgoingRecord, ProducerSpec


class Delivered:
    def __init__(self, partition: int, offset: int) -> None:
        self._partition, self._offset = partition, offset

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset


class FakeProducer:
    """Acknowledges in `poll` while `acking`; behaviour per record by `rule`."""

    def __init__(self, config: dict[str, Any], logger: object = None) -> None:
        self.config = config
        self.pending: deque[tuple[str, int, Callable[..., None]]] = deque()
        self.offsets: dict[tuple[str, int], int] = {}
        self.acking = True
        self.rule: Callable[[str, int], KafkaError | int | None] = lambda topic, partition: None

    def list_topics(self, timeout: float) -> None: ...

    def produce(self, topic: str, value: Any, key: Any, partition: int, callback: Any) -> None:
        if partition < 0:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        self.pending.append((topic, partition, callback))

    def poll(self, timeout: float) -> int:
        if not self.acking or not self.pending:
            import time

            time.sleep(min(timeout, 0.001))
            return 0
        count = 0
        while self.pending:
            topic, partition, callback = self.pending.popleft()
            verdict = self.rule(topic, partition)
            if isinstance(verdict, KafkaError):
                callback(verdict, None)
            else:
                landed = partition if verdict is None else verdict
                offset = self.offsets[topic, partition] = self.offsets.get((topic, partition), -1) + 1
                callback(None, Delivered(landed, offset))
            count += 1
        return count

    def flush(self, timeout: float) -> int:
        return self.poll(timeout)

    def purge(self) -> None:
        while self.pending:
            self.pending.popleft()[2](KafkaError(KafkaError._PURGE_QUEUE), None)


@pytest.fixture
async def log(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LogProducer]:
    monkeypatch.setattr(module, "Producer", FakeProducer)
    producer = LogProducer(
        ProducerSpec("fake", "unit", record_bytes_max=100, in_flight_records_max=10, in_flight_bytes_max=500)
    )
    await producer.start()
    yield producer
    await producer.close(1.0)


def fake(log: LogProducer) -> FakeProducer:
    assert isinstance(log._producer, FakeProducer)
    return log._producer


def records(count: int, topic: str = "t", partition: int = 0, size: int = 1) -> list[OutgoingRecord]:
    return [OutgoingRecord(topic, partition, None, b"x" * size) for _ in range(count)]


async def test_offsets_come_back_in_the_order_given(log: LogProducer) -> None:
    mixed = [
        OutgoingRecord("a", 0, b"k", b"1"),
        OutgoingRecord("b", 2, None, None),
        OutgoingRecord("a", 0, None, b"2"),
    ]
    assert await log.append(mixed) == [0, 0, 1]
    assert await log.append(records(2, "a")) == [2, 3]
    assert await log.append([]) == []
    assert log.in_flight_records == 0


def test_the_configuration_says_what_order_and_durability_depend_on() -> None:
    config = ProducerSpec("b", "c").config()
    assert config["enable.idempotence"] is True
    assert config["acks"] == "all"
    assert config["max.in.flight.requests.per.connection"] == 1
    far = ProducerSpec(KafkaAccess("b", requests_in_flight=5), "c").config()
    assert far["max.in.flight.requests.per.connection"] == 5
    assert config["allow.auto.create.topics"] is False


async def test_a_record_too_large_is_refused_before_any_is_produced(log: LogProducer) -> None:
    with pytest.raises(RecordTooLargeError, match="record_bytes_max"):
        await log.append([*records(2), *records(1, size=101)])
    assert fake(log).offsets == {}
    assert not fake(log).pending


async def test_what_comes_behind_records_in_flight_goes_with_the_next_request(log: LogProducer) -> None:
    """librdkafka's broker thread spins while records wait in it behind a request in flight."""
    fake(log).acking = False
    calls = [log.append_nowait(records(2)) for _ in range(3)]
    other = log.append_nowait(records(1, partition=1))
    assert [partition for _, partition, _ in fake(log).pending] == [0, 0, 1]
    fake(log).acking = True
    assert await asyncio.gather(*calls, other) == [[0, 1], [2, 3], [4, 5], [0]]


async def test_what_waits_behind_a_failed_request_goes_all_the_same(log: LogProducer) -> None:
    fake(log).acking = False
    first, second = (log.append_nowait(records(1)) for _ in range(2))
    failed = fake(log).pending.popleft()[2]
    failed(KafkaError(KafkaError._MSG_TIMED_OUT), None)
    assert len(fake(log).pending) == 1
    fake(log).acking = True
    with pytest.raises(LogAppendError):
        await first
    assert await second == [0]


async def test_a_full_producer_refuses_at_once_or_makes_wait(log: LogProducer) -> None:
    fake(log).acking = False
    first = log.append_nowait(records(8))
    with pytest.raises(LogAppendError, match="full") as caught:
        log.append_nowait(records(3))
    assert caught.value.outcome is Outcome.NOT_APPLIED
    waiting = asyncio.ensure_future(log.append(records(3)))
    behind = asyncio.ensure_future(log.append(records(1)))  # there would be room, but others came first
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert not behind.done()
    fake(log).acking = True
    assert await first == list(range(8))
    assert await waiting == [8, 9, 10]
    assert await behind == [11]
    assert log.in_flight_records == 0


async def test_an_idle_producer_takes_a_call_over_the_bound(log: LogProducer) -> None:
    assert len(await log.append(records(25))) == 25


async def test_a_cancelled_wait_leaves_the_room_to_others(log: LogProducer) -> None:
    fake(log).acking = False
    first = log.append_nowait(records(10))
    waiting = asyncio.ensure_future(log.append(records(5)))
    behind = asyncio.ensure_future(log.append(records(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    fake(log).acking = True
    await first
    assert await behind == [10]
    assert log.in_flight_records == 0


async def test_a_failed_record_fails_the_call_with_an_unknown_outcome(log: LogProducer) -> None:
    fake(log).rule = lambda topic, partition: (
        KafkaError(KafkaError._MSG_TIMED_OUT) if partition == 1 else None
    )
    with pytest.raises(LogAppendError, match="2 of 3 records acknowledged") as caught:
        await log.append([*records(2), *records(1, partition=1)])
    assert caught.value.outcome is Outcome.UNKNOWN
    assert not isinstance(caught.value, ProducerFatalError)
    assert await log.append(records(1)) == [2]


async def test_a_partition_that_does_not_exist_fails_the_call(log: LogProducer) -> None:
    with pytest.raises(LogAppendError, match="1 of 2 records acknowledged"):
        await log.append([*records(1), *records(1, partition=-5)])


async def test_a_record_in_the_wrong_partition_is_fatal(log: LogProducer) -> None:
    """Silent loss of order and co-partitioning: what `produce_batch` of the driver did."""
    fake(log).rule = lambda topic, partition: partition + 1
    with pytest.raises(ProducerFatalError, match="went to 1"):
        await log.append(records(1))
    with pytest.raises(ProducerFatalError):
        await log.append(records(1))


async def test_a_fatal_error_reaches_every_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Producer", FakeProducer)
    told: list[str] = []
    log = LogProducer(ProducerSpec("fake", "unit", in_flight_records_max=1), on_fatal=told.append)
    await log.start()
    fake(log).acking = False
    first = log.append_nowait(records(1))
    waiting = asyncio.ensure_future(log.append(records(1)))
    await asyncio.sleep(0)
    fake(log).config["error_cb"](KafkaError(KafkaError._FATAL, "fenced", fatal=True))
    fake(log).rule = lambda topic, partition: KafkaError(KafkaError._FATAL, "fenced", fatal=True)
    fake(log).acking = True
    for call in (first, waiting):
        with pytest.raises(ProducerFatalError):
            await call
    assert len(told) == 1
    await log.close(1.0)


async def test_a_closed_producer_refuses_and_leaves_no_call_hanging(log: LogProducer) -> None:
    fake(log).acking = False
    call = log.append_nowait(records(1))
    behind = log.append_nowait(records(1))
    waiting = asyncio.ensure_future(log.append(records(10)))
    await asyncio.sleep(0)
    await log.close(0.05)
    for future in (call, behind, waiting):
        with pytest.raises(LogAppendError):
            await future
    with pytest.raises(LogAppendError, match="not running"):
        await log.append(records(1))


async def test_no_broker_is_said_at_the_start() -> None:
    log = LogProducer(ProducerSpec("127.0.0.1:1", "unit", connect_timeout_s=0.2))
    with pytest.raises(LogAppendError, match=r"no broker at 127.0.0.1:1 answered in 0.2 s"):
        await log.start()
