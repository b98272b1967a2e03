"""Trimming by age, in memory and on a real Redis (T-C1, T-M7, E14, I9; Spec: §5, §7)."""

import asyncio
from random import Random
from typing import Any

import pytest

from qim_streams.errors import FencedError, SyncVerdict
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.ports import EntryGroup, MailboxStore
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.mailbox.redis_trim import RedisAgedMailboxes
from qim_streams.mailbox.trim_ports import AgedMailboxes
from qim_streams.placement import lane_of_ordinal
from qim_streams.records import RECIPIENT_FLAGS, UserMailboxEntry
from qim_streams.redis_tier import RedisClient
from qim_streams.sync.ports import MailboxAddress
from qim_streams.sync.pull import PullService
from tests.support.mailbox_world import CONVERSATION, message_id, record

SHARD, EPOCH, TENANT, BOUND = 3, 7, "acme", 20
DAY_MS = 86_400_000


class Subject:
    """A store under test; a shard of it that EPOCH owns."""

    def __init__(self, store: MailboxStore, aged: AgedMailboxes, client: RedisClient | None) -> None:
        self.store, self.trims, self.client = store, aged, client
        self.tail = -1

    async def grant(self, epoch: int) -> None:
        """Make `epoch` the owner's."""
        if self.client is None:
            assert isinstance(self.store, MemoryMailboxStore)
            self.store.grant(SHARD, epoch)
        else:
            await self.client.set(f"{{s:{SHARD}}}:epoch", epoch)

    async def write(self, *ordinals: int, events: int = 1, tenant: str = TENANT) -> int:
        """The next seq, with `events` entries for each of `ordinals`."""
        seq = self.tail + 1
        groups = [EntryGroup(tenant, seq, n, b"v%d" % seq, ordinals) for n in range(events) if ordinals]
        assert await self.store.write_and_advance(SHARD, EPOCH, groups, self.tail, seq) == seq
        self.tail = seq
        return seq

    async def seqs(self, ordinal: int, tenant: str = TENANT) -> list[int]:
        """What a mailbox holds."""
        rows = await self.store.read(SHARD, tenant, ordinal, -1, rule.SEQ_MAX - 2, 1_000)
        return [row.mailbox_seq for row in rows]

    async def trim(self, ordinal: int, tenant: str = TENANT) -> int:
        """A mailbox's trim watermark."""
        return await self.store.trim_watermark(SHARD, tenant, ordinal)

    async def trim_all(self, up_to: int, mailboxes: int = 64, entries: int = 2_000) -> int:
        """Steps until nothing is left; how many entries went."""
        removed = 0
        while True:
            step = await self.trims.trim_aged(SHARD, EPOCH, up_to, mailboxes, entries)
            removed += step.entries
            if not step.more:
                return removed

    async def aged(self, day: float, covered: int | None = None, *, epoch: int = EPOCH) -> int:
        """A note on this day, and what is older than three days; notes are half a day apart."""
        seq = self.tail if covered is None else covered
        return await self.trims.aged(SHARD, epoch, int(day * DAY_MS), seq, 3 * DAY_MS, DAY_MS // 2)


def made(kind: str, client: RedisClient) -> Subject:
    if kind == "memory":
        store = MemoryMailboxStore(mailbox_entries_max=BOUND)
        return Subject(store, store, None)
    return Subject(RedisMailboxStore(client, mailbox_entries_max=BOUND), RedisAgedMailboxes(client), client)


@pytest.fixture(params=["memory", "redis"])
async def subject(request: pytest.FixtureRequest, hot_client: RedisClient) -> Subject:
    one = made(request.param, hot_client)
    await one.grant(EPOCH)
    return one


async def test_old_entries_go_and_the_mark_says_which(subject: Subject) -> None:
    """Up to the last entry that went, per mailbox; whoever had nothing old keeps its mark."""
    for ordinals in ((1, 65), (1,), (65,), (2,), (1, 2)):
        await subject.write(*ordinals)
    assert await subject.trim_all(2) == 4
    assert [await subject.seqs(ordinal) for ordinal in (1, 65, 2)] == [[4], [], [3, 4]]
    assert [await subject.trim(ordinal) for ordinal in (1, 65, 2, 9)] == [1, 2, -1, -1]
    assert await subject.trim_all(2) == 0


async def test_a_seq_goes_whole(subject: Subject) -> None:
    await subject.write(1, events=3)
    await subject.write(1, events=2)
    assert await subject.trim_all(0) == 3
    assert await subject.seqs(1) == [1, 1]


async def test_an_emptied_mailbox_begins_anew(subject: Subject) -> None:
    """Nothing is left of it but its mark; the next entry is found by the next pass."""
    await subject.write(1)
    assert await subject.trim_all(0) == 1
    if subject.client is not None:
        assert await subject.client.keys("*:mb:*") == []
        assert await subject.client.exists(f"{{s:{SHARD}}}:oldest") == 0
    await subject.write(1)
    assert (await subject.seqs(1), await subject.trim(1)) == ([1], 0)
    assert await subject.trim_all(1) == 1
    assert await subject.trim(1) == 1


async def test_nothing_above_the_watermark_goes(subject: Subject) -> None:
    """Also not what a step of a large record has already written."""
    await subject.write(1)
    await subject.store.write_step(SHARD, EPOCH, [EntryGroup(TENANT, 5, 0, b"v", [1, 2])], 0, "5.x", 0)
    assert await subject.trim_all(99) == 1
    assert [await subject.seqs(ordinal) for ordinal in (1, 2)] == [[5], [5]]
    assert [await subject.trim(ordinal) for ordinal in (1, 2)] == [0, -1]


async def test_a_mark_that_stands_higher_stays(subject: Subject) -> None:
    for _ in range(4):
        await subject.write(1)
    assert await subject.store.trim(SHARD, EPOCH, TENANT, 1, 2) == 2
    assert await subject.trim_all(1) == 0
    assert (await subject.trim(1), await subject.seqs(1)) == (2, [3])


async def test_by_count_and_by_age_together(subject: Subject) -> None:
    """The write that trims by count and the pass by age never put a mark back."""
    for _ in range(BOUND * 2):
        await subject.write(1)
    marks = [await subject.trim(1)]
    await subject.trim_all(BOUND * 2 - 8)
    marks.append(await subject.trim(1))
    for _ in range(BOUND):
        await subject.write(1)
        marks.append(await subject.trim(1))
        assert (await subject.seqs(1))[0] == marks[-1] + 1
    assert marks == sorted(marks)


async def test_tenants_are_apart(subject: Subject) -> None:
    """I16: the same ordinal in another tenant has a mark of its own."""
    await subject.write(1)
    await subject.write(1, tenant="a-b.c~d")
    assert await subject.trim_all(0) == 1
    assert [await subject.trim(1, tenant) for tenant in (TENANT, "a-b.c~d")] == [0, -1]
    assert await subject.trim_all(1) == 1
    assert await subject.trim(1, "a-b.c~d") == 1


async def test_steps_are_bounded_and_end(subject: Subject) -> None:
    """P16: a step looks at so many mailboxes; after so many entries it begins no other."""
    for _ in range(6):
        await subject.write(*range(1, 11))
    step = await subject.trims.trim_aged(SHARD, EPOCH, 5, 4, 1_000)
    assert (step.mailboxes, step.entries, step.more) == (4, 24, True)
    step = await subject.trims.trim_aged(SHARD, EPOCH, 5, 100, 7)
    assert (step.mailboxes, step.entries, step.more) == (2, 12, True)
    assert await subject.trim_all(5, mailboxes=1) == 24
    assert await subject.seqs(10) == []


@pytest.mark.parametrize("wrong", [EPOCH - 1, EPOCH + 1])
async def test_another_epoch_is_fenced(subject: Subject, wrong: int) -> None:
    """I14: an old owner neither notes nor trims."""
    await subject.write(1)
    with pytest.raises(FencedError):
        await subject.trims.trim_aged(SHARD, wrong, 0, 9, 9)
    with pytest.raises(FencedError):
        await subject.aged(1, epoch=wrong)
    assert await subject.seqs(1) == [0]


async def test_what_is_old_is_known_by_notes_of_w(subject: Subject) -> None:
    """Notes half a day apart, three days of retention: each tells what was there when it was made."""
    found = []
    for half in range(12):
        await subject.write(1)
        await subject.write(1)
        found.append(await subject.aged(half / 2))
    assert found == [-1] * 6 + [1, 3, 5, 7, 9, 11]
    assert await subject.aged(9) == 23


async def test_notes_are_rare_and_few(subject: Subject) -> None:
    """A note too soon is not made; old ones go when a newer one is old enough; no news, no note."""
    await subject.write(1)
    await subject.aged(0)
    await subject.write(1)
    await subject.aged(0.4)  # too soon: seq 1 is noted later
    await subject.aged(0.6)
    assert await subject.aged(3.1) == 0
    assert await subject.aged(3.7) == 1
    for half in range(100):
        await subject.aged(4 + half / 2)
    if subject.client is not None:
        assert await subject.client.zcard(f"{{s:{SHARD}}}:ages") == 1
    assert await subject.aged(60, covered=-1) == 1  # a shard without entries notes nothing


async def test_a_clock_that_jumps_only_delays(subject: Subject) -> None:
    """Fault model (c): notes of the future are dropped, and none is made of a time before the newest."""
    await subject.write(1)
    await subject.aged(10)
    await subject.write(1)
    assert await subject.aged(9.5) == -1  # went back: the note of day 10 is dropped, seq 1 is of day 9.5
    assert await subject.aged(12.4) == -1
    assert await subject.aged(12.6) == 1


async def test_a_store_that_fell_back_only_delays(subject: Subject) -> None:
    """W below an earlier note: the lower one counts, and nothing above W goes."""
    for _ in range(3):
        await subject.write(1)
    await subject.aged(0, covered=9)
    assert await subject.aged(3) == 9
    assert await subject.trim_all(9) == 3
    await subject.aged(3, covered=2)
    assert await subject.aged(7) == 2


async def test_script_and_rule_agree_on_random_calls(hot_client: RedisClient) -> None:
    """T-M7: writes, trims by age and by hand, notes and takeovers, the same on Redis and in Python."""
    seed = 20261130
    print("seed", seed)
    random = Random(seed)
    both = [made(kind, hot_client) for kind in ("memory", "redis")]
    for one in both:
        await one.grant(EPOCH)
    day = 0.0
    for turn in range(400):
        kind = random.choices(["write", "aged", "trim", "note"], [8, 3, 1, 2])[0]
        answers: list[Any] = []
        day += random.choice([0.0, 0.2, 0.6, -0.3])
        arguments = sorted(random.sample(range(8), random.randint(0, 4))), random.randint(1, 3)
        up_to = random.randint(-1, both[0].tail + 2)
        for one in both:
            if kind == "write":
                answers.append(await one.write(*arguments[0], events=arguments[1]))
            elif kind == "aged":
                answers.append(await one.trim_all(up_to, arguments[1], arguments[1] * 4))
            elif kind == "trim":
                low = min(up_to, one.tail)
                answers.append(await one.store.trim(SHARD, EPOCH, TENANT, arguments[1], low))
            else:
                answers.append(await one.aged(max(day, 0.0)))
        assert answers[0] == answers[1], f"turn {turn}: {kind}"
        for ordinal in range(8):
            held = [(await one.seqs(ordinal), await one.trim(ordinal)) for one in both]
            assert held[0] == held[1], f"turn {turn}: {kind}, mailbox {ordinal}"


class Hot:
    """Every body is there."""

    async def records(self, wanted: list[tuple[str, str, int]]) -> list[bytes | None]:
        """See `BodyReader.records`."""
        return [record(seq, message_id(seq)).encode() for _, _, seq in wanted]


async def test_readers_beside_the_trimmer_see_all_or_an_error(hot_client: RedisClient) -> None:
    """E14: 20 devices page while entries are written, trimmed by count and by age: never a hole."""
    subject = made("redis", hot_client)
    await subject.grant(EPOCH)
    ordinals = [(number << 6) | number for number in range(20)]
    pulls = PullService(subject.store, Hot())
    writing, outcomes = True, {"batch": 0, "expired": 0}

    async def write() -> None:
        for seq in range(400):
            entry = UserMailboxEntry(
                0, message_id(seq), CONVERSATION, seq, "ann", RECIPIENT_FLAGS, 77, None
            ).encode()
            group = EntryGroup(TENANT, seq, 0, entry, ordinals)
            assert await subject.store.write_and_advance(SHARD, EPOCH, [group], seq - 1, seq) == seq
            subject.tail = seq
            if seq % 7 == 0:
                await subject.trim_all(seq - Random(seq).randrange(30), mailboxes=3)

    async def read(ordinal: int) -> None:
        random, at = Random(ordinal), -1
        address = MailboxAddress(TENANT, "u", "d", ordinal, SHARD, lane_of_ordinal(ordinal))
        while writing or at < subject.tail:
            up_to = subject.tail
            try:
                batch = await pulls.pull(address, at, up_to, random.randint(1, 9), 100_000)
            except SyncVerdict as verdict:
                outcomes["expired"] += 1
                trim = await subject.trim(ordinal)
                assert (verdict.code, at < trim) == ("CURSOR_EXPIRED", True)  # noqa: PT017 - the point
                at = trim
                continue
            got = [event.mailbox_seq for event in batch.events]
            assert got == list(range(at + 1, batch.covered_through_seq + 1)), "a hole"
            outcomes["batch"] += 1
            at = batch.covered_through_seq
            if random.random() < 0.1:
                await asyncio.sleep(0.02)  # falls behind now and then

    readers = [asyncio.create_task(read(ordinal)) for ordinal in ordinals]
    await write()
    writing = False
    await asyncio.gather(*readers)
    print(outcomes)
    assert outcomes["batch"] > 100
    assert outcomes["expired"] > 0
