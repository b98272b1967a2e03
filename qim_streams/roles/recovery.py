"""What puts an Outbox partition's hot tier back, put together: for the writer, and for ``qim repair``.

Spec: §14.4.
"""

from typing import NamedTuple

from qim_streams.archive.ports import ArchiveReader
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.kafka_outbox import MEMBERSHIP_TOPIC, OUTBOX_TOPIC
from qim_streams.commit.kafka_reader import KafkaLogReader
from qim_streams.commit.lost_range import LostRange
from qim_streams.commit.ports import ConversationStore
from qim_streams.commit.redis_acceptance import RedisAcceptance
from qim_streams.commit.redis_proof import RedisProof
from qim_streams.commit.repair import OutboxRepair
from qim_streams.membership.ports import MembershipReader, MembershipStore
from qim_streams.membership.presence_seats import OnlineSeats
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.membership.replay import MembershipReplay
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.redis_tier import RedisClient
from qim_streams.runtime import now_ms
from qim_streams.settings import Settings

PRESENCE_TOPIC = "qim.presence.v1"


class HotStores(NamedTuple):
    """The stores of one process on the hot tier; all share its numbered calls."""

    calls: PartitionCalls
    conversations: ConversationStore
    membership: MembershipStore
    reader: MembershipReader
    directory: RedisOrdinalDirectory


class Recovery:
    """The steps at the grant of a partition, before it is served. Close it after use."""

    def __init__(
        self, settings: Settings, redis: RedisClient, stores: HotStores, archive: ArchiveReader
    ) -> None:
        self._outbox = KafkaLogReader(settings.kafka, OUTBOX_TOPIC)
        self._changes = KafkaLogReader(settings.kafka, MEMBERSHIP_TOPIC)
        self._presence = KafkaLogReader(settings.kafka, PRESENCE_TOPIC)
        lost_range = LostRange(stores.conversations, self._changes, archive, RedisAcceptance(redis))
        self.repair = OutboxRepair(
            stores.conversations,
            self._outbox,
            archive,
            lost_range,
        )
        self.replay = MembershipReplay(
            stores.membership, stores.reader, self._changes, stores.directory, settings.mailbox_shards, now_ms
        )
        wholeness = RedisWholeness(redis, settings.outbox_partitions)
        self.seats = OnlineSeats(
            self._presence,
            stores.directory,
            wholeness,
            presence_partitions=settings.dispatch_partitions,
            outbox_partitions=settings.outbox_partitions,
        )
        self.proof = RedisProof(stores.calls, wholeness, stores.directory, self.seats)

    async def run(self, partition: int, epoch: int) -> tuple[int, int]:
        """Everything but the relay, which appends to the Outbox and is the writer's.

        (messages, versions) that were missing. Errors as of the steps; safe to repeat.
        """
        repaired = await self.repair.run(partition, epoch)
        versions = await self.replay.run(partition, epoch, repaired.versions)
        await self.seats.run(partition)
        await self.proof.prove(partition, epoch)
        return repaired.missing, versions

    async def close(self) -> None:
        """Let the connections go."""
        for reader in (self._outbox, self._changes, self._presence):
            await reader.close()
