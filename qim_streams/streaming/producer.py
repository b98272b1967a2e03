"""Appending to the log through librdkafka: idempotent, acks=all, one future per call.

`LogProducer.append` returns the offsets of all records, in the order given, once every one of them is
acknowledged by all in-sync replicas, or raises. Records of one call and partition, and calls made one
after the other, are appended in order. Delivery reports are collected by one polling thread and handed
to the event loop once per poll, so that a batch of 500 costs one wake-up.

Bounds: records and bytes in flight are limited; `append` waits for room (first come, first served),
`append_nowait` refuses. A record over `record_bytes_max` is refused before anything of the call is
produced. After a fatal error of the producer every call raises `ProducerFatalError`: the owner exits.

Not here: retries by the caller. A failed call may have appended some of its records (outcome UNKNOWN).

`Producer.produce_batch` of confluent-kafka 2.16.1 is not used: it ignores the partition of each message,
documented or not, and was no faster. Every delivery report is checked against the partition asked for.

Measured on two shared cores against Apache Kafka 4.3.1, 400-byte values, four partitions, one call at a
time (records per second, CPU µs per record of the client, P50 / P99 of a call in ms)::

    records per call        1                          16                         500
    librdkafka linger 0     3,300/s 117 µs 0.3/0.5     17,000/s 18 µs 0.9/1.7     150,000/s 3.7 µs 2.3/30
    librdkafka linger 0.2   700/s 152 µs 1.4/1.8       7,200/s 22 µs 2.1/3.9      209,000/s 2.6 µs 1.9/9.5
    librdkafka linger 1     700/s 152 µs 1.4/1.7       7,900/s 19 µs 2.0/2.6      153,000/s 2.2 µs 3.0/15
    aiokafka idempotent     2,200/s 234 µs 0.4/1.6     25,000/s 22 µs 0.6/1.1     109,000/s 7.7 µs 4.5/12.8

Hence linger 0: callers already bring batches, and a timer only adds its length to every call. With four
calls of 500 in flight librdkafka reaches 240,000 records per second. What comes for a partition while its
records are in flight waits for their end and goes with the next request (``partition_queue``).

Spec: §3.4, §4, §14.1.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from qim_streams.codec import RECORD_BYTES_MAX
from qim_streams.errors import LogAppendError, Outcome, ProducerFatalError, RecordTooLargeError
from qim_streams.kafka_access import Brokers, access_of
from qim_streams.log_ports import Outgoing
from qim_streams.streaming import metrics
from qim_streams.streaming.partition_queue import PartitionQueue

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_OVERHEAD_BYTES = 1_024  # room for keys, headers and the batch frame beside the value


OutgoingRecord: TypeAlias = Outgoing
_Item: TypeAlias = "tuple[_Call, int, OutgoingRecord]"
_Queue: TypeAlias = "PartitionQueue[_Item]"


@dataclass(frozen=True, slots=True)
class ProducerSpec:
    """How a `LogProducer` connects and what it may hold in flight."""

    brokers: Brokers
    client_id: str
    linger_ms: float = 0.0
    compression: str = "none"
    message_timeout_ms: int = 120_000
    record_bytes_max: int = RECORD_BYTES_MAX
    in_flight_records_max: int = 100_000
    in_flight_bytes_max: int = 64 * 1024 * 1024
    connect_timeout_s: float = 30.0

    def config(self) -> dict[str, Any]:
        """The librdkafka configuration; everything that order and durability depend on is explicit."""
        access = access_of(self.brokers)
        return {
            **access.librdkafka(),
            "client.id": self.client_id,
            "enable.idempotence": True,
            "acks": "all",
            "max.in.flight.requests.per.connection": access.requests_in_flight,
            "linger.ms": self.linger_ms,
            "compression.type": self.compression,
            "message.timeout.ms": self.message_timeout_ms,
            "message.max.bytes": self.record_bytes_max + _OVERHEAD_BYTES,
            "batch.num.messages": 10_000,
            "batch.size": max(1_000_000, self.record_bytes_max + _OVERHEAD_BYTES),
            "queue.buffering.max.messages": 2 * self.in_flight_records_max,
            "queue.buffering.max.kbytes": 2 * self.in_flight_bytes_max // 1024,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 1_000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 1_000,
            "socket.nagle.disable": True,
            "allow.auto.create.topics": False,
        }


class _Call:
    """One append: the offsets so far. Touched by the polling thread only, until it is complete."""

    __slots__ = ("error", "future", "left", "nbytes", "offsets", "started")

    def __init__(self, count: int, nbytes: int, future: "asyncio.Future[list[int]]", started: float) -> None:
        self.offsets = [-1] * count
        self.left, self.nbytes = count, nbytes
        self.future, self.started = future, started
        self.error: KafkaError | None = None


class LogProducer:
    """An idempotent appender bound to the event loop that started it."""

    def __init__(self, spec: ProducerSpec, *, on_fatal: Callable[[str], object] | None = None) -> None:
        self.spec = spec
        self._on_fatal = on_fatal
        self._producer: Producer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._flush_s = 0.0
        self._fatal: str | None = None
        self._completed: list[_Call] = []
        self._rejected: deque[tuple[_Queue, _Call, KafkaError]] = deque()
        self._purged = False
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._records = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self._count_ok = metrics.APPENDS.labels(spec.client_id, "ok")
        self._count_records = metrics.APPENDED_RECORDS.labels(spec.client_id)
        self._observe = metrics.APPEND_SECONDS.labels(spec.client_id).observe

    @property
    def in_flight_records(self) -> int:
        """Records handed over and not yet acknowledged or refused."""
        return self._records

    async def start(self) -> None:
        """Connect and learn the topics; LogAppendError when no broker answers in `connect_timeout_s`."""
        if self._producer is not None:
            return
        self._loop = asyncio.get_running_loop()
        producer = Producer(self.spec.config() | {"error_cb": self._on_error}, logger=log)
        try:
            await asyncio.to_thread(producer.list_topics, timeout=self.spec.connect_timeout_s)
        except KafkaException as error:
            raise LogAppendError(
                f"no broker at {self.spec.brokers} answered in {self.spec.connect_timeout_s} s: {error}",
                Outcome.NOT_APPLIED,
            ) from error
        self._producer = producer
        self._thread = threading.Thread(target=self._poll, name=f"log-{self.spec.client_id}", daemon=True)
        self._thread.start()

    async def close(self, timeout_s: float = 10.0) -> None:
        """Wait up to `timeout_s` for what is in flight, then stop. Unacknowledged calls raise."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._flush_s = timeout_s
        self._stopping = True
        await asyncio.to_thread(thread.join, timeout_s + 2.0)
        for _, _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(LogAppendError("the producer was closed", Outcome.NOT_APPLIED))
        self._waiting.clear()

    async def append(self, records: Sequence[OutgoingRecord]) -> list[int]:
        """Append `records` and return their offsets in the same order, all of them acknowledged.

        Waits while the producer is full. RecordTooLargeError and a closed producer: nothing was
        appended. LogAppendError: outcome UNKNOWN, some may have been. ProducerFatalError: exit.
        A cancelled call may still append.
        """
        nbytes = self._measure(records)
        if not records:
            return []
        if self._waiting or not self._has_room(len(records), nbytes):
            await self._wait_for_room(len(records), nbytes)
        return await self._submit(records, nbytes)

    def check(self, records: Sequence[OutgoingRecord]) -> None:
        """Raise what `append_nowait` of the same records would raise now; appends nothing."""
        self._measured(records)

    def append_nowait(self, records: Sequence[OutgoingRecord]) -> "asyncio.Future[list[int]]":
        """As `append`, but refuses with LogAppendError (NOT_APPLIED) when the producer is full."""
        return self._submit(records, self._measured(records))

    def _measured(self, records: Sequence[OutgoingRecord]) -> int:
        """The bytes of records that may be appended now; raises as `append_nowait`."""
        nbytes = self._measure(records)
        if self._waiting or not self._has_room(len(records), nbytes):
            metrics.APPENDS.labels(self.spec.client_id, "full").inc()
            raise LogAppendError(
                f"the producer holds {self._records} records, {self._bytes} bytes: full", Outcome.NOT_APPLIED
            )
        return nbytes

    def _require_usable(self) -> None:
        if self._fatal is not None:
            raise ProducerFatalError(f"the producer failed for good: {self._fatal}")
        if self._producer is None or self._stopping:
            raise LogAppendError("the producer is not running", Outcome.NOT_APPLIED)

    def _measure(self, records: Sequence[OutgoingRecord]) -> int:
        self._require_usable()
        total, limit = 0, self.spec.record_bytes_max
        for topic, partition, key, value in records:
            size = len(value or b"") + len(key or b"")
            if size > limit:
                raise RecordTooLargeError(
                    f"a record of {size} bytes for {topic}[{partition}] is over the limit "
                    f"of {limit}; raise record_bytes_max and the topic's max.message.bytes together"
                )
            total += size
        return total

    def _has_room(self, count: int, nbytes: int) -> bool:
        # An idle producer takes one call of any size, else a call over the bound would wait for ever.
        return self._records == 0 or (
            self._records + count <= self.spec.in_flight_records_max
            and self._bytes + nbytes <= self.spec.in_flight_bytes_max
        )

    async def _wait_for_room(self, count: int, nbytes: int) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (count, nbytes, waiter)
        self._waiting.append(entry)
        try:
            await waiter
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif waiter.done() and not waiter.cancelled():
                self._release(count, nbytes)  # room was reserved for a caller that has gone
            raise
        self._records -= count  # _submit takes the reservation over
        self._bytes -= nbytes

    def _submit(self, records: Sequence[OutgoingRecord], nbytes: int) -> "asyncio.Future[list[int]]":
        self._require_usable()  # again: it may have been closed while a caller waited for room
        assert self._loop is not None
        future: asyncio.Future[list[int]] = self._loop.create_future()
        if not records:
            future.set_result([])
            return future
        call = _Call(len(records), nbytes, future, time.perf_counter())
        self._records += len(records)
        self._bytes += nbytes
        self._produce(call, records)
        return future

    def _produce(self, call: _Call, records: Sequence[OutgoingRecord]) -> None:
        queues = self._queues
        for index, record in enumerate(records):
            queue = queues.get(record[:2])
            if queue is None:
                queue = queues[record[:2]] = PartitionQueue(self._lock)
            item = (call, index, record)
            if queue.enter(call, item):
                self._hand_on(queue, item)

    def _hand_on(self, queue: _Queue, item: _Item) -> None:
        """Give a record to librdkafka. From either thread."""
        assert self._producer is not None
        call, index, (topic, partition, key, value) = item
        report = partial(self._delivered, queue, call, index, partition)
        try:
            self._producer.produce(topic, value, key, partition, report)
        except KafkaException as error:
            self._rejected.append((queue, call, error.args[0]))  # no report will come for it
        except BufferError:
            self._rejected.append((queue, call, KafkaError(KafkaError._QUEUE_FULL)))

    # -- the polling thread

    def _poll(self) -> None:
        producer = self._producer
        assert producer is not None
        while not self._stopping:
            producer.poll(_POLL_SECONDS)
            self._hand_over()
        producer.flush(self._flush_s)
        self._purged = True
        producer.purge()
        producer.poll(0)
        self._hand_over()

    def _hand_over(self) -> None:
        while self._rejected:
            queue, call, error = self._rejected.popleft()
            call.error = error
            self._count_down(queue, call)
        if not self._completed:
            return
        completed, self._completed = self._completed, []
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._resolve, completed)
        except RuntimeError:  # the loop was closed before us: nobody is left to be told
            self._stopping = True

    def _delivered(
        self,
        queue: _Queue,
        call: _Call,
        index: int,
        partition: int,
        error: KafkaError | None,
        message: Any,
    ) -> None:
        if error is None and message.partition() == partition:
            call.offsets[index] = message.offset()
        elif error is None:
            self._fatal = f"a record for partition {partition} went to {message.partition()}"
            call.error = KafkaError(KafkaError._FATAL, self._fatal)
        else:
            call.error = error
            if error.fatal():
                self._fatal = str(error)
        self._count_down(queue, call)

    def _count_down(self, queue: _Queue, call: _Call) -> None:
        call.left -= 1
        if call.left == 0:
            self._completed.append(call)
        for item in queue.settle():
            if self._purged:
                self._rejected.append((queue, item[0], KafkaError(KafkaError._PURGE_QUEUE)))
            else:
                self._hand_on(queue, item)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = str(error)
            log.critical("log producer %s: fatal: %s", self.spec.client_id, error)
            if self._on_fatal is not None:
                self._on_fatal(str(error))
        else:
            log.warning("%s (log producer %s)", error, self.spec.client_id)

    # -- back on the event loop

    def _resolve(self, completed: list[_Call]) -> None:
        now = time.perf_counter()
        for call in completed:
            self._finish(call, now)
        self._admit()

    def _finish(self, call: _Call, now: float) -> None:
        count = len(call.offsets)
        self._records -= count
        self._bytes -= call.nbytes
        self._observe(now - call.started)
        if call.error is None:
            self._count_ok.inc()
            self._count_records.inc(count)
            if not call.future.done():
                call.future.set_result(call.offsets)
            return
        metrics.APPENDS.labels(self.spec.client_id, "failed").inc()
        if not call.future.done():
            call.future.set_exception(self._translate(call))

    def _translate(self, call: _Call) -> Exception:
        error, count = call.error, len(call.offsets)
        acknowledged = sum(offset >= 0 for offset in call.offsets)
        assert error is not None
        text = f"{acknowledged} of {count} records acknowledged: {error.str()}"
        if self._fatal is not None:
            return ProducerFatalError(text)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and count == 1:
            return RecordTooLargeError(text)
        return LogAppendError(text, Outcome.UNKNOWN)

    def _admit(self) -> None:
        while self._waiting:
            count, nbytes, waiter = self._waiting[0]
            if not waiter.done():
                if self._fatal is not None:
                    waiter.set_exception(ProducerFatalError(f"the producer failed for good: {self._fatal}"))
                elif self._has_room(count, nbytes):
                    self._records += count
                    self._bytes += nbytes
                    waiter.set_result(None)
                else:
                    return
            self._waiting.popleft()

    def _release(self, count: int, nbytes: int) -> None:
        self._records -= count
        self._bytes -= nbytes
        self._admit()
