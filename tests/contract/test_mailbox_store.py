"""One suite for every MailboxStore: the fake is held to what Redis does (T-C1), call by call (T-M7)."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import SecretStr

from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.errors import FencedError, StoreError
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.ports import EntryGroup, MailboxStore, Stretch
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.settings import Settings

SHARD, EPOCH, TENANT = 3, 7, "acme"
BOUND = 20


@dataclass
class Subject:
    """A store under test and the hand that plays the lease store."""

    store: MailboxStore
    client: RedisClient | None

    async def grant(self, epoch: int, shard: int = SHARD) -> None:
        if self.client is not None:
            await self.client.set(f"{{s:{shard}}}:epoch", epoch)
        else:
            assert isinstance(self.store, MemoryMailboxStore)
            self.store.grant(shard, epoch)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("redis")
    server = EmbeddedRedis(data, progress=lambda _: None)
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[RedisClient]:
    client = connect(Settings(redis_url=SecretStr(redis_url)))
    await client.flushdb()
    yield client
    await client.aclose()


@pytest.fixture(params=["memory", "redis"])
async def subject(request: pytest.FixtureRequest, client: RedisClient) -> Subject:
    if request.param == "memory":
        made = Subject(MemoryMailboxStore(mailbox_entries_max=BOUND), None)
    else:
        made = Subject(RedisMailboxStore(client, mailbox_entries_max=BOUND), client)
    await made.grant(EPOCH)
    return made


def group(seq: int, *ordinals: int, value: bytes = b"", tenant: str = TENANT, event: int = 0) -> EntryGroup:
    return EntryGroup(tenant, seq, event, value or b"v%d" % seq, ordinals)


async def seqs(store: MailboxStore, ordinal: int, tenant: str = TENANT, limit: int = 100) -> list[int]:
    return [e.mailbox_seq for e in await store.read(SHARD, tenant, ordinal, -1, rule.SEQ_MAX - 2, limit)]


async def test_a_new_shard_covers_nothing(subject: Subject) -> None:
    state = await subject.store.watermark(99)
    assert (state.epoch, set(state.lanes), state.open_record) == (0, {-1}, "")


async def test_entries_and_watermark_move_together(subject: Subject) -> None:
    store = subject.store
    assert await store.write_and_advance(SHARD, EPOCH, [group(0, 1, 65), group(4, 65)], -1, 4) == 4
    assert await seqs(store, 1) == [0]
    assert await seqs(store, 65) == [0, 4]
    entry = (await store.read(SHARD, TENANT, 65, 0, 4, 10))[0]
    assert (entry.mailbox_seq, entry.event_ordinal, entry.value) == (4, 0, b"v4")
    state = await store.watermark(SHARD)
    assert (state.epoch, set(state.lanes)) == (EPOCH, {4})


async def test_a_wrong_expected_previous_writes_nothing(subject: Subject) -> None:
    """B2: W moves only from the coverage that is persisted."""
    store = subject.store
    await store.write_and_advance(SHARD, EPOCH, [group(0, 1)], -1, 0)
    assert await store.write_and_advance(SHARD, EPOCH, [group(9, 1)], 5, 9) == 0
    assert await seqs(store, 1) == [0]
    assert set((await store.watermark(SHARD)).lanes) == {0}


async def test_new_entries_move_no_trim(subject: Subject) -> None:
    """D5: writing moves the end only, also where the mailbox was trimmed to its end and begins anew."""
    store = subject.store
    await store.write_and_advance(SHARD, EPOCH, [group(n, 1) for n in range(5)], -1, 4)
    for trimmed, tail in ((2, 5), (5, 6)):
        await store.trim(SHARD, EPOCH, TENANT, 1, trimmed)
        await store.write_and_advance(SHARD, EPOCH, [group(tail, 1)], tail - 1, tail)
        assert await store.trim_watermark(SHARD, TENANT, 1) == trimmed
        assert await seqs(store, 1) == list(range(trimmed + 1, tail + 1))


async def test_a_repeated_call_changes_nothing(subject: Subject) -> None:
    """An unknown outcome is resolved by repeating: the second answer says where W stands."""
    store = subject.store
    groups = [group(0, 1, 2), group(1, 2, value=b"x")]
    assert await store.write_and_advance(SHARD, EPOCH, groups, -1, 1) == 1
    assert await store.write_and_advance(SHARD, EPOCH, groups, -1, 1) == 1
    assert await seqs(store, 2) == [0, 1]


async def test_a_torn_call_is_completed_by_its_repetition(subject: Subject) -> None:
    """Entries that an interrupted call left behind are skipped, the missing ones written, in order."""
    store = subject.store
    await store.write_step(SHARD, EPOCH, [group(0, 1, 2)], -1, "torn", 0)  # W stays: readers see nothing
    full = [group(0, 1, 2, 3), group(1, 2, 3)]
    assert await store.write_and_advance(SHARD, EPOCH, full, -1, 1) == 1
    assert [await seqs(store, ordinal) for ordinal in (1, 2, 3)] == [[0], [0, 1], [0, 1]]
    state = await store.watermark(SHARD)
    assert (state.open_record, set(state.lanes)) == ("torn", {1}), "another lane's steps stay open"


@pytest.mark.parametrize("wrong", [EPOCH - 1, EPOCH + 1])
async def test_another_epoch_is_fenced(subject: Subject, wrong: int) -> None:
    """I14: neither an older owner nor one that was never granted the shard writes anything."""
    store = subject.store
    calls = [
        store.write_and_advance(SHARD, wrong, [group(0, 1)], -1, 0),
        store.write_step(SHARD, wrong, [group(0, 1)], -1, "r", 0),
        store.trim(SHARD, wrong, TENANT, 1, 5),
    ]
    for call in calls:
        with pytest.raises(FencedError) as caught:
            await call
        assert (caught.value.epoch, caught.value.current) == (wrong, EPOCH)
    assert await seqs(store, 1) == []
    assert await store.trim_watermark(SHARD, TENANT, 1) == -1


async def test_an_epoch_that_fell_back_is_fenced(subject: Subject) -> None:
    """The last writer's epoch lies beside W: a lease store that forgot a grant cannot hand it out again."""
    await subject.store.write_and_advance(SHARD, EPOCH, [], -1, 0)
    await subject.grant(EPOCH - 1)
    with pytest.raises(FencedError):
        await subject.store.write_and_advance(SHARD, EPOCH - 1, [], 0, 1)


async def test_a_shard_without_an_epoch_is_fenced(subject: Subject) -> None:
    with pytest.raises(FencedError):
        await subject.store.write_and_advance(50, EPOCH, [], -1, 0)


async def test_lanes_move_one_by_one(subject: Subject) -> None:
    """§13: W is a vector; it is compared as a whole, moves where it is told to, and goes back nowhere."""
    store = subject.store
    apart = rule.marks([4, 7, *[9] * 62])
    assert await store.write_and_advance(SHARD, EPOCH, [group(7, 1, 2)], -1, apart) == apart
    assert rule.marks((await store.watermark(SHARD)).lanes) == apart
    assert await store.write_and_advance(SHARD, EPOCH, [group(8, 3)], 9, 11) == apart
    assert await store.write_and_advance(SHARD, EPOCH, [group(8, 3)], rule.marks([3] + [9] * 63), 11) == apart
    assert await seqs(store, 3) == []
    assert await store.write_step(SHARD, EPOCH, [group(8, 64)], apart, "8.0.2", 0) == 1
    between = rule.marks([4, *[9] * 63])
    assert await store.write_and_advance(SHARD, EPOCH, [group(9, 65)], apart, between) == between
    assert (await store.watermark(SHARD)).open_steps == 1, "a step of another lane stays"
    assert await store.write_and_advance(SHARD, EPOCH, [], between, 9, record="8.0.2", steps=2) == between
    assert await store.write_and_advance(SHARD, EPOCH, [], between, 9, record="8.0.2", steps=1) == 9
    assert [await seqs(store, ordinal) for ordinal in (1, 2, 64, 65)] == [[7], [7], [8], [9]]
    for wrong in (rule.marks([8] + [10] * 63), rule.marks([9] * 64)):
        with pytest.raises(ValueError, match="W cannot move"):
            await store.write_and_advance(SHARD, EPOCH, [], 9, wrong)


async def test_steps_stand_in_order_and_all_of_them(subject: Subject) -> None:
    store = subject.store
    assert await store.write_step(SHARD, EPOCH, [group(7, 1)], -1, "7", 0) == 1
    assert await store.write_step(SHARD, EPOCH, [group(7, 9)], -1, "7", 2) == 1  # step 1 is missing
    assert await seqs(store, 9) == []
    assert await store.write_and_advance(SHARD, EPOCH, [], -1, 7, record="7", steps=2) == -1
    assert await store.write_step(SHARD, EPOCH, [group(7, 2)], -1, "7", 1) == 2
    assert await store.write_step(SHARD, EPOCH, [group(7, 1)], -1, "7", 0) == 2  # repeated
    state = await store.watermark(SHARD)
    assert (state.open_record, state.open_steps, set(state.lanes)) == ("7", 2, {-1})
    assert await store.write_and_advance(SHARD, EPOCH, [], -1, 7, record="7", steps=2) == 7
    assert (await store.watermark(SHARD)).open_steps == 0


async def test_a_step_needs_w_where_it_was(subject: Subject) -> None:
    """A store that fell back takes no later entries: what it lost could never be put below them."""
    store = subject.store
    await store.write_and_advance(SHARD, EPOCH, [group(0, 1)], -1, 0)
    for expected in (-1, 1):
        assert await store.write_step(SHARD, EPOCH, [group(7, 1)], expected, "7", 0) == -1
    assert await seqs(store, 1) == [0]
    assert await store.write_step(SHARD, EPOCH, [group(7, 1)], 0, "7", 0) == 1


async def test_another_record_replaces_the_open_one(subject: Subject) -> None:
    store = subject.store
    await store.write_step(SHARD, EPOCH, [group(7, 1)], -1, "7", 0)
    assert await store.write_step(SHARD, EPOCH, [group(7, 2)], -1, "8", 1) == 0
    assert await store.write_step(SHARD, EPOCH, [group(7, 2)], -1, "8", 0) == 1
    assert await store.write_and_advance(SHARD, EPOCH, [], -1, 7, record="7", steps=1) == -1


async def test_shards_and_tenants_are_apart(subject: Subject) -> None:
    """I16: the same ordinal in another tenant or shard is another mailbox."""
    store = subject.store
    await subject.grant(1, shard=4)
    await store.write_and_advance(SHARD, EPOCH, [group(0, 1), group(0, 1, tenant="b")], -1, 0)
    await store.write_and_advance(4, 1, [group(5, 1)], -1, 5)
    assert await seqs(store, 1, tenant="b") == [0]
    assert await seqs(store, 1, tenant="c") == []
    states = await store.watermarks([SHARD, 4, 5])
    assert [state.lanes[0] for state in states] == [0, 5, -1]
    assert await store.watermarks([]) == []


async def test_reading_is_bounded_on_both_ends(subject: Subject) -> None:
    store = subject.store
    groups = [group(seq, 1, event=event) for seq in range(5) for event in (0, 1)]
    await store.write_and_advance(SHARD, EPOCH, groups, -1, 4)
    rows = await store.read(SHARD, TENANT, 1, 1, 3, 10)
    assert [(row.mailbox_seq, row.event_ordinal) for row in rows] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert len(await store.read(SHARD, TENANT, 1, -1, 4, 3)) == 3
    assert await store.read(SHARD, TENANT, 1, 3, 3, 10) == []
    assert await store.read(SHARD, TENANT, 1, -1, 4, 0) == []


async def test_largest_offsets_and_ordinals_are_exact(subject: Subject) -> None:
    """T-M7: nothing passes through a rounded number, up to 2**53 and u32."""
    store, top, last = subject.store, 2**32 - 1, rule.SEQ_MAX - 3
    await store.write_and_advance(SHARD, EPOCH, [group(last, top), group(last + 1, top)], -1, last + 1)
    assert await seqs(store, top) == [last, last + 1]
    assert set((await store.watermark(SHARD)).lanes) == {last + 1}


async def test_a_full_mailbox_is_trimmed_between_seqs_and_says_so(subject: Subject) -> None:
    """Bounded: the write that makes a mailbox too long cuts it and raises effective_trim. E14."""
    store = subject.store
    for seq in range(BOUND + 2):
        await store.write_and_advance(SHARD, EPOCH, [group(seq, 1), group(seq, 2 + seq)], seq - 1, seq)
    assert len(await seqs(store, 1)) == BOUND + 2
    assert await store.trim_watermark(SHARD, TENANT, 1) == -1
    late = BOUND + 2
    await store.write_and_advance(SHARD, EPOCH, [group(late, 1)], late - 1, late)
    assert await seqs(store, 1) == list(range(3, late + 1))
    assert await store.trim_watermark(SHARD, TENANT, 1) == 2
    assert await store.trim_watermark(SHARD, TENANT, 2) == -1


async def test_trim_never_goes_down_and_keeps_later_entries(subject: Subject) -> None:
    store = subject.store
    await store.write_and_advance(SHARD, EPOCH, [group(seq, 1) for seq in range(5)], -1, 4)
    assert await store.trim(SHARD, EPOCH, TENANT, 1, 2) == 2
    assert await store.trim(SHARD, EPOCH, TENANT, 1, 1) == 2
    assert await seqs(store, 1) == [3, 4]
    assert await store.trim_watermark(SHARD, TENANT, 1) == 2
    # A repeated write of a trimmed entry does not bring it back.
    assert await store.write_and_advance(SHARD, EPOCH, [group(2, 1), group(5, 1)], 4, 5) == 5
    assert await seqs(store, 1) == [3, 4, 5]


async def test_call_bounds(subject: Subject) -> None:
    store = subject.store
    assert await store.write_and_advance(SHARD, EPOCH, [group(0, *range(2_000))], -1, 0) == 0
    assert await seqs(store, 1_999) == [0]
    with pytest.raises(ValueError, match="2001 mailboxes"):
        await store.write_step(SHARD, EPOCH, [group(1, *range(2_001))], 0, "1", 0)
    for expected, observed in ((0, 0), (1, 0), (-2, 0), (0, rule.SEQ_MAX + 1)):
        with pytest.raises(ValueError, match="W cannot move"):
            await store.write_and_advance(SHARD, EPOCH, [], expected, observed)
    with pytest.raises(ValueError, match="belongs to a record"):
        await store.write_step(SHARD, EPOCH, [], 0, "", 0)


async def test_a_refused_write_leaves_the_watermark(client: RedisClient) -> None:
    """B11: a mailbox that refuses its entry holds W where it is, however often it is tried."""
    store = RedisMailboxStore(client)
    await client.set(f"{{s:{SHARD}}}:epoch", EPOCH)
    await client.set(f"{{s:{SHARD}}}:mb:{TENANT}:2", "not a stream")
    for _ in range(20):
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await store.write_and_advance(SHARD, EPOCH, [group(0, 1, 2, 3)], -1, 0)
    assert set((await store.watermark(SHARD)).lanes) == {-1}
    await client.delete(f"{{s:{SHARD}}}:mb:{TENANT}:2")
    assert await store.write_and_advance(SHARD, EPOCH, [group(0, 1, 2, 3)], -1, 0) == 0
    assert [await seqs(store, ordinal) for ordinal in (1, 2, 3)] == [[0], [0], [0]]


async def test_script_and_rule_agree_on_random_calls(client: RedisClient) -> None:
    """T-M7: the same random calls on Redis and on the Python rule give the same answers and contents."""
    seed = 20240611
    print("seed", seed)
    random = Random(seed)
    real, fake = (
        RedisMailboxStore(client, mailbox_entries_max=BOUND),
        MemoryMailboxStore(mailbox_entries_max=BOUND),
    )
    both: list[Subject] = [Subject(real, client), Subject(fake, None)]
    for one in both:
        await one.grant(1)
    seq, coverage, epoch, step = 0, -1, 1, 0
    for turn in range(1_200):
        kind = random.choices(
            ["advance", "step", "close", "grant", "trim", "stale", "apart"], [8, 4, 2, 1, 1, 2, 2]
        )[0]
        ordinals = sorted(random.sample(range(12), random.randint(0, 4)))
        if kind in ("advance", "stale"):
            seq += random.choice([1, 1, 3])
            expected = (
                coverage if kind == "advance" else random.choice([coverage - 1, coverage + 1, coverage])
            )
            writer = epoch if random.random() < 0.9 else epoch - 1
            args: tuple[Any, ...] = (
                SHARD,
                writer,
                [group(seq, *ordinals)],
                max(-1, min(expected, seq - 1)),
                seq,
            )
            answers = [await _answer(one.store.write_and_advance(*args)) for one in both]
        elif kind == "step":
            step = random.choice([step, step + 1, 0])
            at = random.choice([coverage] * 5 + [coverage + 1])
            args = (SHARD, epoch, [group(seq + 1, *ordinals)], at, str(seq + 1), step)
            answers = [await _answer(one.store.write_step(*args)) for one in both]
        elif kind == "close":
            args = (SHARD, epoch, [], coverage, seq + 1)
            more = {"record": str(seq + 1), "steps": random.randint(1, 3)}
            answers = [await _answer(one.store.write_and_advance(*args, **more)) for one in both]
            seq = answers[0] if isinstance(answers[0], int) and answers[0] > seq else seq
        elif kind == "apart":
            # Some lanes go on alone, then all of them are together again.
            seq += 1
            apart = rule.marks([seq if random.random() < 0.5 else coverage for _ in range(63)] + [coverage])
            args = (SHARD, epoch, [group(seq, *ordinals)], coverage, apart)
            answers = [await _answer(one.store.write_and_advance(*args)) for one in both]
            assert answers[0] == answers[1], f"turn {turn}: {kind} {args}"
            args = (SHARD, epoch, [], apart, seq)
            answers = [await _answer(one.store.write_and_advance(*args)) for one in both]
        elif kind == "trim":
            args = (SHARD, epoch, TENANT, random.randrange(12), random.randint(-1, seq + 1))
            answers = [await _answer(one.store.trim(*args)) for one in both]
        else:
            epoch += 1
            for one in both:
                await one.grant(epoch)
            continue
        assert answers[0] == answers[1], f"turn {turn}: {kind} {args}"
        states = [await one.store.watermark(SHARD) for one in both]
        assert states[0] == states[1], f"turn {turn}: {kind}"
        coverage = states[0].lanes[0]
    for ordinal in range(12):
        rows = [await one.store.read(SHARD, TENANT, ordinal, -1, rule.SEQ_MAX - 2, 1_000) for one in both]
        assert rows[0] == rows[1]
        trims = [await one.store.trim_watermark(SHARD, TENANT, ordinal) for one in both]
        assert trims[0] == trims[1]
    assert coverage > 100


async def _answer(call: Any) -> Any:
    try:
        return await call
    except FencedError as error:
        return ("fenced", error.current)


async def test_whether_stretches_have_anything(subject: Subject) -> None:
    """E4: entries, nothing, and what trimming may have taken are told apart, of many mailboxes at once."""
    store = subject.store
    await subject.grant(EPOCH, shard=4)
    await store.write_and_advance(SHARD, EPOCH, [group(0, 1, 2), group(5, 1)], -1, 7)
    await store.write_and_advance(4, EPOCH, [group(3, 1)], -1, 3)
    await store.trim(SHARD, EPOCH, TENANT, 2, 0)
    cases = [
        (Stretch(SHARD, TENANT, 1, -1, 7), True),
        (Stretch(SHARD, TENANT, 1, 4, 5), True),
        (Stretch(SHARD, TENANT, 1, 5, 7), False),
        (Stretch(SHARD, TENANT, 1, 0, 4), False),
        (Stretch(SHARD, TENANT, 2, -1, 7), True),  # trimmed: nobody can say that nothing was there
        (Stretch(SHARD, TENANT, 2, 0, 7), False),
        (Stretch(SHARD, TENANT, 9, -1, 7), False),
        (Stretch(4, TENANT, 1, 2, 3), True),
        (Stretch(4, "other", 1, -1, 3), False),
    ]
    assert await store.anything([one for one, _ in cases]) == [expected for _, expected in cases]
    await store.promise(4, EPOCH, -1, 2)
    assert await store.anything([Stretch(4, TENANT, 9, 1, 3), Stretch(4, TENANT, 9, 2, 3)]) == [True, False]
    assert await store.anything([]) == []
