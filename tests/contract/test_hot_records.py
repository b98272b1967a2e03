"""Trimming the hot tier: one suite on the fake and on a real Redis, with real commits and a real trimmer.

Spec: §3, §14.8. P11, I12, T-R4.
"""

import random
from dataclasses import dataclass, field

import pytest

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.ports import ArchivedCopy, ArchivedMessage, Covered, HotRecords
from qim_streams.archive.redis_hot import RedisHotRecords
from qim_streams.archive.service import HistoryArchiver
from qim_streams.archive.tiers import HotThenArchive
from qim_streams.archive.trimmer import SLAB, HotTierTrimmer, TrimPolicy
from qim_streams.commit.ports import (
    Change,
    CommitRequest,
    CommitResult,
    CommitStatus,
    Confirmed,
    OutboxAppend,
)
from qim_streams.commit.repair import OutboxRepair
from qim_streams.commit.rules import payload_digest, record_of
from qim_streams.errors import StoreUnavailable
from qim_streams.operations.rules import operation_tail
from qim_streams.records import KIND_EDIT, MessageRecord, OutboxRecord, decode_message
from qim_streams.redis_tier import RedisClient
from qim_streams.testing.memory_hot import MemoryHotRecords
from qim_streams.testing.memory_outbox import MemoryOutboxReader
from tests.support.hot_tier import TENANT, HotTier, memory_tier, message_id, redis_tier, request
from tests.unit.archive.outbox_batches import RememberedLetters, batch
from tests.unit.archive.outbox_batches import record as logged

ROOM = "room"
KEPT, KEPT_MS = 10, 60_000


@dataclass
class World:
    """A hot tier, an archive behind it, and what was committed."""

    tier: HotTier
    hot: HotRecords
    archive: MemoryArchive = field(default_factory=MemoryArchive)
    now_ms: int = 1_000_000
    minted: int = 0
    kept: int = KEPT

    def __post_init__(self) -> None:
        """A trimmer as the archiver has it."""
        self.trimmer = HotTierTrimmer(
            self.archive,
            self.hot,
            TrimPolicy(self.kept, KEPT_MS),
            now_ms=lambda: self.now_ms,
            die=lambda why: pytest.fail(why),
            uniform=lambda: 0.5,
        )

    async def commit(self, count: int, chat: str = ROOM, *, confirm: bool = True) -> list[int]:
        """Commit messages; their seqs."""
        partition, epoch = await self.tier.own(chat)
        seqs = []
        for _ in range(count):
            self.minted += 1
            identity = message_id(1_000 + self.minted)
            wanted = request(chat, "ann", f"c{self.minted}", identity, body=b"body %d" % self.minted)
            (result,) = await self.tier.conversations.commit(partition, epoch, [wanted])
            assert result.conversation_seq, result
            seqs.append(result.conversation_seq)
            if confirm:
                confirmed = Confirmed([identity], self.minted - 1)
                await self.tier.conversations.confirm(partition, epoch, confirmed)
        return seqs

    async def hot_record(self, seq: int, chat: str = ROOM) -> bytes | None:
        """What the hot tier has."""
        (record,) = await self.tier.conversations.records([(TENANT, chat, seq)])
        return record

    async def archived(self, seqs: list[int], chat: str = ROOM) -> None:
        """Archive what the hot tier has, publish, and tell the trimmer: as the archiver does."""
        partition, _ = await self.tier.own(chat)
        records = await self.tier.conversations.records([(TENANT, chat, seq) for seq in seqs])
        messages = [
            ArchivedMessage(TENANT, chat, seq, record)
            for seq, record in zip(seqs, records, strict=True)
            if record is not None
        ]
        await self.archive.store(partition, messages, self.minted)
        self.trimmer.note(partition, messages)

    async def in_hot(self, chat: str = ROOM, up_to: int = 400) -> list[int]:
        """The seqs that the hot tier has."""
        wanted = [(TENANT, chat, seq) for seq in range(1, up_to)]
        records = await self.tier.conversations.records(wanted)
        return [seq for (_, _, seq), record in zip(wanted, records, strict=True) if record is not None]

    async def readable(self, up_to: int, chat: str = ROOM) -> bool:
        """Whether a reader finds every message, each with its own bytes."""
        both = HotThenArchive(self.tier.conversations, self.archive)
        found = await both.records([(TENANT, chat, seq) for seq in range(1, up_to + 1)])
        return all(
            record is not None and decode_message(record).conversation_seq == seq
            for seq, record in enumerate(found, 1)
        )


@pytest.fixture(params=["memory", "redis"])
async def world(request: pytest.FixtureRequest, hot_client: RedisClient) -> World:
    """Each implementation with a group of one member."""
    if request.param == "memory":
        tier = memory_tier()
        assert tier.memory is not None
        made = World(tier, MemoryHotRecords(tier.memory))
    else:
        made = World(redis_tier(hot_client), RedisHotRecords(hot_client))
    await made.tier.group(ROOM, {"ann": "owner"})
    partition, _ = await made.tier.own(ROOM)
    made.trimmer.adopt(partition)
    return made


async def test_the_newest_archived_messages_stay_and_the_others_go(world: World) -> None:
    seqs = await world.commit(100)
    await world.archived(seqs)
    assert await world.trimmer.work() == 100 - KEPT
    assert await world.in_hot() == list(range(91, 101))
    assert await world.readable(100)
    assert await world.trimmer.work() == 0


async def test_new_messages_move_no_floor(world: World) -> None:
    """D5: giving out numbers touches only the highest; what was trimmed stays trimmed, where it is."""
    seqs = await world.commit(100)
    partition, _ = await world.tier.own(ROOM)
    await world.archived(seqs)
    await world.trimmer.work()
    floor = await world.hot.note(partition, [Covered(TENANT, ROOM, 100)], 1)
    assert floor == [100 - KEPT + 1]
    assert await world.commit(30) == list(range(101, 131))
    assert await world.hot.note(partition, [Covered(TENANT, ROOM, 100)], 1) == floor
    assert await world.in_hot() == list(range(91, 131))
    assert await world.readable(130)


async def test_nothing_above_the_watermark_is_trimmed(world: World) -> None:
    """I12: however many messages wait for the archive."""
    seqs = await world.commit(120)
    await world.archived(seqs[:20])
    await world.trimmer.work()
    assert await world.in_hot() == seqs, "too few have come together"
    await world.archived(seqs[20:90])
    await world.trimmer.work()
    assert await world.in_hot() == list(range(81, 121))


async def test_an_archive_that_is_down_trims_nothing_and_the_rest_is_made_up_for(world: World) -> None:
    """T-R4."""
    seqs = await world.commit(100)
    await world.archived(seqs)
    world.archive.unavailable = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await world.trimmer.work()
    world.now_ms += 10 * KEPT_MS
    with pytest.raises(StoreUnavailable):
        await world.trimmer.sweep()
    assert await world.in_hot() == seqs
    world.archive.unavailable = False
    assert await world.trimmer.work() == 90


async def test_what_the_archive_lacks_stays(world: World) -> None:
    """A message that lies behind the others in the Outbox is trimmed by its own note, when it is archived."""
    seqs = await world.commit(100)
    await world.archived([seq for seq in seqs if seq not in (5, 50)])
    await world.trimmer.work()
    assert await world.in_hot() == [5, 50, *range(91, 101)]
    await world.archived([5, 50])
    assert await world.trimmer.work() == 2
    assert await world.in_hot() == list(range(91, 101))
    assert await world.readable(100)


async def test_a_message_that_changed_after_its_archiving_stays_until_it_is_archived_again(
    world: World,
) -> None:
    seqs = await world.commit(100)
    partition, _ = await world.tier.own(ROOM)
    original = await world.hot_record(7)
    assert original is not None
    edited = decode_message(original)._replace(state=1, body=b"edited", extra=(1,)).encode()
    await world.archived(seqs)
    await _overwrite(world, 7, edited)
    await world.trimmer.work()
    assert await world.in_hot() == [7, *range(91, 101)]
    assert await world.hot_record(7) == edited
    await world.archive.store(partition, [ArchivedMessage(TENANT, ROOM, 7, edited, 1)], 200)
    world.trimmer.note(partition, [ArchivedMessage(TENANT, ROOM, 7, edited, 1)])
    assert await world.trimmer.work() == 1
    both = HotThenArchive(world.tier.conversations, world.archive)
    assert await both.records([(TENANT, ROOM, 7)]) == [edited]


async def _overwrite(world: World, seq: int, record: bytes) -> None:
    partition, _ = await world.tier.own(ROOM)
    if world.tier.memory is not None:
        world.tier.memory.partition(partition).records[TENANT, ROOM][seq] = record
    else:
        assert world.tier.client is not None
        await world.tier.client.hset(f"{{ob:{partition}}}:r:{TENANT}:{ROOM}", str(seq), record)


async def test_a_message_that_is_not_confirmed_stays_and_stops_the_trimming(world: World) -> None:
    """The next owner of the partition reads it back to append it again: without it, it could not start."""
    before = await world.commit(20)
    (pending,) = await world.commit(1, confirm=False)
    after = await world.commit(99)
    await world.archived([*before, pending, *after])
    await world.trimmer.work()
    assert await world.in_hot() == list(range(pending, 121))
    partition, epoch = await world.tier.own(ROOM)
    (row,) = await world.tier.conversations.pending(partition, epoch, 10)
    assert row.conversation_seq == pending
    await world.tier.conversations.confirm(partition, epoch, Confirmed([row.message_id], 500))
    await world.archived(after[-1:])
    await world.trimmer.work()
    assert await world.in_hot() == list(range(111, 121))
    assert await world.readable(120)


async def test_a_silent_conversation_leaves_the_hot_tier(world: World) -> None:
    seqs = await world.commit(8)
    await world.archived(seqs[:6])
    assert await world.trimmer.work() == 0
    world.now_ms += KEPT_MS - 1
    assert await world.trimmer.sweep() == 0
    world.now_ms += 1
    assert await world.trimmer.sweep() == 6
    assert await world.in_hot() == [7, 8], "not archived"
    assert await world.trimmer.sweep() == 0
    assert await world.readable(8)
    # It speaks again, and is silent again.
    await world.archived(seqs[6:])
    assert await world.trimmer.work() == 0
    world.now_ms += KEPT_MS
    assert await world.trimmer.sweep() == 2
    assert await world.in_hot() == []
    assert await world.commit(1) == [9], "numbers go on"


async def test_silence_trims_only_what_the_watermark_covers(world: World) -> None:
    """I12: an archiver that died before it published left a message in the archive."""
    seqs = await world.commit(6)
    await world.archived(seqs[:4])
    await world.trimmer.work()
    partition, _ = await world.tier.own(ROOM)
    left = await world.hot_record(5)
    assert left is not None
    await world.archive.store(partition, [ArchivedMessage(TENANT, ROOM, 5, left)], 3)
    world.now_ms += KEPT_MS
    assert await world.trimmer.sweep() == 4
    assert await world.in_hot() == [5, 6]


async def test_a_conversation_that_speaks_is_not_silent(world: World) -> None:
    seqs = await world.commit(4)
    await world.archived(seqs[:2])
    await world.trimmer.work()
    world.now_ms += KEPT_MS - 1
    await world.archived(seqs[2:])
    await world.trimmer.work()
    world.now_ms += 1
    assert await world.trimmer.sweep() == 0
    assert await world.in_hot() == seqs


async def test_a_stuck_conversation_does_not_stand_in_the_way_of_others(world: World) -> None:
    (pending,) = await world.commit(1, confirm=False)
    await world.archived([pending])
    await world.trimmer.work()
    world.now_ms += KEPT_MS
    assert await world.trimmer.sweep() == 0
    partition, _ = await world.tier.own(ROOM)
    assert await world.hot.silent(partition, world.now_ms - 1, 10) == [], "it is looked at again later"
    assert await world.hot.silent(partition, world.now_ms, 10) == [(TENANT, ROOM, 1, pending)]


async def test_a_conversation_that_the_hot_tier_lost_is_no_trouble(world: World) -> None:
    partition, _ = await world.tier.own("gone")
    lost = ArchivedMessage(TENANT, "gone", 90, b"\x01")
    world.trimmer.adopt(partition)
    world.trimmer.note(partition, [lost])
    assert await world.trimmer.work() == 0
    assert await world.hot.note(partition, [Covered(TENANT, "gone", 90)], 1) == [0]
    assert await world.hot.silent(partition, 2**50, 10) == []
    dropped = await world.hot.drop(partition, (TENANT, "gone"), [ArchivedCopy(1, b"i" * 16, b"r")], 5)
    assert dropped == (0, 0, None)
    assert await world.hot.note(partition, [Covered(TENANT, "gone", 90)], 1) == [0], "nothing was made"


async def test_an_old_archiver_takes_nothing_back(world: World) -> None:
    """§14.6: it drops again what was dropped, with an older hot_from."""
    seqs = await world.commit(100)
    partition, _ = await world.tier.own(ROOM)
    await world.archived(seqs)
    await world.trimmer.work()
    record = world.archive.messages[TENANT, ROOM, 3]
    copy = ArchivedCopy(3, decode_message(record).message_id, record)
    assert await world.hot.drop(partition, (TENANT, ROOM), [copy], 4) == (0, 0, None)
    assert await world.hot.note(partition, [Covered(TENANT, ROOM, 3)], 1) == [91]


def edit_of(target: int, identity: bytes, archived: bytes) -> CommitRequest:
    """Ann edits a message whose record only the archive may have."""
    plain = MessageRecord(
        0, 0, TENANT, ROOM, identity, identity, "ann", 7, "d", "e-1", 1, 1_000, KIND_EDIT, 1, b"new"
    )
    change, digest = Change(KIND_EDIT, target, b"new", -1, 0, archived), payload_digest(KIND_EDIT, b"new", 5)
    tail = operation_tail(plain, target)
    return CommitRequest(TENANT, ROOM, "ann", "e-1", digest, identity, 1_000, tail, change=change)


async def test_an_edited_message_is_hot_again_until_the_archive_has_the_edit(world: World) -> None:
    """Trimmed long ago: the edit makes it hot, the revision is archived, and then it is trimmed again."""
    await world.archived(await world.commit(100))
    await world.trimmer.work()
    partition, epoch = await world.tier.own(ROOM)
    old, identity = world.archive.messages[TENANT, ROOM, 5], message_id(9_000)
    store = world.tier.conversations
    (cold,) = await store.commit(partition, epoch, [edit_of(5, identity, b"")])
    assert cold.status is CommitStatus.TARGET_COLD
    (made,) = await store.commit(partition, epoch, [edit_of(5, identity, old)])
    assert (made.status, made.conversation_seq, made.revision) == (CommitStatus.NEW, 101, 1)
    await store.confirm(partition, epoch, Confirmed([identity], 100))
    assert await world.in_hot() == [5, *range(91, 102)]
    copy = ArchivedCopy(5, decode_message(old).message_id, old)
    dropped = await world.hot.drop(partition, (TENANT, ROOM), [copy], 0)
    assert dropped.differing == 1, "another state of it: it stays"
    archiver = HistoryArchiver(
        "o", world.archive, RememberedLetters(), now_ms=lambda: 0, on_covered=world.trimmer.note
    )
    offset = await archiver.start_position(partition)
    operation = await world.hot_record(101)
    assert operation is not None
    await archiver.handle(batch([logged(offset, decode_message(operation))], partition=partition))
    assert await world.trimmer.work() == 1
    assert await world.in_hot() == list(range(91, 102))
    assert decode_message(world.archive.messages[TENANT, ROOM, 5]).body == b"new"


async def test_a_repair_makes_archived_targets_hot_again_while_their_edit_is_not_archived(
    world: World,
) -> None:
    """§14.4: the next edit builds upon the revision; what the archive has already stays there."""
    await world.archived(await world.commit(100))
    await world.trimmer.work()
    old, identity = world.archive.messages[TENANT, ROOM, 5], message_id(9_000)
    made = CommitResult(CommitStatus.NEW, identity, 101, 1, revision=1)
    edited = record_of(made, edit_of(5, identity, old).record_tail)
    partition, epoch = await world.tier.own(ROOM, boot=2)
    log = [OutboxAppend(partition, b"", b"")] * 100
    log.append(OutboxAppend(partition, b"", OutboxRecord(edited, 1, 0, None).encode()))
    repair = OutboxRepair(world.tier.conversations, MemoryOutboxReader(log), world.archive)
    world.archive.unavailable = True
    with pytest.raises(StoreUnavailable):
        await repair.run(partition, epoch)
    world.archive.unavailable = False
    await repair.run(partition, epoch)
    target = await world.hot_record(5)
    assert target is not None
    assert (decode_message(target).body, decode_message(target).extra) == (b"new", (1,))


async def test_a_restart_of_the_writer_restores_nothing_that_was_trimmed(world: World) -> None:
    """§14.4: what was trimmed was confirmed before, so it lies below what the repair reads again."""
    seqs = await world.commit(100)
    await world.archived(seqs)
    await world.trimmer.work()
    partition, epoch = await world.tier.own(ROOM, boot=2)
    records = [world.archive.messages[TENANT, ROOM, seq] for seq in seqs]
    log = [OutboxAppend(partition, b"", OutboxRecord(record, 1, 0, None).encode()) for record in records]
    repair = OutboxRepair(world.tier.conversations, MemoryOutboxReader(log), MemoryArchive())
    assert (await repair.run(partition, epoch)).missing == 0
    assert await world.in_hot() == list(range(91, 101))


async def test_a_backlog_is_trimmed_in_bounded_pieces(world: World) -> None:
    """An hour's worth of messages comes at once: pages, and each call small."""
    calls: list[int] = []
    original = world.hot.drop

    async def counted(*args: object) -> object:
        calls.append(len(args[2]))  # type: ignore[arg-type]
        return await original(*args)  # type: ignore[arg-type]

    world.hot.drop = counted  # type: ignore[method-assign, assignment]
    seqs = await world.commit(450)
    await world.archived(seqs)
    assert await world.trimmer.work() == 440
    assert calls == [200, 200, 40]


@pytest.mark.parametrize("seed", range(6))
async def test_readers_see_no_hole_whatever_happens(world: World, seed: int) -> None:
    """P11 and I12 over random commits, confirms, archiving, failures, trims and sweeps."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    committed: list[int] = []
    archived = 0
    for _ in range(60):
        step = rng.randrange(5)
        if step == 0:
            committed += await world.commit(rng.randrange(1, 40))
        elif step == 1 and archived < len(committed):
            upto = rng.randrange(archived, len(committed)) + 1
            await world.archived(committed[archived:upto])
            archived = upto
        elif step == 2:
            world.archive.unavailable = rng.random() < 0.3
            try:
                await world.trimmer.work()
            except StoreUnavailable:
                assert world.archive.unavailable
            world.archive.unavailable = False
        elif step == 3:
            world.now_ms += rng.choice((1, KEPT_MS))
            await world.trimmer.sweep()
        if committed:
            hot = set(await world.in_hot(up_to=len(committed) + 1))
            assert set(committed[archived:]) <= hot, "above the watermark nothing is trimmed"
            assert await world.readable(len(committed))
    await world.archived(committed[archived:])
    await world.trimmer.work()
    world.now_ms += KEPT_MS
    await world.trimmer.sweep()
    assert await world.in_hot(up_to=len(committed) + 1) == []
    assert await world.readable(len(committed))


def test_a_slab_is_worth_a_call() -> None:
    assert SLAB > 1
