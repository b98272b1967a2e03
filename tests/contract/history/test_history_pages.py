"""Pages over memory, and over a real Redis with a real RocksDB archive beside it: the same answers."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgpack
import pytest

from qim_streams.errors import AdmissionRefused, SyncVerdict
from qim_streams.history.rules import UNUSED, Break, HistoryPage, PageQuery
from qim_streams.history.service import HistoryReader, HistoryService
from qim_streams.redis_tier import RedisClient
from tests.contract.history.history_tiers import Tiers, tiers_of
from tests.support.hot_tier import TENANT

ANN, BOB = HistoryReader(TENANT, "ann", "g"), HistoryReader(TENANT, "bob", "g")
ROUNDS = 4


@pytest.fixture(params=["memory", "real"])
async def tiers(
    request: pytest.FixtureRequest, hot_client: RedisClient, tmp_path: Path
) -> AsyncIterator[Tiers]:
    async with tiers_of(request.param, hot_client, tmp_path) as made:
        yield made


def seqs(page: HistoryPage) -> list[int]:
    """The numbers of a page's messages."""
    return [msgpack.unpackb(body)["conversation_seq"] for body in page.messages]


async def read_all(
    service: HistoryService, reader: HistoryReader, rng: random.Random, *, forwards: bool
) -> list[int]:
    """Everything, in pages of random limits."""
    found: list[int] = []
    anchor: int | None = None
    while True:
        query = PageQuery(forwards, anchor, rng.randint(1, 60), rng.choice((1_000, 4_000, 10**6)))
        page = await service.page(reader, query)
        found = found + seqs(page) if forwards else seqs(page) + found
        if not page.has_more:
            return found
        assert page.next_anchor != anchor
        anchor = page.next_anchor


async def test_random_pasts_read_as_the_plain_list(tiers: Tiers) -> None:
    """P4, P10, P11: messages, holes, leaves, rejoins, archiving and trims at random; both directions."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    await tiers.hot.group("g", {"ann": "owner", "bob": "member"})
    everything: list[int] = []
    bobs: list[int] = []
    inside, last, archived = True, 0, 0
    for _ in range(ROUNDS):
        for step in rng.choices(("say", "skip", "move", "archive", "trim"), (6, 1, 2, 2, 2), k=12):
            if step == "say":
                fresh = [seq for seq, _ in await tiers.say("g", "ann", rng.randint(1, 30))]
                last = fresh[-1]
                everything += fresh
                bobs += fresh if inside else []
            elif step == "skip":
                gap = rng.randint(1, 40)
                await tiers.skip("g", gap)
                last += gap
            elif step == "move":
                await tiers.change("g", **{"leaves" if inside else "joins": ["bob"]})
                inside = not inside
            elif step == "archive":
                archived = rng.randint(archived, last)
                await tiers.archive_up_to("g", archived)
            elif archived:
                await tiers.trim("g", rng.sample(range(1, archived + 1), rng.randint(0, archived)))
        service = tiers.service()
        for forwards in (True, False):
            assert await read_all(service, ANN, rng, forwards=forwards) == everything
            view = await tiers.store.view(TENANT, "g", "bob")
            if view is not None and view.member is not None and view.member.intervals:
                assert await read_all(service, BOB, rng, forwards=forwards) == bobs
            else:  # he came and went, and nobody said a word
                with pytest.raises(AdmissionRefused, match="NOT_MEMBER"):
                    await read_all(service, BOB, rng, forwards=forwards)
    await tiers.archive_up_to("g", last)
    await tiers.trim("g", range(1, last + 1))
    assert await read_all(tiers.service(), ANN, rng, forwards=False) == everything, (
        "all of it from the archive"
    )


async def test_five_hundred_messages_of_one_millisecond(tiers: Tiers) -> None:
    """C8, D10: pages follow the number, whatever the clocks said; half of them lie in the archive."""
    await tiers.hot.group("g", {"ann": "owner"})
    await tiers.say("g", "ann", 500)
    await tiers.archive_up_to("g", 250)
    await tiers.trim("g", range(1, 251))
    found: list[int] = []
    anchor: int | None = None
    pages, more = 0, True
    while more:
        page = await tiers.service().page(ANN, PageQuery(False, anchor, 20, 10**6))
        found, anchor, pages, more = seqs(page) + found, page.next_anchor, pages + 1, page.has_more
    assert (found, pages) == (list(range(1, 501)), 25), "C11: ceil(n / limit) pages"


async def test_reading_a_thousand_messages_writes_nothing(tiers: Tiers) -> None:
    """C7: fifty readers of the same thousand messages; neither tier holds a byte more."""
    await tiers.hot.group("g", {"ann": "owner"})
    await tiers.say("g", "ann", 1_000)
    await tiers.archive_up_to("g", 700)
    await tiers.trim("g", range(1, 601))

    async def held() -> tuple[int, int, int]:
        rows = (await tiers.store.rows(TENANT, "g", [(1, 1_000)])).rows
        archived = await tiers.archive_reader.range(TENANT, "g", 0, 2_000, 1_000)
        size = 0
        if tiers.hot.client is not None:
            size = sum([len(await tiers.hot.client.dump(key)) for key in await tiers.hot.client.keys("*")])
        return sum(row is not None for row in rows), len(archived), size

    before = await held()
    service = tiers.service()

    async def read() -> list[int]:
        last = await service.page(ANN, PageQuery(False, None, 500, 10**6))
        first = await service.page(ANN, PageQuery(False, last.next_anchor, 500, 10**6))
        assert not first.has_more
        return seqs(first) + seqs(last)

    for _ in range(5):
        assert await asyncio.gather(*(read() for _ in range(10))) == [list(range(1, 1_001))] * 10
    assert await held() == before


async def test_the_end_waits_for_the_outbox(tiers: Tiers) -> None:
    """REBUILD: RESERVED messages are not shown, not skipped and not promised for ever."""
    await tiers.hot.group("g", {"ann": "owner"})
    await tiers.say("g", "ann", 3)
    ((_, identity),) = await tiers.say("g", "ann", 1, confirm=False)
    page = await tiers.service().page(ANN, PageQuery(True, 1, 10, 10**6))
    assert (seqs(page), page.has_more, page.latest_seq) == ([2, 3], True, 3)
    with pytest.raises(SyncVerdict, match="HISTORY_UNSETTLED"):
        await tiers.service().page(ANN, PageQuery(True, 3, 10, 10**6))
    waiting = asyncio.create_task(tiers.service().page(ANN, PageQuery(True, 1, 10, 10**6)))
    await asyncio.sleep(0)
    await tiers.confirm("g", identity)
    page = await waiting
    assert (seqs(page), page.has_more) == ([2, 3, 4], False)


async def test_a_hole_at_the_end_is_no_reason_to_wait(tiers: Tiers) -> None:
    """D1, D2: numbers given out and never used: a break, and the end."""
    await tiers.hot.group("g", {"ann": "owner"})
    await tiers.say("g", "ann", 2)
    await tiers.skip("g", 5)
    page = await tiers.service().page(ANN, PageQuery(True, 1, 10, 10**6))
    assert (seqs(page), page.breaks, page.has_more) == ([2], [Break(3, 7, UNUSED)], False)


async def test_two_nodes_show_the_same(tiers: Tiers) -> None:
    """A17: two gateways over the same stores, asked in turn: byte for byte the same pages."""
    await tiers.hot.group("g", {"ann": "owner", "bob": "member"})
    await tiers.say("g", "ann", 100)
    await tiers.archive_up_to("g", 80)
    await tiers.trim("g", range(1, 60))
    one, two = tiers.service(), tiers.service()
    for anchor in (None, 10, 59, 60, 61, 100):
        for forwards in (True, False):
            query = PageQuery(forwards, anchor, 30, 10**6)
            assert await one.page(BOB, query) == await two.page(BOB, query)
