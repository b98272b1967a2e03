"""§14.4 for membership, on a real Redis: what it forgot is made again out of the change log."""

import random

import pytest

from qim_streams.errors import AdmissionRefused
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.membership.ports import MembershipRow
from qim_streams.redis_tier import RedisClient
from qim_streams.testing.memory_outbox import MemoryMembershipLog
from qim_streams.testing.memory_writer import WriterRig
from tests.support import writer_rig
from tests.support.hot_tier import TENANT, redis_tier

SEED = 20_260_106
CHATS = ("g1", "g2")
USERS = tuple(f"u{n}" for n in range(10))
Everything = dict[str, tuple[object, ...]]


def rig_on(client: RedisClient, change_log: MemoryMembershipLog, boot: int) -> WriterRig:
    tier = redis_tier(client)
    for store in (tier.conversations, tier.membership, tier.reader):
        store._partition_of = lambda *_: 0  # type: ignore[union-attr, attr-defined]
    return writer_rig.rig_on(tier, [], boot, change_log, lambda *_: 0)


async def dump(client: RedisClient) -> dict[bytes, bytes]:
    return {key: await client.dump(key) for key in [k async for k in client.scan_iter()]}


async def load(client: RedisClient, dumped: dict[bytes, bytes], keep: tuple[bytes, ...] = ()) -> None:
    """The server as of the dump; keys that start with one of `keep` stay as they are."""
    kept = {key: value for key, value in (await dump(client)).items() if key.startswith(keep)} if keep else {}
    await client.flushdb()
    for key, value in (dumped | kept).items():
        await client.restore(key, 0, value)


async def change_at_random(rig: WriterRig, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        chat, user, other = rng.choice(CHATS), rng.choice(USERS), rng.choice(USERS)
        op = rng.choice((GroupOp.JOIN, GroupOp.LEAVE, GroupOp.ADD, GroupOp.UPDATE, GroupOp.SET_ROLE))
        command = GroupCommand(op, TENANT, user, chat)
        if op is GroupOp.ADD:
            command = GroupCommand(op, TENANT, None, chat, (user, other))
        elif op is GroupOp.SET_ROLE:
            command = GroupCommand(op, TENANT, None, chat, (user,), role=rng.choice(("admin", "member")))
        elif op is GroupOp.UPDATE:
            command = GroupCommand(op, TENANT, None, chat, fields={"name": f"n{rng.randrange(99)}"})
        try:
            await rig.groups.execute(0, rig.boot, command)
        except AdmissionRefused:
            continue
        if rng.random() < 0.3:
            await rig.writer.send(await rig.request(chat, user, f"m{rng.random()}"))


async def everything(rig: WriterRig) -> Everything:
    """All that later stages and history reads can see of the groups."""
    seen: Everything = {}
    for chat in CHATS:
        head = await rig.membership.conversation(TENANT, chat)
        assert head is not None
        wanted = [(TENANT, chat, version) for version in range(1, head.version + 1)]
        maps = await rig.reader.versions(wanted)
        cells = sorted({(TENANT, chat, *cell) for found in maps for cell in (found or {}).items()})
        rows = sorted(await rig.membership.everyone(TENANT, chat), key=lambda m: m.user_id)
        page = await rig.membership.page(TENANT, chat, "", 100)
        seen[chat] = (head, maps, await rig.reader.bitmaps(cells), rows, page)
    return seen


async def made(client: RedisClient, rng: random.Random, steps: int) -> tuple[WriterRig, MemoryMembershipLog]:
    change_log = MemoryMembershipLog()
    rig = rig_on(client, change_log, 1)
    await rig.take(0)
    for chat in CHATS:
        create = GroupCommand(GroupOp.CREATE, TENANT, "u0", chat, ("u1",), fields={"join_policy": "open"})
        await rig.groups.execute(0, 1, create)
    await change_at_random(rig, rng, steps)
    return rig, change_log


@pytest.mark.parametrize("steps", [5, 60, 300])
async def test_lost_versions_come_back_exactly(hot_client: RedisClient, steps: int) -> None:
    """A restart forgets the last changes: each version means the same as before, edges included."""
    rng = random.Random(SEED + steps)
    rig, change_log = await made(hot_client, rng, 40)
    disk = await dump(hot_client)
    await change_at_random(rig, rng, steps)
    await rig.writer.close(5)
    before = await everything(rig)
    log = rig.outbox.log
    await load(hot_client, disk, keep=(b"{o:",))
    heir = rig_on(hot_client, change_log, 2)
    heir.outbox.log.extend(log)
    await heir.take(0)
    assert await everything(heir) == before
    assert await heir.membership.unsettled(0, 2, 9) == []
    await change_at_random(heir, rng, 20)


async def test_nothing_is_read_again_that_is_known(hot_client: RedisClient) -> None:
    rig, change_log = await made(hot_client, random.Random(SEED), 30)
    assert await rig.membership.logged(0, 1) == len(change_log.rows) - 1
    before = await everything(rig)
    await rig.writer.close(5)
    heir = rig_on(hot_client, change_log, 2)
    starts: list[int] = []
    read = change_log.read

    def watched(partition: int, start: int) -> object:
        starts.append(start)
        return read(partition, start)

    change_log.read = watched  # type: ignore[method-assign, assignment]
    await heir.take(0)
    assert starts == [len(change_log.rows)]
    assert await everything(heir) == before


async def test_a_version_that_messages_were_sent_under_is_not_made_again(hot_client: RedisClient) -> None:
    """T-R2: the change was never answered and is in no log; a message under its version is in the Outbox."""
    rig, change_log = await made(hot_client, random.Random(SEED), 0)
    disk = await dump(hot_client)
    before = await rig.membership.conversation(TENANT, "g1")
    assert before is not None
    rows = len(change_log.rows)
    await rig.groups.execute(0, 1, GroupCommand(GroupOp.ADD, TENANT, None, "g1", ("u5",)))
    await rig.writer.send(await rig.request("g1", "u0", "m1"))
    await rig.writer.close(5)
    del change_log.rows[rows:]
    await load(hot_client, disk, keep=(b"{o:",))

    heir = rig_on(hot_client, change_log, 2)
    heir.outbox.log.extend(rig.outbox.log)
    await heir.take(0)
    head = await heir.membership.conversation(TENANT, "g1")
    assert head is not None
    assert (head.version, head.members_active, head.seq) == (before.version + 1, before.members_active, 1)
    maps = await heir.reader.versions([(TENANT, "g1", head.version - 1), (TENANT, "g1", head.version)])
    assert maps[0] == maps[1] is not None
    assert await heir.changes.settle_all(0, 2) == 1  # so that it is not lost once more
    assert len(change_log.rows) > rows
    state = await heir.groups.execute(0, 2, GroupCommand(GroupOp.ADD, TENANT, None, "g1", ("u6",)))
    assert state.conversation.version == head.version + 1


@pytest.mark.parametrize("compacted", [False, True])
async def test_an_emptied_store_is_made_again(hot_client: RedisClient, compacted: bool) -> None:
    """The whole hot tier is gone. Of a compacted log the last version is exact, older ones are not there."""
    rig, change_log = await made(hot_client, random.Random(SEED), 200)
    await rig.writer.close(5)
    before = await everything(rig)
    log = rig.outbox.log
    await load(hot_client, {}, keep=(b"{o:", b"{ob:0}:epoch", b"{ob:0}:lease"))
    heir = rig_on(hot_client, _compacted(change_log) if compacted else change_log, 2)
    heir.outbox.log.extend(log)
    await heir.take(0)
    after = await everything(heir)
    if not compacted:
        assert after == before
        return
    for chat in CHATS:
        assert (after[chat][0], after[chat][3], after[chat][4]) == (
            before[chat][0],
            before[chat][3],
            before[chat][4],
        )
        (head, *_), version = after[chat], before[chat][0].version  # type: ignore[attr-defined]
        assert await _ordinals(heir, chat, version) == {m.ordinal for m in before[chat][4]}, head  # type: ignore[attr-defined]


def _compacted(full: MemoryMembershipLog) -> MemoryMembershipLog:
    """Only the last row of each key, in its place."""
    last = {row.key: offset for offset, row in enumerate(full.rows)}

    class Compacted(MemoryMembershipLog):
        async def read(self, partition: int, start: int):  # type: ignore[no-untyped-def, override]
            rows: list[MembershipRow] = full.rows
            yield [(o, rows[o].key, rows[o].value) for o in sorted(last.values()) if o >= start]

    return Compacted()


async def _ordinals(rig: WriterRig, chat: str, version: int) -> set[int]:
    from qim_streams.membership.bitmaps import decode

    (version_map,) = await rig.reader.versions([(TENANT, chat, version)])
    assert version_map is not None
    blobs = await rig.reader.bitmaps([(TENANT, chat, *cell) for cell in version_map.items()])
    return {ordinal for blob in blobs for ordinal in decode(blob or b"")}
