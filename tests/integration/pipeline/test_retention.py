"""A real mailbox worker trims by age while messages come in, is killed, and goes on (E14; Spec: §5, §7)."""

import asyncio
from functools import partial
from itertools import pairwise
from random import Random

import pytest

from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.errors import SyncVerdict
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.placement import lane_of_ordinal, outbox_partition
from qim_streams.redis_tier import connect
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sync.ports import MailboxAddress
from qim_streams.sync.pull import PullService
from tests.integration.pipeline.stages import TENANT, Stages
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

USERS = [f"u{number}" for number in range(12)]


def _partition(partitions: int, tenant_id: str, conversation_id: str) -> int:
    return outbox_partition(tenant_id, conversation_id, partitions)


def length(stages: Stages) -> int:
    """Entries in all mailboxes."""
    return sum(stages.redis.xlen(stages.mailbox_key(user)) for user in USERS)


def covered(stages: Stages) -> int:
    """How far W has come, all shards together."""
    return sum(min(stages.watermark(shard)) for shard in range(stages.settings.mailbox_shards))


async def judge_reader(stages: Stages, user: str) -> None:
    """From the start: CURSOR_EXPIRED if anything went; from the mark: everything that is left."""
    client = connect(stages.settings)
    place = partial(_partition, stages.settings.outbox_partitions)
    hot = RedisConversationStore(PartitionCalls(ScriptPipe(client)), 3_600, place)
    store = RedisMailboxStore(client)
    ordinal, shard = stages.ordinal(user), stages.shard(user)
    lane = lane_of_ordinal(ordinal)
    address = MailboxAddress(TENANT, user, "phone", ordinal, shard, lane)
    pulls, up_to = PullService(store, hot), (await store.watermark(shard)).lanes[lane]
    trim = await store.trim_watermark(shard, TENANT, ordinal)
    assert trim >= 0
    with pytest.raises(SyncVerdict, match="CURSOR_EXPIRED"):
        await pulls.pull(address, trim - 1, up_to, 1_000, 150_000)
    if trim < up_to:
        batch = await pulls.pull(address, trim, up_to, 1_000, 150_000)
        assert len(batch.events) == stages.redis.xlen(stages.mailbox_key(user))
    await client.aclose()


def test_entries_leave_by_age_and_w_goes_on(stages: Stages) -> None:
    """Two seconds of retention: mailboxes empty themselves, also after the worker was killed in between."""
    random = Random(4)
    stages.settings = stages.settings.model_copy(update={"mailbox_retention_s": 2})
    chats = [stages.direct(*pair) for pair in pairwise(USERS)]
    stages.hold_connection_leases()
    stages.start("fanout")
    stages.start("mailbox")
    for turn in range(3):
        before = covered(stages)
        for _ in range(60):
            chat = random.choice(chats)
            stages.send(chat, random.choice(chat.members))
        stages.flush()
        eventually_sync(lambda goal=before: covered(stages) > goal, 40, "W to move")
        if turn == 1:
            stages.workers.pop("mailbox-0").kill()
            stages.start("mailbox")
        eventually_sync(lambda: length(stages) == 0, 40, "every mailbox to be empty")
    eventually_sync(lambda: not stages.redis.keys("*:oldest"), 10, "nothing left to find")
    assert not stages.redis.keys("*:mb:*")
    for user in USERS:
        asyncio.run(judge_reader(stages, user))
    stages.judge_outbox()
