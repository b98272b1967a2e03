"""Ends of logs, and positions and owners of consumer groups, asked of Kafka's admin API. Nothing is joined.

All calls of the driver happen in one thread. An answer is awaited for five seconds.

Spec: §11, §13.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from qim_streams.bounded_calls import BoundedCalls
from qim_streams.console.ports import GroupView, Place
from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.kafka_access import Brokers, access_of

TIMEOUT_S: Final = 5.0
CALLS_MAX: Final = 16

log = logging.getLogger(__name__)


class KafkaStageLog:
    """`StageLog` on Kafka. Connects at the first call; close it after use."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._calls = BoundedCalls("console groups", calls_max=CALLS_MAX)
        self._admin: AdminClient | None = None

    async def ends(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """See `StageLog.ends`."""
        return await self._calls.run(self._ends, list(topics))

    async def groups(self, names: Mapping[str, Sequence[Place]]) -> dict[str, GroupView]:
        """See `StageLog.groups`. A group that nobody ever joined is empty."""
        return await self._calls.run(self._groups, dict(names))

    async def close(self) -> None:
        """Let the connection go."""
        await self._calls.close(self._drop)

    # -- in the thread

    def _connected(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(
                {
                    **access_of(self._brokers).librdkafka(),
                    "client.id": "qim-console",
                    "socket.timeout.ms": 6_000,
                },
                logger=log,
            )
        return self._admin

    def _drop(self) -> None:
        self._admin = None

    def _ends(self, topics: list[str]) -> dict[str, list[int]]:
        try:
            known = self._connected().list_topics(timeout=TIMEOUT_S).topics
            counts = {
                topic: len(known[topic].partitions)
                for topic in topics
                if topic in known and known[topic].error is None
            }
            asked = {
                TopicPartition(topic, p): OffsetSpec.latest() for topic, n in counts.items() for p in range(n)
            }
            futures = self._connected().list_offsets(asked, request_timeout=TIMEOUT_S) if asked else {}
            found = {
                (one.topic, one.partition): future.result(TIMEOUT_S + 1).offset
                for one, future in futures.items()
            }
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error
        return {topic: [found[topic, p] for p in range(n)] for topic, n in counts.items()}

    def _groups(self, names: dict[str, Sequence[Place]]) -> dict[str, GroupView]:
        if not names:
            return {}
        admin = self._connected()
        described = admin.describe_consumer_groups(list(names), request_timeout=TIMEOUT_S)
        offsets = {
            name: admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(name, [TopicPartition(*place) for place in places])],
                request_timeout=TIMEOUT_S,
            )[name]
            for name, places in names.items()
            if places
        }
        found = {}
        for name in names:
            try:
                description = described[name].result(TIMEOUT_S + 1)
                told: Any = offsets[name].result(TIMEOUT_S + 1) if name in offsets else None
            except (KafkaException, TimeoutError) as error:
                raise self._unavailable(error) from error
            committed = {
                (one.topic, one.partition): one.offset
                for one in (told.topic_partitions if told is not None else ())
                if one.error is None and one.offset >= 0
            }
            found[name] = GroupView(str(description.state.name), committed, _owners(description))
        return found

    def _unavailable(self, error: object) -> StoreUnavailable:
        return StoreUnavailable(f"the broker at {self._brokers}: {error}", Outcome.NOT_APPLIED)


def _owners(description: Any) -> dict[Place, str]:
    owners = {}
    for member in description.members:
        name = str(member.group_instance_id or member.client_id or member.member_id)
        for place in member.assignment.topic_partitions if member.assignment is not None else ():
            owners[place.topic, place.partition] = name
    return owners
