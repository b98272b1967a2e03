"""Reads one partition of the push log, from its end, without a consumer group.

Push is best effort: nothing is committed, a gateway that starts has no sessions that missed anything.
While it runs, it keeps its own position; if the log no longer has that position, it goes to the end and
says so (`on_gap`), and the sessions fill what they missed from their mailboxes.

A broker that does not answer raises no error here: the driver tries again and says nothing. `silent_s`
tells for how long, and others decide what that means.

Invariants: records come to `deliver` in offset order, one batch at a time; a record that cannot be
decoded is counted and skipped; an error of the broker never ends the reader.

Spec: §6.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition

from qim_streams.errors import RecordError, StoreUnavailable
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.kafka_access import Brokers, access_of
from qim_streams.pacing import FetchPace, Hold
from qim_streams.records import PushBatch, decode_push

log = logging.getLogger(__name__)

RECORDS_MAX: Final = 500
FETCH_WAIT_MS: Final = 100  # of the broker, when there is nothing; data comes at once
POLL_MS: Final = 1_000
BACK_OFF_S: Final = 0.5
REQUEST_TIMEOUT_MS: Final = 10_000  # then a link that swallows everything is given up, and made anew

Deliver = Callable[[Sequence[PushBatch]], Awaitable[None]]


class PushReader:
    """One consumer for one partition at a time."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        client_id: str,
        *,
        deliver: Deliver,
        on_gap: Callable[[], object],
        counters: GatewayCounters,
    ) -> None:
        self._brokers, self._topic, self._client_id = brokers, topic, client_id
        self._deliver, self._on_gap, self._counters = deliver, on_gap, counters
        self._pace = FetchPace(Hold(1, FETCH_WAIT_MS))
        self._consumer: Any = None
        self._task: asyncio.Task[None] | None = None
        self._answered_at = 0.0  # by our clock
        self._answer: int | None = None  # the driver's mark of the last answer: compared, never subtracted
        self._delivering = False

    @property
    def is_reading(self) -> bool:
        """Whether a partition is being read."""
        return self._task is not None and not self._task.done()

    @property
    def silent_s(self) -> float:
        """For how long the log has not answered a fetch; 0 while a batch is being delivered."""
        return 0.0 if self._delivering else time.monotonic() - self._answered_at

    async def start(self, partition: int) -> None:
        """Read `partition` from its present end on. StoreUnavailable when the log does not answer.

        When this returns, everything appended from now on will be delivered.
        """
        await self.stop()
        place = TopicPartition(self._topic, partition)
        consumer = AIOKafkaConsumer(
            **access_of(self._brokers).aiokafka(),
            client_id=self._client_id,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        try:
            await consumer.start()
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            consumer.seek(place, end)
        except (KafkaError, OSError, TimeoutError) as error:
            await consumer.stop()
            raise StoreUnavailable(f"push log: {type(error).__name__}: {error}") from error
        self._consumer = consumer
        self._answered_at, self._answer = time.monotonic(), None
        self._task = asyncio.get_running_loop().create_task(self._run(place), name="push-reader")
        log.info("reading %s[%d] from %d on", self._topic, partition, end)

    async def stop(self) -> None:
        """Stop reading. Safe to repeat."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def _run(self, place: TopicPartition) -> None:
        while True:
            try:
                found = await self._consumer.getmany(place, timeout_ms=POLL_MS, max_records=RECORDS_MAX)
                records = found.get(place, ())
                self._note_answer(place, records)
                batches = self._decoded(records)
                self._hold(sum(len(batch.items) for batch in batches))
                if batches:
                    self._delivering = True
                    await self._deliver(batches)
            except OffsetOutOfRangeError:
                await self._skip_to_end(place)
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("push log: %s: %s", type(error).__name__, error)
                await asyncio.sleep(BACK_OFF_S)
            except Exception:
                # One batch is lost for the live streams; fills and pulls have it all the same.
                log.exception("a push batch could not be delivered")
                self._on_gap()
            finally:
                self._delivering = False

    def _note_answer(self, place: TopicPartition, records: Sequence[Any]) -> None:
        # A fetch that brings nothing is an answer, too: the driver marks each.
        answer = self._consumer.last_poll_timestamp(place)
        if records or answer != self._answer:
            self._answer, self._answered_at = answer, time.monotonic()
        if records:
            end = self._consumer.highwater(place) or 0
            self._counters.push_lag_records = max(0, end - records[-1].offset - 1)

    def _hold(self, events: int) -> None:
        fetcher = self._consumer._fetcher
        # Read by aiokafka for each request.
        fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms = self._pace.note(events, time.monotonic())

    def _decoded(self, records: Sequence[Any]) -> list[PushBatch]:
        batches = []
        for record in records:
            try:
                batches.append(decode_push(record.value or b""))
            except RecordError as error:
                self._counters.poison_batches += 1
                log.warning("push record %d is not a batch: %s", record.offset, error)
        return batches

    async def _skip_to_end(self, place: TopicPartition) -> None:
        try:
            end = (await self._consumer.end_offsets([place]))[place]
        except (KafkaError, OSError, TimeoutError) as error:
            log.warning("push log: %s: %s", type(error).__name__, error)
            await asyncio.sleep(BACK_OFF_S)
            return
        self._consumer.seek(place, end)
        log.warning("the push log no longer has our position; going on at its end, %d", end)
        self._on_gap()
