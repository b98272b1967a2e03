"""T-G2: joins and leaves racing with sends on a real Redis, checked exactly (I11, P10).

Three accounts of who should get a message must agree for every message: the bitmaps of the version that it
is pinned to (what later stages use), the intervals of the member rows (what history reads use), and a fold
of the changes in the order of their versions, done here. The members inside Outbox records are a fourth.
"""

import asyncio
import random
from collections import defaultdict

import pytest

from qim_streams.commit.outcome import SendStatus
from qim_streams.commit.ports import OutboxAppend
from qim_streams.errors import AdmissionRefused
from qim_streams.membership.bitmaps import decode
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.membership.rules import is_visible
from qim_streams.records import MessageRecord, decode_message, decode_outbox, unpack_ordinals
from qim_streams.redis_tier import RedisClient
from qim_streams.testing.memory_outbox import without_barriers
from qim_streams.testing.memory_tier import MemoryHotTier
from qim_streams.testing.memory_writer import WriterRig
from tests.support.hot_tier import PARTITIONS, SHARDS, TENANT, HotTier, partition_of, redis_tier

STEPS = 10_000
CHATS = ("g1", "g2", "g3", "g4")
MOVERS = tuple(f"m{n}" for n in range(9))
TASKS = 12

History = dict[str, dict[int, tuple[GroupOp, str]]]  # chat -> version -> what made it


def rig_on(tier: HotTier, log: list[OutboxAppend]) -> WriterRig:
    return WriterRig(
        MemoryHotTier(partition_of),
        log,
        conversations=tier.conversations,
        membership=tier.membership,
        reader=tier.reader,
        directory=tier.directory,
        leases=tier.leases,
        mailbox_shards=SHARDS,
    )


@pytest.mark.parametrize("seed", [20_260_103])
async def test_who_gets_a_message_is_exact(hot_client: RedisClient, seed: int) -> None:
    print(f"seed {seed}")
    tier, log = redis_tier(hot_client), []
    rig = rig_on(tier, log)
    await rig.take(*range(PARTITIONS))
    history: History = defaultdict(dict)
    for chat in CHATS:
        command = GroupCommand(GroupOp.CREATE, TENANT, "host", chat, fields={"join_policy": "open"})
        await rig.groups.execute(*_owned(rig, chat), command)
    steps = iter(range(STEPS))
    await asyncio.gather(*(_walk(rig, random.Random(seed + n), steps, history) for n in range(TASKS)))
    await rig.writer.close(10)
    messages = [decode_message(decode_outbox(one.value).message) for one in without_barriers(log)]
    assert len(messages) > STEPS // 5
    assert sum(map(len, history.values())) > STEPS // 5
    await _check(tier, log, messages, history)


def _owned(rig: WriterRig, chat: str) -> tuple[int, int]:
    owned = rig.writer.epoch_of(TENANT, chat)
    assert owned is not None
    return owned


async def _walk(rig: WriterRig, rng: random.Random, steps: object, history: History) -> None:
    """One client after the other: joins, leaves, sends, as it comes."""
    for step in steps:  # type: ignore[attr-defined]
        chat, user = rng.choice(CHATS), rng.choice(MOVERS)
        if rng.random() < 0.5:
            sender = rng.choice((user, "host"))
            request = (await rig.request(chat, sender, f"m{step}", b"%d" % step))._replace(tenant_id=TENANT)
            outcome = await rig.writer.send(request, 30)
            assert outcome.status is SendStatus.COMMITTED or outcome.code == "NOT_MEMBER"
            continue
        op = rng.choice((GroupOp.JOIN, GroupOp.LEAVE))
        try:
            state = await rig.groups.execute(*_owned(rig, chat), GroupCommand(op, TENANT, user, chat))
        except AdmissionRefused as refusal:
            if refusal.code != "NOT_MEMBER":
                raise
            continue
        history[chat].setdefault(state.conversation.version, (op, user))


async def _check(
    tier: HotTier, log: list[OutboxAppend], messages: list[MessageRecord], history: History
) -> None:
    users = ["host", *MOVERS]
    ordinals = dict(zip(users, await tier.directory.find(TENANT, users), strict=True))
    rows = {chat: await tier.membership.everyone(TENANT, chat) for chat in CHATS}
    pinned = sorted({(TENANT, m.conversation_id, m.membership_version) for m in messages})
    maps = dict(zip(pinned, await tier.reader.versions(pinned), strict=True))
    folded = {chat: _folded(history[chat]) for chat in CHATS}
    last: dict[str, tuple[int, int]] = dict.fromkeys(CHATS, (0, 0))
    for append, message in zip(without_barriers(log), messages, strict=True):
        chat, version, seq = message.conversation_id, message.membership_version, message.conversation_seq
        assert seq == last[chat][0] + 1
        assert version >= last[chat][1]
        last[chat] = (seq, version)
        version_map = maps[TENANT, chat, version]
        assert version_map is not None
        by_rows = {m.ordinal for m in rows[chat] if is_visible(m.intervals, seq)}
        assert by_rows == {ordinals[user] for user in folded[chat][version]}
        assert message.sender_ordinal in by_rows
        inline = decode_outbox(append.value).members
        assert inline is not None
        assert {o for _, packed in inline.values() for o in unpack_ordinals(packed)} == by_rows
        assert {shard: number for shard, (number, _) in inline.items()} == version_map
    for key, version_map in maps.items():
        assert version_map is not None
        blobs = await tier.reader.bitmaps([(*key[:2], *item) for item in version_map.items()])
        found = {ordinal for blob in blobs for ordinal in decode(blob or b"")}
        assert found == {ordinals[user] for user in folded[key[1]][key[2]]}


def _folded(changes: dict[int, tuple[GroupOp, str]]) -> dict[int, frozenset[str]]:
    """Members at each version, from the changes alone."""
    members = frozenset({"host"})
    versions = {1: members}
    for version in range(2, max(changes, default=1) + 1):
        op, user = changes.get(version, (None, ""))
        assert op is not None, f"nobody knows what made version {version}"
        members = members | {user} if op is GroupOp.JOIN else members - {user}
        versions[version] = members
    return versions
