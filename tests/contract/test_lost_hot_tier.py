"""§14.4 on a real Redis that is emptied: everything that a writer needs is made again out of the logs.

The logs are in memory and keep what was acknowledged; Redis, its scripts and its loss are real. T-R2, D1, D2.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.ports import ArchivedMessage
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.lost_range import LostRange
from qim_streams.commit.redis_proof import RedisProof
from qim_streams.commit.repair import OutboxRepair
from qim_streams.errors import FencedError, StoreUnavailable
from qim_streams.membership.past import members_at
from qim_streams.membership.ports import MembershipRow, Unsettled
from qim_streams.membership.presence_seats import OnlineSeats
from qim_streams.membership.redis_directory import COUNTS_LEFT_OUT, RedisOrdinalDirectory
from qim_streams.ownership.ports import Grant
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.records import Presence, decode_message, decode_outbox, unpack_ordinals
from qim_streams.redis_tier import RedisClient
from qim_streams.script_pipe import ScriptPipe
from qim_streams.testing.memory_outbox import MemoryOutboxReader, without_barriers
from qim_streams.testing.memory_writer import WriterRig
from tests.support.hot_tier import PARTITIONS, SHARDS, TENANT, partition_of, redis_tier
from tests.support.lost_tier import GROUPS, World, everything

SEED = 20_261_130


async def lived(client: RedisClient, seed: int, steps: int = 150) -> tuple[World, dict[str, object]]:
    print(f"seed {seed}")
    world = World(client)
    rig = await world.boot()
    await world.live(rig, random.Random(seed), steps)
    before = await everything(world, rig)
    rig.kill()
    return world, before


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
async def test_everything_comes_back_after_a_flush(hot_client: RedisClient, seed: int) -> None:
    """D1, D2: heads, members, intervals, bitmaps, ordinals and records as before, and the same answers."""
    world, before = await lived(hot_client, seed)
    await hot_client.flushdb()
    rig = await world.boot()
    assert await everything(world, rig) == before
    for request, outcome in world.acked.values():
        assert await rig.writer.send(request, 10) == outcome, "the same answer as before the loss"
    await world.live(rig, random.Random(seed + 9), 60)
    places = [(one.conversation_id, one.conversation_seq) for one in world.messages()]
    assert len(set(places)) == len(places), "a number was used twice"


@pytest.mark.parametrize("seed", [SEED + 2, SEED + 3])
async def test_a_rebuild_that_is_killed_anywhere_is_taken_up_again(
    hot_client: RedisClient, seed: int
) -> None:
    """T-R2: after any number of calls of any boot; the next one makes the same thing."""
    world, before = await lived(hot_client, seed, steps=80)
    await hot_client.flushdb()
    rng, kills = random.Random(seed), 0
    for _ in range(200):
        rig = await world.boot(serve=False)
        if await _served_before(rig, rng.randrange(1, 60)):
            break
        kills += 1
    else:
        pytest.fail("no boot got through")
    print(f"{kills} boots were killed in their repair")
    assert kills > 3
    assert await everything(world, rig) == before


async def _served_before(rig: WriterRig, calls: int) -> bool:
    """Take all partitions; False when the process died at the call number `calls` of its repair."""
    left, dead, gone = calls, asyncio.Event(), asyncio.Event()

    def limited(call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def one(*args: object) -> object:
            nonlocal left
            left -= 1
            if left <= 0:
                dead.set()
                await gone.wait()
                raise asyncio.CancelledError  # the driver may have swallowed the one that was the kill
            return await call(*args)

        return one

    for store, name in (
        (rig.conversations, "restore"),
        (rig.membership, "restore"),
        (rig.directory, "restore"),
        (rig.conversations, "confirm"),
    ):
        setattr(store, name, limited(getattr(store, name)))
    taking = asyncio.create_task(rig.take(*range(PARTITIONS)))
    dying = asyncio.create_task(dead.wait())
    await asyncio.wait({taking, dying}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    assert taking.done() or dying.done(), f"neither served nor killed: {rig.deaths}"
    served = taking.done()
    for task in (taking, dying):
        task.cancel()
    await asyncio.gather(taking, dying, return_exceptions=True)
    if not served:
        rig.kill()
        gone.set()
        await asyncio.gather(*rig.writer.tasks, return_exceptions=True)
    assert not rig.deaths
    return served


@pytest.mark.parametrize("seed", [SEED + 4])
async def test_members_of_lost_versions_follow_from_their_intervals(
    hot_client: RedisClient, seed: int
) -> None:
    """G1: the change log is compacted before the loss; who gets a message is what its record said then."""
    world, before = await lived(hot_client, seed, steps=300)
    last: dict[bytes, MembershipRow] = {row.key: row for row in world.changes.rows}
    world.changes.rows[:] = [row for row in world.changes.rows if last[row.key] is row]
    await hot_client.flushdb()
    rig = await world.boot()
    after = await everything(world, rig)
    assert {chat: after[chat][:2] for chat in GROUPS} == {chat: before[chat][:2] for chat in GROUPS}  # type: ignore[index]
    assert after["ordinals"] == before["ordinals"]
    unknown = 0
    for append in without_barriers(world.log):
        outbox = decode_outbox(append.value)
        message = decode_message(outbox.message)
        assert outbox.members is not None
        told = {shard: unpack_ordinals(packed) for shard, (_, packed) in outbox.members.items()}
        everyone = await rig.membership.everyone(TENANT, message.conversation_id)
        assert members_at(TENANT, everyone, message.conversation_seq, SHARDS) == told
        place = (TENANT, message.conversation_id, message.membership_version)
        (version,) = await rig.reader.versions([place])
        unknown += version is None
    assert unknown > 10, "versions that compaction removed are unknown, never somebody else's members"


# -- ordinals


def directories(client: RedisClient) -> RedisOrdinalDirectory:
    return RedisOrdinalDirectory(client, ScriptPipe(client), RedisWholeness(client, PARTITIONS), cache_max=0)


async def prove(client: RedisClient) -> None:
    run = (await client.info("server"))["run_id"]
    for partition in range(PARTITIONS):
        await client.set(f"{{ob:{partition}}}:whole", run)


async def test_nobody_new_is_numbered_before_everybody_known_is_back(hot_client: RedisClient) -> None:
    directory = directories(hot_client)
    with pytest.raises(StoreUnavailable):
        await directory.assign(TENANT, ["ann"])
    await prove(hot_client)
    known = await directory.assign(TENANT, [f"u{n}" for n in range(300)])
    await hot_client.flushdb()
    with pytest.raises(StoreUnavailable):
        await directory.assign(TENANT, ["new"])
    seats = [(f"u{n}", known[n]) for n in range(300)]
    assert await directory.restore(TENANT, seats) == 300
    assert await directory.restore(TENANT, seats) == 0
    assert await directory.assign(TENANT, ["u7", "u8"]) == known[7:9], "who is known needs no proof"
    with pytest.raises(StoreUnavailable):
        await directory.assign(TENANT, ["new"])
    await prove(hot_client)
    fresh = await directory.assign(TENANT, [f"new{n}" for n in range(300)])
    assert not set(fresh) & set(known)
    assert min(fresh) >> 6 >= COUNTS_LEFT_OUT, "numbers of users whom no log names are left out"
    assert await directory.names(TENANT, known) == [f"u{n}" for n in range(300)]


# -- the Outbox begins later


@dataclass
class Shortened:
    """A loss of everything, and an Outbox whose beginning retention has removed."""

    world: World
    rig: WriterRig
    archive: MemoryArchive
    reader: MemoryOutboxReader
    accepts: dict[int, int] = field(default_factory=dict)

    async def accepted(self, partition: int) -> int:
        return self.accepts.get(partition, -1)

    async def repair(self) -> None:
        lost = LostRange(self.rig.conversations, self.world.changes, self.archive, self)
        repair = OutboxRepair(self.rig.conversations, self.reader, self.archive, lost)
        for partition in range(PARTITIONS):
            grant = await self.rig.leases.acquire(f"ob:{partition}", "w1", self.rig.boot, "w1:1", 60_000)
            await repair.run(partition, grant.epoch)

    async def heads(self) -> dict[str, int]:
        """The last number of each conversation."""
        chats = {one.conversation_id for one in self.world.messages()}
        flat = {
            chat: await self.world.client.hget(
                f"{{ob:{partition_of(TENANT, chat)}}}:c:{TENANT}:{chat}", "seq"
            )
            for chat in chats
        }
        return {chat: int(seq or 0) for chat, seq in flat.items()}


async def shortened(client: RedisClient, archived_through: int, begin: int) -> Shortened:
    world, _ = await lived(client, SEED + 5, steps=200)
    await client.flushdb()
    rig, archive = await world.boot(serve=False), MemoryArchive()
    for offset, message in enumerate(world.messages()[: archived_through + 1]):
        place = (TENANT, message.conversation_id, message.conversation_seq)
        one = ArchivedMessage(*place, message.encode())
        await archive.store(partition_of(TENANT, message.conversation_id), [one], offset)
    for partition in range(PARTITIONS):
        await archive.store(partition, [], archived_through)
    reader = MemoryOutboxReader(world.log)
    reader.first = begin
    return Shortened(world, rig, archive, reader)


async def test_numbers_that_the_outbox_has_no_more_are_proved_by_the_archive(hot_client: RedisClient) -> None:
    case = await shortened(hot_client, archived_through=70, begin=60)
    await case.repair()
    used: dict[str, int] = {}
    for one in case.world.messages():
        used[one.conversation_id] = max(one.conversation_seq, used.get(one.conversation_id, 0))
    assert await case.heads() == used


async def test_what_nobody_can_prove_is_refused_until_it_is_accepted(hot_client: RedisClient) -> None:
    """The message names the remedy and its cost; afterwards no number that was used comes again."""
    case = await shortened(hot_client, archived_through=40, begin=60)
    with pytest.raises(StoreUnavailable, match=r"P1 ob:0.*41 to 59.*--accept ob:0.*19 messages"):
        await case.repair()
    case.accepts = dict.fromkeys(range(PARTITIONS), 59)
    with pytest.raises(StoreUnavailable, match="P1"):
        await case.repair()  # it was accepted when less was gone
    case.accepts = dict.fromkeys(range(PARTITIONS), 60)
    await case.repair()
    heads = await case.heads()
    for one in case.world.messages():
        assert heads[one.conversation_id] >= one.conversation_seq


async def test_an_archive_that_is_away_is_waited_for(hot_client: RedisClient) -> None:
    """T-R4: nobody numbers on a guess."""
    case = await shortened(hot_client, archived_through=70, begin=60)
    case.archive.unavailable = True
    with pytest.raises(StoreUnavailable):
        await case.repair()
    case.archive.unavailable = False
    await case.repair()


async def test_what_was_given_out_just_before_a_restart_is_put_back(
    hot_client: RedisClient,
) -> None:
    """D4: assigned, lost, and used by a change that was repeated over the restart: no log has it yet."""
    directory = RedisOrdinalDirectory(hot_client, ScriptPipe(hot_client))
    calls = PartitionCalls(ScriptPipe(hot_client))
    wholeness = RedisWholeness(hot_client, PARTITIONS)
    seats = OnlineSeats(
        PresenceLog({}), directory, wholeness, presence_partitions=4, outbox_partitions=PARTITIONS
    )
    proof = RedisProof(calls, wholeness, directory, seats)
    grant = await redis_tier(hot_client).leases.acquire("ob:0", "w1", 1, "w1:1", 60_000)
    assert isinstance(grant, Grant)
    await proof.prove(0, grant.epoch)
    given = await directory.assign(TENANT, ["ann", "ben"])
    for key in [key async for key in hot_client.scan_iter("{o:*")]:
        await hot_client.delete(key)
    proof._run = "the run before"  # as if the server had been started anew
    await proof.prove(0, grant.epoch)
    assert await directories(hot_client).find(TENANT, ["ann", "ben"]) == given
    assert await RedisWholeness(hot_client).doubtful({0, 1}) == {1}


class PresenceLog:
    """`PresenceReader`: {partition: {user: ordinal}}; `reads` counts."""

    def __init__(self, online: dict[int, dict[str, int]]) -> None:
        self.online, self.reads = online, 0

    async def read(self, partition: int, start: int) -> AsyncIterator[list[tuple[int, bytes, bytes]]]:
        """See the port."""
        self.reads += 1
        rows = [
            (at, b"key", Presence(TENANT, user, ordinal, "phone", 0, 1, 1, 1).encode())
            for at, (user, ordinal) in enumerate(self.online.get(partition, {}).items())
        ]
        if rows[start:]:
            yield rows[start:]


async def test_who_signed_on_just_before_a_restart_keeps_his_ordinal(hot_client: RedisClient) -> None:
    """T-R2: a gateway had it given; the store lost nothing else, and the owner lives through it.

    Another ordinal would be another mailbox: his session would be deaf until it ends.
    """
    (mine,) = await RedisOrdinalDirectory(hot_client, ScriptPipe(hot_client)).assign(TENANT, ["eve"])
    directory = RedisOrdinalDirectory(hot_client, ScriptPipe(hot_client))
    wholeness, online = RedisWholeness(hot_client, PARTITIONS), PresenceLog({0: {"eve": mine}})
    seats = OnlineSeats(online, directory, wholeness, presence_partitions=1, outbox_partitions=PARTITIONS)
    proof = RedisProof(PartitionCalls(ScriptPipe(hot_client)), wholeness, directory, seats)
    grant = await redis_tier(hot_client).leases.acquire("ob:0", "w1", 1, "w1:1", 60_000)
    assert isinstance(grant, Grant)
    await seats.run(0)
    await proof.prove(0, grant.epoch)
    assert online.reads == 1, "once for the grant and its proof"
    for key in [key async for key in hot_client.scan_iter("{o:*")]:
        await hot_client.delete(key)
    await hot_client.set("{ob:0}:whole", "the run before")  # as if the server had been started anew
    proof._run, seats._done = "the run before", {0: "the run before"}
    await proof.prove(0, grant.epoch)
    await proof.prove(0, grant.epoch)
    assert await directories(hot_client).find(TENANT, ["eve"]) == [mine]
    assert online.reads == 2, "once for the new run"


async def test_late_work_of_an_earlier_grant_leaves_the_present_one_alone(hot_client: RedisClient) -> None:
    """A change that is settled after the flush has the epoch of before: fenced, and nobody's numbers move."""
    tier = redis_tier(hot_client)
    epochs = []
    for boot in (1, 2):
        grant = await tier.leases.acquire("ob:0", "w1", boot, "w1:1", 60_000)
        assert isinstance(grant, Grant)
        epochs.append(grant.epoch)
    before, now = epochs
    await tier.conversations.commit(0, now, ())
    with pytest.raises(FencedError):
        await tier.membership.settle(0, before, [Unsettled(TENANT, "g1", 1)], -1)
    await tier.conversations.commit(0, now, ())
