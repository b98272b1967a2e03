"""Follows the presence log for the partitions of the shards that this worker serves.

A plain consumer without a group: the partitions are assigned by hand, read from the beginning to the end
as of the assignment, then live. Its positions are its own; nothing is committed. Records come to the
callback in partition order, at least once (an assignment may repeat some); the callback must not block.

Spec: §6.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from qim_streams.errors import StoreUnavailable
from qim_streams.kafka_access import Brokers, access_of
from qim_streams.log_ports import LogRecord
from qim_streams.push.ports import OnRecords

log = logging.getLogger(__name__)

RECORDS_MAX = 5_000  # handed over in one go
_FETCH_WAIT_MS = 100
_POLL_MS = 200
_POLL_AWAITED_MS = 20  # while a shard cannot be served before its partition is read, or more may follow
_MORE_S = 1.0  # after a partition was followed: a worker's shards come one after the other
_BACK_OFF_S = 0.5


class PresenceFollower:
    """`Follower` on Kafka: one consumer for all followed partitions.

    `fetch_wait_ms`: how long the broker keeps a fetch that finds nothing; a longer one costs less when idle.
    """

    def __init__(
        self, brokers: Brokers, topic: str, client_id: str, *, fetch_wait_ms: int = _FETCH_WAIT_MS
    ) -> None:
        self._brokers, self._topic, self._client_id = brokers, topic, client_id
        self._fetch_wait_ms = fetch_wait_ms
        self._on_records: OnRecords | None = None
        self._connecting = asyncio.Lock()
        self._consumer: Any = None
        self._task: asyncio.Task[None] | None = None
        self._next: dict[int, int] = {}  # partition -> next offset to apply
        self._waiting: dict[int, tuple[int, asyncio.Future[None]]] = {}
        self._changed = asyncio.Event()
        self._more_until_s = 0.0  # by the loop's clock

    def start(self, on_records: OnRecords) -> None:
        """See `Follower.start`."""
        self._on_records = on_records

    def failure(self) -> BaseException | None:
        """See `Follower.failure`."""
        task = self._task
        if task is None or not task.done():
            return None
        return None if task.cancelled() else task.exception() or RuntimeError("the reading task returned")

    async def follow(self, partition: int) -> None:
        """See `Follower.follow`."""
        await self._connect()
        place = TopicPartition(self._topic, partition)
        try:
            begin = (await self._consumer.beginning_offsets([place]))[place]
            end = (await self._consumer.end_offsets([place]))[place]
        except KafkaError as error:
            raise StoreUnavailable(f"presence log: {type(error).__name__}: {error}") from error
        self._next[partition] = begin
        self._more_until_s = asyncio.get_running_loop().time() + _MORE_S
        self._changed.set()
        if begin >= end:
            return
        caught_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[partition] = (end, caught_up)
        try:
            await caught_up
        finally:
            self._waiting.pop(partition, None)

    def unfollow(self, partitions: frozenset[int]) -> None:
        """See `Follower.unfollow`."""
        for partition in partitions:
            self._next.pop(partition, None)
        self._changed.set()

    async def close(self) -> None:
        """See `Follower.close`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def _connect(self) -> None:
        async with self._connecting:
            if self._consumer is not None:
                return
            consumer = AIOKafkaConsumer(
                **access_of(self._brokers).aiokafka(),
                client_id=self._client_id,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=self._fetch_wait_ms,
            )
            try:
                await consumer.start()
            except KafkaError as error:
                await consumer.stop()
                raise StoreUnavailable(f"presence log: {type(error).__name__}: {error}") from error
            self._consumer = consumer
            self._task = asyncio.get_running_loop().create_task(self._run(), name="presence-follower")

    async def _run(self) -> None:
        while True:
            if not self._next:
                self._changed.clear()
                await self._changed.wait()
                continue
            if self._changed.is_set():
                self._changed.clear()
                self._assign()
            try:
                found = await self._consumer.getmany(timeout_ms=self._poll_ms(), max_records=RECORDS_MAX)
            except KafkaError as error:
                log.warning("presence log: %s: %s", type(error).__name__, error)
                await asyncio.sleep(_BACK_OFF_S)
                continue
            for place, records in found.items():
                await self._apply(place.partition, records)
            await self._tell()

    def _poll_ms(self) -> int:
        """How long a poll that finds nothing may keep the next partition from being read."""
        awaited = self._waiting or asyncio.get_running_loop().time() < self._more_until_s
        return _POLL_AWAITED_MS if awaited else _POLL_MS

    def _assign(self) -> None:
        places = [TopicPartition(self._topic, partition) for partition in self._next]
        self._consumer.assign(places)
        for place in places:  # assigning forgets the positions of those that stay
            self._consumer.seek(place, self._next[place.partition])

    async def _apply(self, partition: int, records: Sequence[LogRecord]) -> None:
        if partition not in self._next or self._on_records is None:
            return
        await self._on_records(partition, records)
        if partition in self._next:
            self._next[partition] = max(self._next[partition], records[-1].offset + 1)

    async def _tell(self) -> None:
        """Wake those whose partition was read to the end; its last offsets may hold no record."""
        if self._changed.is_set():
            return  # positions are about to be set anew
        for partition, (end, caught_up) in list(self._waiting.items()):
            if partition not in self._next or caught_up.done():
                continue
            if self._next[partition] >= end:
                caught_up.set_result(None)
                continue
            position = await self._consumer.position(TopicPartition(self._topic, partition))
            if position >= end:
                caught_up.set_result(None)
