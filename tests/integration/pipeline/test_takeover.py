"""A MailboxShard changes its node, killed and replaced by another: what a device's cursor goes through.

E8, P7, T-X8; Spec: §7, §11.
"""

import asyncio
from functools import partial
from itertools import pairwise
from random import Random

import pytest

from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.errors import SyncVerdict
from qim_streams.gateway.redis_devices import RedisShardEpochs
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.placement import lane_of_ordinal, outbox_partition
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.ports import MailboxAddress
from qim_streams.sync.pull import PullService
from qim_streams.sync.redis_boundaries import RedisEpochBoundaries
from qim_streams.sync.service import SyncService
from tests.integration.pipeline.stages import TENANT, Conversation, Stages
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

USERS = [f"u{number}" for number in range(12)]
SIGNER = CursorSigner(b"k" * 32)


class Device:
    """A device as a gateway sees it: what it stored, its cursor, and the verdicts that it got."""

    def __init__(self, stages: Stages, client: RedisClient, user: str) -> None:
        mailboxes, epochs = RedisMailboxStore(client), RedisShardEpochs(client)
        self.sync = SyncService(mailboxes, epochs, RedisEpochBoundaries(client), SIGNER)
        place = partial(_partition, stages.settings.outbox_partitions)
        hot = RedisConversationStore(PartitionCalls(ScriptPipe(client)), 3_600, place)
        self.pulls = PullService(mailboxes, hot)
        ordinal = stages.ordinal(user)
        lane = lane_of_ordinal(ordinal)
        self.address = MailboxAddress(TENANT, user, "phone", ordinal, stages.shard(user), lane)
        self.cursor: str | None = None
        self.stored: list[int] = []
        self.verdicts: list[str] = []
        self.epoch = 0

    async def session(self, pulls: int = 1_000) -> None:
        """AUTH, with what the verdicts ask for, and up to `pulls` batches of 7 entries."""
        opening = None
        while opening is None:
            try:
                opening = await self.sync.open(self.address, self.cursor)
            except SyncVerdict as verdict:
                self.verdicts.append(verdict.code)
                self.cursor = str(verdict.fields.get("new_cursor", ""))
        self.verdicts.append("AUTH_OK")
        self.epoch = opening.here.shard_epoch
        at, up_to = opening.after_seq, opening.sync_to_seq
        if self.cursor is None:
            self.cursor = self.sync.cursor(self.address, self.epoch, up_to)
            return
        while at < up_to and pulls:
            batch = await self.pulls.pull(self.address, at, up_to, 7, 100_000)
            self.stored += [event.mailbox_seq for event in batch.events]
            self.epoch = max(self.epoch, batch.shard_epoch)
            at, pulls = batch.covered_through_seq, pulls - 1
            self.cursor = self.sync.cursor(self.address, self.epoch, at)


def _partition(partitions: int, tenant_id: str, conversation_id: str) -> int:
    return outbox_partition(tenant_id, conversation_id, partitions)


def feed(stages: Stages, random: Random, chats: list[Conversation], count: int) -> None:
    for _ in range(count):
        chat = random.choice(chats)
        stages.send(chat, random.choice(chat.members))
    stages.flush()
    eventually_sync(stages.everything_is_mailboxed, 60, "everything to be mailboxed")


def test_another_node_takes_over_and_cursors_go_on(stages: Stages) -> None:
    """The old cursor is REBASED once, to where it was; the device misses nothing and gets nothing twice."""
    random = Random(20)
    chats = [stages.direct(*pair) for pair in pairwise(USERS)]
    stages.hold_connection_leases()
    stages.start("fanout")
    stages.start("mailbox")
    stages.wait_ready("mailbox")

    async def run() -> None:
        client = connect(stages.settings)
        devices = [Device(stages, client, user) for user in USERS]
        for device in devices:
            await device.session()
        before = [device.epoch for device in devices]
        await asyncio.to_thread(feed, stages, random, chats, 200)
        for device in devices:
            await device.session(pulls=2)  # somewhere in the middle

        stages.workers.pop("mailbox-0").kill()
        stages.start("mailbox", slot=1)  # another node: it has to wait for the leases to run out
        await asyncio.to_thread(stages.wait_ready, "mailbox", 1)
        await asyncio.to_thread(feed, stages, random, chats, 60)
        for device in devices:
            await device.session()
            await device.session()
        await client.aclose()

        assert [device.epoch for device in devices] == [epoch + 1 for epoch in before]
        for device in devices:
            assert device.verdicts == ["AUTH_OK", "AUTH_OK", "CURSOR_REBASED", "AUTH_OK", "AUTH_OK"]
            held = stages.redis.xrange(stages.mailbox_key(device.address.user_id))
            assert device.stored == [int(row_id.split(b"-")[0]) - 1 for row_id, _ in held]

    asyncio.run(run())
    stages.judge_mailboxes()
