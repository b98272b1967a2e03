"""The part of the transport that runs in Faust's consumer thread: fetches, seeks, pauses, commits.

What differs from Faust's own thread:

* the fetch wait and minimum size are set (Faust hard-codes 1.5 s, which stalls a hot partition behind
  an idle long poll) and follow the load (`pacing`);
* an empty set of partitions fetches nothing (aiokafka reads it as "all of them");
* every seek of a partition carries a number, and what a fetch drained is tagged with the number of the
  last seek that had been carried out in this thread, so that the other side knows for certain whether
  records were taken before or after it;
* partitions that must not deliver are paused inside aiokafka, so that neither an unread answer nor a
  useless one holds up the fetches of the rest;
* records come as the parser made them: aiokafka's frozen dataclass costs more than all else about a record;
* a failed commit is reported, not a crash: it is only a hint, and the next one covers it.

Spec: §11 rule 1.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import aiokafka
from aiokafka.consumer import fetcher
from aiokafka.errors import CommitFailedError, ConsumerStoppedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage
from mode.threads import MethodQueue

from qim_streams.pacing import FetchPace, Hold

log = logging.getLogger(__name__)

_PREFETCH_BACKOFF_S = 0.01
_THREAD_CALLS = 8


def _record_itself(_: Any, __: TopicPartition, record: Any) -> Any:
    return record


def message_of(tp: TP, record: Any, generation_id: int) -> ConsumerMessage:
    """Faust's message of a record of `tp`; its time is in seconds."""
    key, value = record.key, record.value
    return ConsumerMessage(
        tp.topic,
        tp.partition,
        record.offset,
        record.timestamp / 1000.0,
        record.timestamp_type,
        record.headers,
        key,
        value,
        None,
        -1 if key is None else len(key),
        -1 if value is None else len(value),
        tp,
        generation_id=generation_id,
    )


class Drained(NamedTuple):
    """Records of one partition as they left aiokafka, and the last seek carried out before."""

    tp: TP
    seek_number: int
    records: list[Any]


class StreamConsumerThread(driver.AIOKafkaConsumerThread):
    """Faust's consumer thread with numbered seeks. Methods named `do_…` run inside the thread."""

    _method_queue: MethodQueue | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._seek_numbers: dict[TP, int] = {}
        spec = self.app.stream_spec
        self._pace = FetchPace(Hold(spec.fetch_min_bytes, spec.fetch_wait_ms))
        self.assignments = 0  # counted in the thread, before the main thread hears of one

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        # Every consumer of the process: a record stays what aiokafka's parser, in C, made of it (offset, key,
        # value, timestamp, headers). Neither topic and partition, which stand beside the list that it is in,
        # nor deserializers are used by any of them.
        fetcher.PartitionRecords._consumer_record = _record_itself
        consumer = super()._create_worker_consumer(transport)
        spec = self.app.stream_spec
        # Read by aiokafka when the consumer starts; Faust passes neither on.
        consumer._fetch_max_wait_ms = spec.fetch_wait_ms
        consumer._fetch_min_bytes = spec.fetch_min_bytes
        return consumer

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Pause every source until its start position is known, then go on as Faust does."""
        self.assignments += 1
        sources = [tp for tp in assigned if tp.topic in self.app.stream_sources]
        self._pause(sources)
        await super().on_partitions_assigned(assigned, generation_id)

    # -- called from the main thread

    async def fetch(self, partitions: frozenset[TP], timeout_s: float) -> list[Drained]:
        """What is there for `partitions`, waiting up to `timeout_s` for the first record."""
        return cast(list[Drained], await self.call_thread(self.do_fetch, partitions, timeout_s))

    async def seek_numbered(self, tp: TP, offset: int, number: int) -> bool:
        """Seek and resume one partition; False if it is not assigned any more."""
        return cast(bool, await self.call_thread(self.do_seek, tp, offset, number))

    async def pause_fetching(self, partitions: Iterable[TP], assignment: int) -> None:
        """Stop fetching `partitions` until they are assigned again.

        Nothing happens when `assignment` (see `assignments`) is over: a pause that came late would stop
        the table recovery of the next one for good.
        """
        await self.call_thread(self.do_pause, tuple(partitions), assignment)

    @property
    def method_queue(self) -> MethodQueue:
        """The queue of calls into this thread. Two workers (the default) would both be taken by a fetch
        and one call that waits for a broker, and hold up commits and seeks."""
        if self._method_queue is None:
            self._method_queue = MethodQueue(
                num_workers=_THREAD_CALLS, loop=self.thread_loop, beacon=self.beacon
            )
        return self._method_queue

    async def log_ends(self, partitions: Iterable[TP], timeout_s: float) -> dict[TP, int]:
        """The next offset to be written, per partition; TimeoutError after `timeout_s`."""
        return cast("dict[TP, int]", await self.call_thread(self.do_log_ends, tuple(partitions), timeout_s))

    async def group_offset(self, tp: TP, timeout_s: float) -> int | None:
        """What the group has committed of `tp`, None for nothing; TimeoutError or KafkaError."""
        return cast("int | None", await self.call_thread(self.do_group_offset, tp, timeout_s))

    def fetch_position(self, tp: TP) -> int | None:
        """The next offset that aiokafka will ask for; None when unknown. Read from any thread."""
        assignment = self._ensure_consumer()._subscription.subscription.assignment
        state = assignment.state_value(TopicPartition(*tp)) if assignment is not None else None
        return cast("int | None", state._position) if state is not None else None

    # -- inside the thread

    async def on_start(self) -> None:
        """Start the consumer, then shorten aiokafka's wait for unread records (0.1 s by default).

        While a partition's answer is unread, aiokafka holds back the fetches of all others on that
        broker; a lane under pressure would slow its neighbours down.
        """
        await super().on_start()
        self._ensure_consumer()._fetcher._prefetch_backoff = _PREFETCH_BACKOFF_S

    async def do_fetch(self, partitions: frozenset[TP], timeout_s: float) -> list[Drained]:
        """The body of `fetch`."""
        if not partitions or not self.consumer.flow_active:
            return []
        consumer = self._ensure_consumer()
        fetches = consumer._fetcher
        if consumer._closed or fetches._closed:
            raise ConsumerStoppedError
        with fetches._subscriptions.fetch_context():
            drained = await fetches.fetched_records(partitions, timeout=timeout_s, max_records=None)
        hold = self._pace.note(sum(map(len, drained.values())), time.monotonic())
        # Read by aiokafka for each request.
        fetches._fetch_min_bytes, fetches._fetch_max_wait_ms = hold
        numbers = self._seek_numbers
        return [
            Drained(TP(tp.topic, tp.partition), numbers.get(tp, 0), records)
            for tp, records in drained.items()
        ]

    async def do_seek(self, tp: TP, offset: int, number: int) -> bool:
        """The body of `seek_numbered`. No await between the seek and its number: see the module text."""
        consumer = self._ensure_consumer()
        try:
            consumer.seek(TopicPartition(*tp), offset)
        except IllegalStateError:
            return False
        self._seek_numbers[tp] = number
        self._resume([tp])
        return True

    async def _seek_wait(self, consumer: aiokafka.AIOKafkaConsumer, partitions: Mapping[TP, int]) -> None:
        # Recovery's seek of changelog partitions, numbered like the others.
        read_offset = self.consumer._read_offset
        for tp, offset in partitions.items():
            consumer.seek(TopicPartition(*tp), offset)
            self._seek_numbers[tp] = self.consumer.next_seek_number(tp)
            if offset > 0:
                read_offset[tp] = offset
            else:
                read_offset.pop(tp, None)
        await asyncio.wait_for(
            asyncio.gather(*(consumer.position(TopicPartition(*tp)) for tp in partitions)),
            timeout=self.app.conf.broker_request_timeout,
        )

    async def do_log_ends(self, partitions: tuple[TP, ...], timeout_s: float) -> dict[TP, int]:
        """The body of `log_ends`. The bound is inside the thread, so that no call stays behind in it."""
        consumer = self._ensure_consumer()
        asked = [TopicPartition(*tp) for tp in partitions]
        ends = await asyncio.wait_for(consumer.end_offsets(asked), timeout_s)
        return {TP(*tp): offset for tp, offset in ends.items()}

    async def do_group_offset(self, tp: TP, timeout_s: float) -> int | None:
        """The body of `group_offset`."""
        consumer = self._ensure_consumer()
        return cast("int | None", await asyncio.wait_for(consumer.committed(TopicPartition(*tp)), timeout_s))

    async def do_pause(self, partitions: tuple[TP, ...], assignment: int) -> None:
        """The body of `pause_fetching`."""
        if assignment == self.assignments:
            self._pause(partitions)

    def _pause(self, partitions: Iterable[TP]) -> None:
        consumer = self._ensure_consumer()
        assigned = consumer.assignment()
        consumer.pause(*(TopicPartition(*tp) for tp in partitions if tp in assigned))

    def _resume(self, partitions: Iterable[TP]) -> None:
        consumer = self._ensure_consumer()
        paused = consumer.paused()
        consumer.resume(*(TopicPartition(*tp) for tp in partitions if tp in paused))

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        consumer = self._ensure_consumer()
        assigned = consumer.assignment()
        wanted = {
            TopicPartition(*tp): OffsetAndMetadata(offset, "")
            for tp, offset in offsets.items()
            if tp in assigned
        }
        if not wanted:
            return False
        try:
            await consumer.commit(wanted)
        except (CommitFailedError, IllegalStateError) as error:
            log.info("commit refused, the group is rebalancing: %s", error)
            return False
        except KafkaError as error:
            log.warning("commit failed, the next one covers it: %s", error)
            return False
        return True
