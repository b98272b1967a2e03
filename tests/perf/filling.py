"""Messages in the Outbox before anybody reads it: committed by the real writer on the real Redis.

The writer's services run in this process; their Outbox is a list, which goes to the broker in parts. So the
records are those of production, byte by byte, and everything that the stages read beside them is there:
ordinals, members, bodies, and a device online for every user. Who writes where comes from a seed.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.kafka_outbox import OUTBOX_TOPIC
from qim_streams.commit.lane_services import SendJob
from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.ports import OutboxAppend
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.ids import direct_conversation_id
from qim_streams.log_ports import Outgoing
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.membership.redis_reader import RedisMembershipReader
from qim_streams.membership.redis_store import RedisMembershipStore
from qim_streams.ownership.ports import Grant
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.placement import mailbox_shard, outbox_partition
from qim_streams.records import Presence, record_key
from qim_streams.redis_tier import RedisClient
from qim_streams.roles.tracing import partition_of
from qim_streams.runtime import now_ms
from qim_streams.script_pipe import ScriptPipe
from qim_streams.settings import Settings
from qim_streams.streaming.producer import LogProducer, ProducerSpec
from qim_streams.testing.memory_tier import MemoryHotTier
from qim_streams.testing.memory_writer import WriterRig
from tests.perf.processes import MeasurementError

TENANT, DEVICE, NODE = "t", "phone", "perf"
PRESENCE_TOPIC = "qim.presence.v1"
WAVE = 4_096  # messages handed to the writer at once
APPEND = 5_000
LEASE_MS = 3_600_000  # of the gateways that we pretend to be
RETENTION_S = 86_400
MEMBERS_MAX = 100_000
CHATS_MIN, CHATS_OF_A_USER = 8, 10
NEVER_S = 1e18


class Workload(NamedTuple):
    """`group` 0: direct chats; else groups of that many. A user is in about ten conversations."""

    messages: int
    users: int
    group: int
    body: int
    seed: int
    first: int = 0  # number of the first message: a second filling goes on where the first one ended

    @property
    def name(self) -> str:
        """As the command line has it."""
        return f"group:{self.group}" if self.group else "direct"


def chats_of(workload: Workload) -> int:
    """How many conversations there are, or a few less: each gets one of the first so many messages."""
    return max(CHATS_MIN, CHATS_OF_A_USER * workload.users // (workload.group or 2))


@dataclass(slots=True)
class Tally:
    """What lies in a topic of Outbox records, and what must come out of it."""

    messages: int = 0
    dispatches: int = 0
    entries: int = 0
    pushes: int = 0  # devices to be told: one per recipient, the one that sent aside
    nbytes: int = 0

    def add(self, record: OutboxAppend, recipients: int, shards: int) -> None:
        """Count one message."""
        self.messages += 1
        self.dispatches += shards
        self.entries += recipients
        self.pushes += recipients - 1
        self.nbytes += len(record.value)

    def __add__(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(*(getattr(self, name) + getattr(other, name) for name in Tally.__slots__))


class Filled(NamedTuple):
    """`writer_us`: this process's CPU per message (writer and Redis client; no broker, no RPC)."""

    tallies: dict[str, Tally]
    writer_us: float


class Filler:
    """Fills one stack. `copies`: further topics that get the first so many records of the Outbox."""

    def __init__(
        self, settings: Settings, client: RedisClient, copies: Mapping[str, int] | None = None
    ) -> None:
        self._settings = settings
        self._limits = {OUTBOX_TOPIC: 2**63, **(copies or {})}
        self._log: list[OutboxAppend] = []
        self._epochs: dict[int, int] = {}
        self._shards: dict[bytes, int] = {}  # key of a conversation -> shards that its members are in
        self._leases = RedisLeaseStore(client)
        self._place = partial(partition_of, settings.outbox_partitions)
        pipe = ScriptPipe(client)
        calls = PartitionCalls(pipe)
        self._directory = RedisOrdinalDirectory(client, pipe)
        self._rig = WriterRig(
            MemoryHotTier(self._place),
            self._log,
            now_ms=now_ms,
            queue_max=2 * WAVE,
            conversations=RedisConversationStore(calls, RETENTION_S, self._place),
            membership=RedisMembershipStore(client, calls, self._place),
            reader=RedisMembershipReader(client, self._place),
            directory=self._directory,
            leases=self._leases,
            members_max=MEMBERS_MAX,
            mailbox_shards=settings.mailbox_shards,
        )

    async def fill(self, workload: Workload) -> Filled:
        """Commit the messages and append them to the Outbox, acknowledged."""
        users = [f"user-{number:06d}" for number in range(workload.users)]
        ordinals = dict(zip(users, await self._directory.assign(TENANT, users), strict=True))
        producer = LogProducer(ProducerSpec(self._settings.brokers, "perf-filler"))
        await producer.start()
        try:
            await self._own_partitions()
            self._log.clear()  # the barriers of a new owner: readers have nothing to do for them
            await self._say_online(producer, ordinals)
            requests = await self._requests(workload, users, ordinals)
            return await self._commit_all(producer, requests, workload.group or 2)
        finally:
            await self._rig.writer.close(30)
            await producer.close()

    async def _own_partitions(self) -> None:
        for partition in range(self._settings.outbox_partitions):
            grant = await self._leases.acquire(f"ob:{partition}", NODE, 1, "127.0.0.1:1", LEASE_MS)
            assert isinstance(grant, Grant), f"partition {partition} is held by {grant}"
            self._epochs[partition] = grant.epoch
            await self._rig.writer.grant(grant).ready.wait()

    async def _say_online(self, producer: LogProducer, ordinals: Mapping[str, int]) -> None:
        settings, epochs = self._settings, []
        for shard in range(settings.connection_shards):
            grant = await self._leases.acquire(f"cs:{shard}", NODE, 1, "127.0.0.1:1", LEASE_MS)
            assert isinstance(grant, Grant), f"ConnectionShard {shard} is held by {grant}"
            epochs.append(grant.epoch)
        records = []
        for number, (user, ordinal) in enumerate(ordinals.items()):
            shard = number % settings.connection_shards
            connection = epochs[shard] << 32 | number
            presence = Presence(TENANT, user, ordinal, DEVICE, shard, connection, 1, now_ms())
            place = mailbox_shard(TENANT, user, settings.mailbox_shards)
            records.append(
                Outgoing(PRESENCE_TOPIC, place, record_key(TENANT, user, DEVICE), presence.encode())
            )
        await _append(producer, records)

    async def _requests(
        self, workload: Workload, users: Sequence[str], ordinals: Mapping[str, int]
    ) -> Iterator[SendRequest]:
        chance = random.Random(workload.seed)
        size = workload.group or 2
        chats: dict[str, list[str]] = {}
        for number in range(chats_of(workload)):
            members = chance.sample(users, size)
            chat = f"g.{number}" if workload.group else direct_conversation_id(TENANT, *members)
            chats[chat] = members
            self._shards[record_key(TENANT, chat)] = self._shard_count(members)
        if workload.group:
            for chat, members in chats.items():
                await self._make_group(chat, members)
        # A pair that was drawn twice leaves a chat less.
        sends = random.Random(f"{workload.seed}/{workload.first}")
        return _sends(workload, list(chats.items()), ordinals, sends)

    async def _make_group(self, group: str, members: Sequence[str]) -> None:
        partition = outbox_partition(TENANT, group, self._settings.outbox_partitions)
        command = GroupCommand(GroupOp.CREATE, TENANT, members[0], group, tuple(members[1:]))
        await self._rig.groups.execute(partition, self._epochs[partition], command)

    def _shard_count(self, users: Sequence[str]) -> int:
        return len({mailbox_shard(TENANT, user, self._settings.mailbox_shards) for user in users})

    async def _commit_all(
        self, producer: LogProducer, requests: Iterator[SendRequest], recipients: int
    ) -> Filled:
        tallies = {topic: Tally() for topic in self._limits}
        spent, count = 0.0, 0
        while wave := list(islice(requests, WAVE)):
            before = time.process_time()
            await commit(self._rig, wave)
            spent, count = spent + time.process_time() - before, count + len(wave)
            if len(self._log) != len(wave):
                raise MeasurementError(f"{len(wave)} messages made {len(self._log)} Outbox records")
            for topic, tally in tallies.items():
                part = self._log[: max(0, self._limits[topic] - tally.messages)]
                await _append(producer, [Outgoing(topic, one.partition, one.key, one.value) for one in part])
                for one in part:
                    tally.add(one, recipients, self._shards[one.key])
            self._log.clear()
        return Filled(tallies, spent / max(count, 1) * 1e6)


def _sends(
    workload: Workload,
    chats: Sequence[tuple[str, Sequence[str]]],
    ordinals: Mapping[str, int],
    chance: random.Random,
) -> Iterator[SendRequest]:
    body = chance.randbytes(workload.body)
    for number in range(workload.first, workload.first + workload.messages):
        chat, members = chats[number] if number < len(chats) else chance.choice(chats)
        sender = chance.choice(members)
        peer = None if workload.group else members[members[0] == sender]
        yield SendRequest(TENANT, chat, sender, ordinals[sender], DEVICE, f"m{number}", body, peer)


async def commit(rig: WriterRig, requests: Sequence[SendRequest]) -> None:
    """Have the writer commit `requests`; MeasurementError when one is refused."""
    done, left = asyncio.get_running_loop().create_future(), len(requests)

    def reply(outcome: SendOutcome) -> None:
        nonlocal left
        left -= 1
        if done.done():
            return
        if outcome.status is not SendStatus.COMMITTED:
            done.set_exception(MeasurementError(f"the writer answered {outcome}"))
        elif not left:
            done.set_result(None)

    rig.writer.submit([SendJob(request, reply, NEVER_S) for request in requests])
    await done


async def _append(producer: LogProducer, records: Sequence[Outgoing]) -> None:
    for start in range(0, len(records), APPEND):
        await producer.append(records[start : start + APPEND])
