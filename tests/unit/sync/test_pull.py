"""Pulls: whole seqs, limits, trims in the middle, bodies of both tiers (A10, E5, E14, I9)."""

import pytest

from qim_streams.errors import ProtocolError, SyncVerdict
from qim_streams.sync.pull import BODIES_MAX, READS_MAX, PullResult, PullService
from tests.support.mailbox_world import ADDRESS, CONVERSATION, SHARD, MailboxWorld, message_id, record


async def world_of(*seqs: int | tuple[int, int], body: bytes = b"x") -> MailboxWorld:
    """A mailbox with one event at each seq, or `n` at (seq, n)."""
    world = MailboxWorld()
    for one in seqs:
        seq, events = one if isinstance(one, tuple) else (one, 1)
        await world.write(seq, events, body)
    return world


def service(world: MailboxWorld) -> PullService:
    """The service over the world's tiers."""
    return PullService(world.store, world.hot, world.archive)


def places(result: PullResult) -> list[tuple[int, int]]:
    """(seq, ordinal) of each event."""
    return [(event.mailbox_seq, event.event_ordinal) for event in result.events]


async def pull_all(world: MailboxWorld, up_to: int, entries: int, size: int) -> list[tuple[int, int]]:
    """Pull from the start in steps; every step makes progress and covers what it says."""
    pulls, after, found = service(world), world.trimmed, []
    while True:
        result = await pulls.pull(ADDRESS, after, up_to, entries, size)
        assert result.covered_through_seq > after or not result.has_more
        assert all(after < seq <= result.covered_through_seq for seq, _ in places(result))
        found += places(result)
        after = result.covered_through_seq
        if not result.has_more:
            assert after == up_to
            return found


@pytest.mark.parametrize(("entries", "size"), [(1, 1), (2, 10**6), (3, 500), (1000, 10**6), (7, 1_000)])
async def test_every_entry_once_whatever_the_limits(entries: int, size: int) -> None:
    """I8: with holes, groups and tiny limits, the union of batches is the mailbox."""
    world = await world_of(0, (3, 4), 9, (10, 0), (11, 2), 50, (60, 0))
    assert await pull_all(world, 60, entries, size) == world.entries


async def test_a_group_is_never_split() -> None:
    """E5: limits that hit the middle of a seq end the batch before it, or return it whole."""
    world = await world_of(1, (2, 5), 3)
    first = await service(world).pull(ADDRESS, -1, 3, 3, 10**6)
    assert (places(first), first.covered_through_seq, first.has_more) == ([(1, 0)], 1, True)
    whole = await service(world).pull(ADDRESS, 1, 3, 3, 10**6)
    assert (places(whole), whole.covered_through_seq) == ([(2, n) for n in range(5)], 2)
    assert (await service(world).pull(ADDRESS, -1, 3, 1000, 200)).covered_through_seq == 1


async def test_trimmed_range_is_expired() -> None:
    """A10, X8: below the trim it is CURSOR_EXPIRED; from the trim on it is correct."""
    world = await world_of(1, 2, 3, 4)
    world.trim(2)
    with pytest.raises(SyncVerdict) as caught:
        await service(world).pull(ADDRESS, 1, 4, 10, 10**6)
    assert (caught.value.code, caught.value.fields) == ("CURSOR_EXPIRED", {"rebuild_required": True})
    assert places(await service(world).pull(ADDRESS, 2, 4, 10, 10**6)) == [(3, 0), (4, 0)]


@pytest.mark.parametrize("moment", ["before_read", "after_read"])
async def test_trim_during_the_read(moment: str) -> None:
    """E14: a trim between the first check and the rows, or right after them, is never a silent hole."""
    world = await world_of(1, 2, 3, 4)
    setattr(world.store, moment, lambda: world.trim(3))
    with pytest.raises(SyncVerdict, match="CURSOR_EXPIRED"):
        await service(world).pull(ADDRESS, 1, 4, 10, 10**6)


@pytest.mark.parametrize("moment", ["before_read", "after_read"])
async def test_a_store_that_is_emptied_during_the_read(moment: str) -> None:
    """T-R2, P7: entries, W and trim are lost together: rows that are missing are no proof of anything."""
    world = await world_of(1, 2, 3, 4)
    setattr(world.store, moment, lambda: world.store.restore({}))
    with pytest.raises(ProtocolError, match="SHARD_MOVED"):
        await service(world).pull(ADDRESS, 1, 4, 10, 10**6)


async def test_a_store_that_is_emptied_and_written_again_during_the_read() -> None:
    """The replay has an epoch of its own: what was read is read again."""
    world = await world_of(1, 2, 3, 4)
    whole = world.store.snapshot()
    whole[SHARD].epoch += 7

    def emptied() -> None:
        world.store.restore({})
        world.store.after_read = lambda: world.store.restore(whole)

    world.store.before_read = emptied
    assert places(await service(world).pull(ADDRESS, 1, 4, 10, 10**6)) == [(2, 0), (3, 0), (4, 0)]


async def test_owners_that_follow_each_other_hold_a_pull_only_so_long() -> None:
    world = await world_of(1, 2, 3)
    reads = 0

    def next_owner() -> None:
        nonlocal reads
        reads += 1
        world.store._shard(SHARD).epoch += 1
        world.store.before_read = next_owner

    world.store.before_read = next_owner
    with pytest.raises(ProtocolError, match="SHARD_MOVED"):
        await service(world).pull(ADDRESS, -1, 3, 10, 10**6)
    assert reads == READS_MAX


async def test_an_empty_answer_covers_the_range() -> None:
    """A range without entries is an honest success; an empty range tells W."""
    world = await world_of(1, (2, 0), (3, 0))
    result = await service(world).pull(ADDRESS, 1, 3, 10, 10**6)
    assert result == PullResult([], 3, 3, False, 1)
    assert await service(world).pull(ADDRESS, 3, 3, 10, 10**6) == PullResult([], 3, 3, False, 1)


async def test_nothing_above_the_watermark() -> None:
    """E1: W is the bound, also for a session that believes otherwise."""
    world = await world_of(1, 2)
    with pytest.raises(ProtocolError, match="PULL_OUT_OF_RANGE"):
        await service(world).pull(ADDRESS, 1, 3, 10, 10**6)


async def test_bodies_come_from_the_archive_when_the_hot_tier_has_none() -> None:
    """Trimming the hot tier below the archive watermark changes nothing for the reader."""
    world = await world_of(1, 2, 3)
    before = await service(world).pull(ADDRESS, -1, 3, 10, 10**6)
    world.archive_all()
    assert await service(world).pull(ADDRESS, -1, 3, 10, 10**6) == before


async def test_a_missing_or_foreign_body_is_an_error() -> None:
    """An entry without its message is never skipped and never shown with another one's body."""
    world = await world_of(1, 2)
    key = ("acme", CONVERSATION, 2)
    world.hot.rows[key] = record(2, message_id(99)).encode()
    with pytest.raises(SyncVerdict, match="BODY_UNAVAILABLE"):
        await service(world).pull(ADDRESS, -1, 2, 10, 10**6)
    world.hot.rows[key] = b"damaged"
    with pytest.raises(SyncVerdict, match="BODY_UNAVAILABLE"):
        await service(world).pull(ADDRESS, -1, 2, 10, 10**6)
    world.archive.rows[key] = record(2, message_id(2)).encode()
    assert len((await service(world).pull(ADDRESS, -1, 2, 10, 10**6)).events) == 2
    del world.hot.rows[key]
    with pytest.raises(SyncVerdict, match="BODY_UNAVAILABLE"):
        await PullService(world.store, world.hot).pull(ADDRESS, -1, 2, 10, 10**6)


async def test_bodies_are_fetched_in_portions() -> None:
    """P16: a byte limit is not answered by reading every body of the range."""
    world = await world_of(*range(400), body=b"b" * 10_000)
    result = await service(world).pull(ADDRESS, -1, 399, 1000, 100_000)
    assert len(result.events) == 9
    assert world.hot.asked == [32]
    small = await world_of(*range(400), body=b"b")
    assert len((await service(small).pull(ADDRESS, -1, 399, 1000, 10**6)).events) == 400
    assert max(small.hot.asked) <= BODIES_MAX
