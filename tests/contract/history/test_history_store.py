"""One suite for every HistoryStore: the fake shows what Redis shows (T-C1)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.history.ports import ROWS_MAX
from qim_streams.history.redis_history import RedisHistoryStore
from qim_streams.records import decode_message
from qim_streams.redis_tier import RedisClient
from tests.contract.history.history_tiers import Tiers, tiers_of
from tests.support.hot_tier import TENANT, partition_of


@pytest.fixture(params=["memory", "real"])
async def tiers(
    request: pytest.FixtureRequest, hot_client: RedisClient, tmp_path: Path
) -> AsyncIterator[Tiers]:
    async with tiers_of(request.param, hot_client, tmp_path) as made:
        yield made


async def numbers(tiers: Tiers, chat: str = "g") -> tuple[int, int]:
    """Allocated and committed."""
    view = await tiers.store.view(TENANT, chat, "ann")
    assert view is not None
    return view.allocated_seq, view.committed_seq


def neighbour(chat: str) -> str:
    """Another conversation of the same partition."""
    names = (f"{chat}{n}" for n in range(1_000))
    return next(name for name in names if partition_of(TENANT, name) == partition_of(TENANT, chat))


async def test_there_is_no_such_conversation(tiers: Tiers) -> None:
    await tiers.hot.group("g", {"ann": "owner"})
    assert await tiers.store.view(TENANT, "h", "ann") is None
    assert await tiers.store.view("other", "g", "ann") is None
    assert await tiers.store.rows(TENANT, "h", [(1, 1)]) == (0, [None])


async def test_a_new_conversation(tiers: Tiers) -> None:
    await tiers.hot.group("g", {"ann": "owner"}, history_policy="all")
    view = await tiers.store.view(TENANT, "g", "ann")
    assert view is not None
    assert (view.allocated_seq, view.committed_seq, view.history_policy) == (0, 0, "all")
    assert view.member is not None
    assert (view.member.user_id, view.member.active, view.member.intervals) == ("ann", True, ((0, None),))
    stranger = await tiers.store.view(TENANT, "g", "eve")
    assert stranger is not None
    assert stranger.member is None


async def test_committed_is_what_the_outbox_is_known_to_have(tiers: Tiers) -> None:
    """A message counts once it, or a later one of the conversation, was confirmed."""
    await tiers.hot.group("g", {"ann": "owner"})
    first = await tiers.say("g", "ann", 3, confirm=False)
    assert await numbers(tiers) == (3, 0)
    await tiers.confirm("g", first[0][1])
    assert await numbers(tiers) == (3, 1)
    await tiers.confirm("g", first[2][1])
    assert await numbers(tiers) == (3, 3)
    second = await tiers.say("g", "ann", 12, confirm=False)
    assert await numbers(tiers) == (15, 3)
    await tiers.confirm("g", *(identity for _, identity in second[:9]))
    assert await numbers(tiers) == (15, 12)


async def test_what_is_pending_elsewhere_does_not_matter(tiers: Tiers) -> None:
    """One pending list per partition: a neighbour's numbers, also of a name that begins with this one."""
    other = neighbour("g")
    for chat in ("g", other):
        await tiers.hot.group(chat, {"ann": "owner"})
    await tiers.say("g", "ann", 5)
    await tiers.say(other, "ann", 5, confirm=False)
    ((_, identity),) = await tiers.say("g", "ann", 1, confirm=False)
    assert (await numbers(tiers), await numbers(tiers, other)) == ((6, 5), (5, 0))
    await tiers.confirm("g", identity)
    assert await numbers(tiers) == (6, 6)


async def test_members_who_come_and_go(tiers: Tiers) -> None:
    """G1: the intervals are those of the member row, read in the same moment."""
    await tiers.hot.group("g", {"ann": "owner", "bob": "member"})
    await tiers.say("g", "ann", 2)
    await tiers.change("g", leaves=["bob"])
    await tiers.say("g", "ann", 2)
    await tiers.change("g", joins=["bob"])
    view = await tiers.store.view(TENANT, "g", "bob")
    assert view is not None
    assert view.member is not None
    assert view.member.intervals == ((0, 2), (4, None))


async def test_records_come_in_the_order_asked_for(tiers: Tiers) -> None:
    await tiers.hot.group("g", {"ann": "owner"})
    await tiers.say("g", "ann", 40)
    await tiers.archive_up_to("g", 10)
    await tiers.trim("g", [2, 3])
    found = await tiers.store.rows(TENANT, "g", [(39, 41), (1, 4)])
    assert found.allocated_seq == 40
    seen = [row and decode_message(row).conversation_seq for row in found.rows]
    assert seen == [39, 40, None, 1, None, None, 4]
    many = await tiers.store.rows(TENANT, "g", [(1, ROWS_MAX)])
    assert (len(many.rows), sum(row is not None for row in many.rows)) == (ROWS_MAX, 38)


async def test_large_numbers_are_exact(tiers: Tiers) -> None:
    """H7: nothing is rounded on its way through a script, up to the last number that there is."""
    await tiers.hot.group("g", {"ann": "owner"})
    await tiers.skip("g", 2**53 - 3)
    made = await tiers.say("g", "ann", 2, confirm=False)
    assert [seq for seq, _ in made] == [2**53 - 2, 2**53 - 1]
    assert await numbers(tiers) == (2**53 - 1, 2**53 - 3)
    rows = (await tiers.store.rows(TENANT, "g", [(2**53 - 1, 2**53 - 1)])).rows
    assert rows[0] is not None
    assert decode_message(rows[0]).conversation_seq == 2**53 - 1


async def test_a_lost_redis_is_an_error_of_ours(hot_client: RedisClient) -> None:
    """No driver's error leaves the adapter; nothing was applied or read."""
    from pydantic import SecretStr

    from qim_streams.embedded.ports import free_ports
    from qim_streams.redis_tier import connect
    from qim_streams.settings import Settings

    nobody = connect(Settings(redis_url=SecretStr(f"redis://127.0.0.1:{free_ports(1)[0]}/0")))
    store = RedisHistoryStore(nobody, partition_of)
    with pytest.raises(StoreUnavailable):
        await store.view(TENANT, "g", "ann")
    with pytest.raises(StoreUnavailable):
        await store.rows(TENANT, "g", [(1, 1)])
    await nobody.aclose()
