"""Pages for users over both tiers: the join, who may read, what is not settled, what is bounded (I11)."""

import asyncio
import random
import time
from functools import partial

import msgpack
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from qim_streams.archive.ports import ArchivedMessage
from qim_streams.errors import AdmissionRefused, StoreUnavailable, SyncVerdict
from qim_streams.history.rules import UNREADABLE, UNUSED, Break, HistoryPage
from qim_streams.history.service import BARREN_READS_MAX, PAGES_AT_ONCE_MAX, READS_MAX, SETTLE_S
from tests.support.history_world import CHAT, TENANT, HistoryWorld, newer, older, reader

EVER = ((0, None),)


def seqs(page: HistoryPage) -> list[int]:
    """The numbers of a page's messages."""
    return [msgpack.unpackb(body)["conversation_seq"] for body in page.messages]


def bodies(page: HistoryPage) -> list[bytes]:
    """The bodies of a page's messages."""
    return [msgpack.unpackb(body)["body"] for body in page.messages]


def chat_of(count: int = 0, *, body: bytes = b"x") -> HistoryWorld:
    """A group of Ann's with `count` messages."""
    world = HistoryWorld()
    world.group({"ann": EVER})
    if count:
        world.say(count, body)
    return world


# -- both tiers as one


@pytest.mark.parametrize("trimmed", [0, 1, 15, 16, 17, 31, 99, 100])
async def test_no_seam_between_the_tiers(trimmed: int) -> None:
    """E11, P11: pages across the trim boundary, both ways, with every limit that may fall on it."""
    world = chat_of(100)
    await world.archive_up_to(100)
    world.trim(*range(1, trimmed + 1))
    service = world.service()
    for limit in (1, 7, 16, 100):
        for direction in (newer, older):
            found: list[int] = []
            anchor: int | None = None
            while True:
                page = await service.page(reader(), direction(anchor, limit))
                assert not page.breaks
                found = found + seqs(page) if direction is newer else seqs(page) + found
                anchor = page.next_anchor
                if not page.has_more:
                    break
            assert found == list(range(1, 101))


async def test_a_message_that_is_trimmed_while_it_is_read_is_found() -> None:
    """E14: the archive is asked after the hot tier, so a trim in between takes nothing away."""
    world = chat_of(40)
    await world.archive_up_to(40)
    world.store.before_rows = lambda: world.trim(*range(1, 31))
    assert seqs(await world.service().page(reader(), newer())) == list(range(1, 41))


async def test_the_hot_tier_has_the_last_word() -> None:
    """§8: an edit shows at once, though the archive still has the message as it was; a recall as well."""
    world = chat_of(3)
    await world.archive_up_to(3)
    world.trim(1)
    world.edit(2, b"edited")
    world.edit(3, b"", state=2)
    page = await world.service().page(reader(), newer())
    assert bodies(page) == [b"x", b"edited", b""]
    assert [msgpack.unpackb(body)["state"] for body in page.messages] == [0, 1, 2]


async def test_an_unreachable_archive_is_an_error_and_no_shorter_page() -> None:
    """What only the archive has must not look like nothing; what the hot tier has is served all the same."""
    world = chat_of(40)
    await world.archive_up_to(40)
    world.trim(*range(1, 21))
    world.archive.unavailable = True
    for query in (newer(), older(None, 40), newer(10, 1), older(25, 10)):
        with pytest.raises(StoreUnavailable):
            await world.service().page(reader(), query)
    assert seqs(await world.service().page(reader(), newer(20))) == list(range(21, 41))
    world.store.unavailable = True
    with pytest.raises(StoreUnavailable):
        await world.service().page(reader(), newer(20))


async def test_each_tier_is_asked_for_what_it_should_have() -> None:
    """Two stretches in the archive with a hot one between them: two ranges of it, none wider than needed."""
    world = chat_of(60)
    await world.archive_up_to(60)
    world.trim(*range(1, 17), *range(33, 41))
    asked: list[tuple[int, ...]] = []
    read = world.archive.range

    async def spied(tenant: str, chat: str, *numbers: int) -> list[ArchivedMessage]:
        asked.append(numbers)
        return await read(tenant, chat, *numbers)

    world.archive.range = spied  # type: ignore[assignment, method-assign]
    assert seqs(await world.service().page(reader(), newer(0, 60))) == list(range(1, 61))
    assert asked == [(0, 16, 16), (32, 48, 16)]
    assert world.store.reads == 1


async def test_a_hole_is_told_and_passed() -> None:
    """D1: numbers that no message has are a break, in the middle, at the end, in either tier."""
    world = chat_of(3)
    world.skip(2)
    world.say(2)
    await world.archive_up_to(7)
    world.skip(1)
    for trimmed in ((), (1, 2, 3), (6, 7)):
        world.trim(*trimmed)
        page = await world.service().page(reader(), newer())
        assert (seqs(page), page.breaks) == ([1, 2, 3, 6, 7], [Break(4, 5, UNUSED), Break(8, 8, UNUSED)])
        assert (page.has_more, page.next_anchor, page.latest_seq) == (False, 8, 8)


async def test_a_damaged_record_costs_itself() -> None:
    """P13: the archive stands in for a damaged hot record; without it the number is a break with a reason."""
    world = chat_of(3)
    records = world.tier.partition(0).records[TENANT, CHAT]
    await world.archive_up_to(2)
    records[2] = b"not a record"
    records[3] = records[1]  # a record of another number
    page = await world.service().page(reader(), newer())
    assert (seqs(page), page.breaks) == ([1, 2], [Break(3, 3, UNREADABLE)])


async def test_a_hot_tier_that_went_back_is_not_believed() -> None:
    """T-R2: numbers that the reader was told of and that are gone are no hole: an error, come back later."""
    world = chat_of(10)
    state = world.tier.partition(0)

    def go_back() -> None:
        state.heads[TENANT, CHAT].seq = 8
        for seq in (9, 10):
            del state.records[TENANT, CHAT][seq]

    world.store.before_rows = go_back
    with pytest.raises(StoreUnavailable, match="forgot"):
        await world.service().page(reader(), older(None, 3))
    assert seqs(await world.service().page(reader(), older(None, 3))) == [6, 7, 8]


async def test_reading_writes_nothing() -> None:
    """C7: the same thousand messages fifty times; archive and hot tier are as they were."""
    world = chat_of(1_000)
    await world.archive_up_to(1_000)
    world.trim(*range(1, 600))
    before, writes = world.tier.remember(), world.archive.writes
    service = world.service()
    for _ in range(50):
        page = await service.page(reader(), older(None, 500))
        page = await service.page(reader(), older(page.next_anchor, 500))
        assert not page.has_more
    assert (world.tier.remember(), world.archive.writes) == (before, writes)


# -- who


async def test_who_may_not_read_is_told_why() -> None:
    """P18: no such conversation here, another tenant's, never a member, a member of no message."""
    world = chat_of(3)
    world.group({"bob": ()}, chat="quiet")
    service = world.service()
    for who, code in (
        (reader(chat="nowhere"), "NO_CONVERSATION"),
        (reader(tenant="other"), "NO_CONVERSATION"),
        (reader("eve"), "NOT_MEMBER"),
        (reader("bob", "quiet"), "NOT_MEMBER"),
    ):
        for query in (newer(), older()):
            with pytest.raises(AdmissionRefused) as refused:
                await service.page(who, query)
            assert (refused.value.code, refused.value.retry_after_ms) == (code, None)


async def test_tenants_do_not_meet() -> None:
    """T-X5: the same conversation and user ids in two tenants."""
    world = chat_of(2)
    world.group({"ann": EVER}, tenant="other")
    assert seqs(await world.service().page(reader(), newer())) == [1, 2]
    assert (await world.service().page(reader(tenant="other"), newer())).latest_seq == 0


async def test_policy_and_rejoin() -> None:
    """G1, G2: what a newcomer, a member who came back and one who left see under either policy."""
    for policy, seen in (
        ("joined", {"new": [8, 9, 10], "back": [1, 2, 6, 7, 8, 9, 10], "gone": [3, 4]}),
        ("all", {"new": list(range(1, 11)), "back": list(range(1, 11)), "gone": [1, 2, 3, 4]}),
    ):
        world = HistoryWorld()
        world.group({"new": ((7, None),), "back": ((0, 2), (5, None)), "gone": ((2, 4),)}, policy)
        world.say(10)
        for user, expected in seen.items():
            for query in (newer(), older()):
                page = await world.service().page(reader(user), query)
                assert (seqs(page), page.has_more) == (expected, False), (policy, user)


# -- what is not settled


async def test_reserved_messages_are_shown_to_nobody() -> None:
    """What is not in the Outbox may never have been: the page ends before it, and says that more may come."""
    world = chat_of(5)
    world.say(2, pending=True)
    page = await world.service().page(reader(), newer(3))
    assert (seqs(page), page.has_more, page.next_anchor, page.latest_seq) == ([4, 5], True, 5, 5)
    assert seqs(await world.service().page(reader(), older(None, 2))) == [4, 5]
    world.confirm(6)
    assert seqs(await world.service().page(reader(), newer(3))) == [4, 5, 6]


async def test_a_confirmation_that_is_late_hides_nothing() -> None:
    """7 is in the Outbox, so 6 is, too: records enter it in the order of their numbers."""
    world = chat_of(5)
    world.say(2, pending=True)
    world.confirm(7)
    page = await world.service().page(reader(), newer(4))
    assert (seqs(page), page.has_more, world.slept) == ([5, 6, 7], False, 0.0)


async def test_the_end_waits_for_what_was_said_before_it_was_asked_for() -> None:
    """REBUILD: has_more is never false over a RESERVED message; its reader waits for it, then has it."""
    for anchor in (3, 5):
        world = chat_of(5)
        world.say(1, pending=True)
        world.while_waiting = partial(world.confirm, 6)
        page = await world.service().page(reader(), newer(anchor))
        assert (seqs(page), page.has_more) == ([*range(anchor + 1, 6), 6], False)


async def test_a_page_that_is_full_or_goes_back_does_not_wait() -> None:
    """Only who has come to the end has a reason to."""
    world = chat_of(5)
    world.say(2, pending=True)
    for query in (newer(3, 2), newer(0, 5), older(), older(6)):
        await world.service().page(reader(), query)
    assert world.slept == 0.0


async def test_one_can_read_to_the_end_of_what_never_ends() -> None:
    """Others talk on, and there is always something RESERVED: the reader comes to the end all the same."""
    world = chat_of(300)

    async def talk() -> None:
        last = world.say(1, pending=True)
        while True:
            fresh = world.say(2, pending=True)
            world.confirm(*range(last, fresh - 1))
            last = fresh - 1
            await asyncio.sleep(0)

    talking = asyncio.create_task(talk())
    await asyncio.sleep(0)
    service, anchor, found, more, pages = world.service(), 0, [], True, 0
    while more:
        page = await service.page(reader(), newer(anchor, 50))
        found += seqs(page)
        anchor, more, pages = page.next_anchor, page.has_more, pages + 1
        assert pages < 50
    talking.cancel()
    assert found == list(range(1, len(found) + 1))
    assert len(found) > 300


async def test_what_never_settles_is_an_error_in_time() -> None:
    """A writer that is away: HISTORY_UNSETTLED after the wait, never an empty page that says "more"."""
    world = chat_of(5)
    world.say(3, pending=True)
    for number, anchor in enumerate((5, 6, 7), 1):
        views = world.store.views
        with pytest.raises(SyncVerdict) as verdict:
            await world.service().page(reader(), newer(anchor))
        assert verdict.value.code == "HISTORY_UNSETTLED"
        assert number * SETTLE_S <= world.slept < number * SETTLE_S * 1.5
        assert world.store.views - views < 20
    page = await world.service().page(reader(), newer(8))
    assert (page.messages, page.has_more) == ([], False), "beyond the last number"


async def test_who_left_waits_for_nobody() -> None:
    """Messages after the leave are not his, settled or not."""
    world = chat_of(5)
    world.end("ann", 5)
    world.say(1, pending=True)
    page = await world.service().page(reader(), newer(5))
    assert (page.messages, page.has_more, page.latest_seq) == ([], False, 5)


# -- bounds


async def test_a_page_costs_a_bounded_number_of_reads() -> None:
    """A hole of ten thousand numbers: each page looks at a bounded part of it and goes on from there."""
    world = chat_of(1)
    world.skip(10_000)
    world.say(1)
    service, anchor, pages = world.service(), 0, 0
    while True:
        before = world.store.reads
        page = await service.page(reader(), newer(anchor, 500))
        pages += 1
        assert world.store.reads - before <= READS_MAX + BARREN_READS_MAX
        assert page.next_anchor > anchor
        anchor = page.next_anchor
        if not page.has_more:
            break
    assert (anchor, seqs(page)) == (10_002, [10_002])
    assert pages < 5


async def test_a_conversation_with_a_hole_is_read_by_any_client_in_few_pages() -> None:
    """After a restore: ten thousand numbers left out, pages of fifty, in both directions."""
    world = chat_of(3)
    world.skip(10_000)
    world.say(2)
    service, anchor, pages, found = world.service(), 0, 0, list[int]()
    while True:
        page = await service.page(reader(), newer(anchor, 50))
        pages, anchor, found = pages + 1, page.next_anchor, found + seqs(page)
        if not page.has_more:
            break
    assert (found, pages) == ([1, 2, 3, 10_004, 10_005], 4)
    before, last = world.store.reads, await service.page(reader(), older(None, 50))
    assert (seqs(last), last.has_more) == ([10_004, 10_005], True)
    assert world.store.reads - before <= READS_MAX + BARREN_READS_MAX


async def test_large_bodies_are_read_in_small_portions() -> None:
    """The byte limit bounds what is read, not only what is sent."""
    world = chat_of(500, body=b"b" * 10_000)
    page = await world.service().page(reader(), newer(0, 500, 192 * 1024))
    assert 10 < len(page.messages) < 20
    assert page.has_more
    assert world.store.reads == 1


async def test_a_page_of_small_messages_costs_few_reads() -> None:
    """Five hundred messages in at most READS_MAX reads, fifty in one."""
    world = chat_of(500)
    assert len((await world.service().page(reader(), newer(0, 50))).messages) == 50
    assert world.store.reads == 1
    assert len((await world.service().page(reader(), older(None, 500))).messages) == 500
    assert world.store.reads - 1 <= READS_MAX


async def test_a_rush_on_a_hot_page_costs_a_few_reads() -> None:
    """A thousand members open the same group at once: the messages are read a few times, not a thousand."""
    world = chat_of(200)
    world.group({f"u{n}": EVER for n in range(1_000)})
    service = world.service()
    pages = await asyncio.gather(
        *(service.page(reader(f"u{n}"), older(None, 40 + n % 10)) for n in range(1_000))
    )
    for n, page in enumerate(pages):
        assert seqs(page) == list(range(201 - (40 + n % 10), 201))
    # Once for those who came first and once or twice for the others; slots come in rounds.
    assert world.store.reads <= 4 * (1_000 // PAGES_AT_ONCE_MAX + 1)


# -- everything at once


@st.composite
def pasts(draw: st.DrawFn) -> tuple[HistoryWorld, list[int]]:
    """A world made by random messages, holes, joins, leaves, archiving and trims, and what Ann should see."""
    world = HistoryWorld()
    world.group({"ann": ()}, draw(st.sampled_from(["joined", "all"])))
    state, everything, mine = world.tier.partition(0), [], []
    ranges: list[tuple[int, int | None]] = []
    steps = st.sampled_from(["say", "say", "say", "skip", "join", "leave", "archive", "trim"])
    archived = 0
    for step in draw(st.lists(steps, min_size=1, max_size=40)):
        head = state.heads[TENANT, CHAT]
        inside = bool(ranges) and ranges[-1][1] is None
        if step == "say":
            for _ in range(draw(st.integers(1, 12))):
                everything.append(world.say())
                mine += everything[-1:] if inside else []
        elif step == "skip":
            world.skip(draw(st.integers(1, 20)))
        elif step == "join" and not inside:
            ranges.append((head.seq, None))
        elif step == "leave" and inside and ranges[-1][0] < head.seq:
            ranges[-1] = (ranges[-1][0], head.seq)
        elif step == "archive":
            archived = draw(st.integers(archived, head.seq))
            asyncio.run(world.archive_up_to(archived))
        elif step == "trim":
            held = [seq for seq in state.records.get((TENANT, CHAT), {}) if seq <= archived]
            world.trim(*draw(st.sets(st.sampled_from(held)) if held else st.just(set())))
    policy = str(world.tier.groups[TENANT, CHAT].fields["history_policy"])
    world.group({"ann": tuple(ranges)}, policy)
    if policy == "all" and ranges:
        end = ranges[-1][1]
        mine = [seq for seq in everything if end is None or seq <= end]
    return world, mine if ranges else []


@given(past=pasts(), limit=st.integers(1, 30), limit_bytes=st.integers(1, 4_000), forwards=st.booleans())
@effort(max_examples=150)
def test_random_pasts_read_as_the_plain_list(
    past: tuple[HistoryWorld, list[int]], limit: int, limit_bytes: int, forwards: bool
) -> None:
    """P4, P10, I11: pages of random limits through random pasts equal the list of what was said to Ann."""
    world, mine = past

    async def read_all() -> list[int]:
        service, direction = world.service(), newer if forwards else older
        found: list[int] = []
        anchor: int | None = None
        while True:
            page = await service.page(reader(), direction(anchor, limit, limit_bytes))
            found = found + seqs(page) if forwards else seqs(page) + found
            assert anchor is None or page.next_anchor != anchor or not page.has_more
            anchor = page.next_anchor
            if not page.has_more:
                return found

    if world.tier.partition(0).members[TENANT, CHAT]["ann"].intervals:
        assert asyncio.run(read_all()) == mine
    else:
        with pytest.raises(AdmissionRefused, match="NOT_MEMBER"):
            asyncio.run(read_all())


async def test_readers_while_the_past_moves_on() -> None:
    """C11, E14: twenty readers page while messages come, are archived and trimmed: each reads everything."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    world = chat_of(50)
    service = world.service()

    async def read(direction: int) -> None:
        found: list[int] = []
        page = await service.page(reader(), newer(0, rng.randint(1, 9)))
        while True:
            found += seqs(page)
            if not page.has_more:
                break
            page = await service.page(reader(), newer(page.next_anchor, rng.randint(1, 9)))
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= 50

    async def live() -> None:
        for _ in range(100):
            last = world.say(rng.randint(0, 2), pending=rng.random() < 0.5) or 50
            await asyncio.sleep(0)
            world.tier.partition(0).pending.clear()
            if rng.random() < 0.3:
                await world.archive_up_to(rng.randint(1, last))
                held = world.tier.partition(0).records[TENANT, CHAT]
                known = [seq for seq in held if (TENANT, CHAT, seq) in world.archive.messages]
                world.trim(*rng.sample(known, len(known) // 2))

    await asyncio.gather(live(), *(read(number) for number in range(20)))
