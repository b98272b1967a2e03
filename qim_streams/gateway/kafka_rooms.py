"""RoomReader: the room log as a gateway needs it: those partitions that have a room here, from now on.

One consumer has all partitions assigned and paused; one is read while a room of it is here. A partition of a
gateway without rooms costs nothing, and the consumer itself begins with the first room.

Invariants: what is appended after `watch` has returned is delivered, as long as the log keeps it; records
that nobody here wants are not decoded.

Spec: §10.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.kafka_access import Brokers, access_of
from qim_streams.pacing import FetchPace, Hold
from qim_streams.rooms.appends import TOPIC
from qim_streams.rooms.ports import LogRow

log = logging.getLogger(__name__)

RECORDS_MAX: Final = 1_000
FETCH_WAIT_MS: Final = 100  # of the broker, when there is nothing; data comes at once
POLL_MS: Final = 1_000
BACK_OFF_S: Final = 0.5
# What a writer has appended and not yet seen acknowledged when it answers is in neither its window nor behind
# the end of the log: the reading begins a little before the end.
OVERLAP: Final = 500
WATCH_TIMEOUT_S: Final = 10.0

Deliver = Callable[[int, Sequence[LogRow]], Awaitable[None]]


class RoomReader:
    """`wants(key)` is asked per record, `deliver(partition, rows)` per poll."""

    def __init__(self, brokers: Brokers, client_id: str, partitions: int) -> None:
        self._brokers, self._client_id, self._partitions = brokers, client_id, partitions
        self._consumer: Any = None
        self._turn = asyncio.Lock()
        self._began = asyncio.Event()
        self._watched: dict[int, int] = {}  # partition -> end of the log when the watch began
        self._pace = FetchPace(Hold(1, FETCH_WAIT_MS))

    async def watch(self, partition: int) -> int:
        """See `gateway.rooms.Watcher`."""
        async with self._turn:
            found = self._watched.get(partition)
            if found is not None:
                return found
            try:
                async with asyncio.timeout(WATCH_TIMEOUT_S):
                    return await self._watch(partition)
            except (KafkaError, OSError, TimeoutError) as error:
                what = f"room log: {type(error).__name__}: {error}"
                raise StoreUnavailable(what, Outcome.NOT_APPLIED) from error

    async def _watch(self, partition: int) -> int:
        consumer = self._consumer or await self._begin()
        place = TopicPartition(TOPIC, partition)
        first = (await consumer.beginning_offsets([place]))[place]
        end: int = (await consumer.end_offsets([place]))[place]
        consumer.seek(place, max(first, end - OVERLAP))
        consumer.resume(place)
        self._watched[partition] = end
        log.info("reading %s[%d] from %d on", TOPIC, partition, end)
        return end

    async def _begin(self) -> Any:
        consumer = AIOKafkaConsumer(
            **access_of(self._brokers).aiokafka(),
            client_id=self._client_id,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        try:
            await consumer.start()
        except BaseException:
            await consumer.stop()
            raise
        places = [TopicPartition(TOPIC, number) for number in range(self._partitions)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)  # a position of its own, so that none is looked for
        consumer.pause(*places)
        self._consumer = consumer
        self._began.set()
        return consumer

    def unwatch(self, partition: int) -> None:
        """See `gateway.rooms.Watcher`."""
        if self._watched.pop(partition, None) is not None:
            self._consumer.pause(TopicPartition(TOPIC, partition))

    async def run(self, wants: Callable[[bytes], bool], deliver: Deliver) -> None:
        """Deliver for ever."""
        await self._began.wait()
        while True:
            try:
                found = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=RECORDS_MAX)
            except OffsetOutOfRangeError as error:
                await self._skip(error)
                continue
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("room log: %s: %s", type(error).__name__, error)
                await asyncio.sleep(BACK_OFF_S)
                continue
            self._hold(sum(map(len, found.values())))
            for place, records in found.items():
                keyed = ((one.offset, one.key or b"", one.value or b"") for one in records)
                rows = [row for row in keyed if wants(row[1])]
                if rows and place.partition in self._watched:
                    await deliver(place.partition, rows)

    def _hold(self, records: int) -> None:
        fetcher = self._consumer._fetcher
        # Read by aiokafka for each request.
        fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms = self._pace.note(records, time.monotonic())

    async def _skip(self, error: OffsetOutOfRangeError) -> None:
        """The log no longer has our position: go on at its end. Devices see the gap in the numbers."""
        log.warning("room log: %s; going on at its end", error)
        try:
            places = [TopicPartition(TOPIC, number) for number in self._watched]
            for place, end in (await self._consumer.end_offsets(places)).items():
                self._consumer.seek(place, end)
        except (KafkaError, OSError, TimeoutError) as failure:
            log.warning("room log: %s: %s", type(failure).__name__, failure)
            await asyncio.sleep(BACK_OFF_S)

    async def stop(self) -> None:
        """End the consumer. `run` has ended."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()
