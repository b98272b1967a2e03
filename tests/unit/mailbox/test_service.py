"""Where a shard starts, and when it refuses to. Spec: §11. E13, T-B4, H6. (Batches: the shard machine.)"""

import pytest

from qim_streams.errors import FencedError, InvariantViolation, StoreUnavailable
from qim_streams.mailbox import members, metrics, service
from qim_streams.mailbox.kept import KeptPositions
from qim_streams.mailbox.memory_table import MemoryTable
from tests.support.shard_world import SHARD, ShardWorld, Worker


async def started(world: ShardWorld, boot: int) -> Worker:
    worker = Worker(world, boot)
    await worker.start()
    return worker


def direct(world: ShardWorld, count: int = 1) -> None:
    for _ in range(count):
        world.append_message([1, 65], sender=1, inline=True)


async def test_a_shard_goes_on_behind_its_pages() -> None:
    world = ShardWorld()
    direct(world, 5)
    worker = await started(world, 1)
    assert worker.next_offset == 0
    await worker.work(3)
    world.lose_disk()
    assert (await started(world, 2)).next_offset == 3


async def test_a_store_ahead_of_the_table_is_not_written_again_but_paged() -> None:
    world = ShardWorld()
    direct(world, 3)
    worker = await started(world, 1)
    await world.store.write_and_advance(SHARD, 1, [], -1, 2)  # entries and W of a batch whose page was lost
    before = world.store.snapshot()
    worker = await started(world, 2)
    assert worker.next_offset == 0
    world.faults.arm(0, "lost_request")  # a write to the store would fail
    await worker.work(3)
    assert repr(world.store.snapshot()).replace("owner=2", "owner=1") == repr(before)
    assert worker.progress.seen(SHARD, [world.id_of(2)])[0] is not None


async def test_a_store_behind_the_table_is_filled_again() -> None:
    """E13: W is never lowered in the table, nobody is served from it, and replay brings it back."""
    world = ShardWorld()
    direct(world, 4)
    worker = await started(world, 1)
    await worker.work(2)
    old = world.store.snapshot()
    await worker.work(2)
    world.store.restore(old)
    alarms = metrics.ALARMS.labels("store_fell_back")._value.get()
    worker = await started(world, 2)
    assert (worker.next_offset, worker.leases.served[SHARD].caught_up) == (2, False)
    assert metrics.ALARMS.labels("store_fell_back")._value.get() == alarms + 1
    await worker.work(1)
    assert worker.leases.served[SHARD].floor == 3
    await worker.work(1)
    assert worker.leases.served[SHARD].caught_up
    await world.check()
    assert world.pushes.pushed == [(1, 0), (1, 1), (1, 2), (1, 3)], "pushed once, not again by the replay"


@pytest.mark.parametrize("where", ["table", "store"])
async def test_a_log_that_ends_too_early_is_refused(where: str) -> None:
    """T-B4: the topic was re-created; serving it would pass off old coverage as new."""
    world = ShardWorld()
    direct(world, 3)
    worker = await started(world, 1)
    await worker.work(3)
    if where == "store":
        world.progress_table.changelog.clear()
        world.floor_table.changelog.clear()
        world.lose_disk()
    world.log, world.next_offset = world.log[:1], 1
    with pytest.raises(InvariantViolation, match="re-created"):
        await started(world, 2)


async def test_a_gap_between_w_and_what_was_read_is_refused() -> None:
    """B2: a batch that does not start where W stands would cover records that were never written."""
    world = ShardWorld()
    direct(world, 5)
    worker = await started(world, 1)
    worker.next_offset, worker.previous = 3, 2
    with pytest.raises(InvariantViolation, match="covered without entries"):
        await worker.work(1)
    assert set(await world.watermark()) == {-1}


async def test_lanes_that_stand_apart_go_on_where_each_of_them_is() -> None:
    """§11 rule 1: from min(W) + 1; lanes that have it are not written again, nobody is made to wait."""
    world = ShardWorld()
    members = [0, 1, 2, 63, 64, 65]
    world.append_message(members, sender=1, inline=True)
    world.append_message([2], sender=1, inline=True)
    first = await started(world, 1)
    await first.work(2, checkpoint=False)
    await first.slice()
    await first.checkpoint()
    lanes = await world.watermark()
    assert len(set(lanes)) > 1
    assert (first.acknowledged, first.shard.done_through) == (-1, -1)
    second = await started(world, 2)
    assert (second.next_offset, second.shard.caught_up) == (0, True)
    assert (await world.store.watermark(SHARD)).promised == -1
    await second.work(2, checkpoint=False)
    await second.drain()
    await second.checkpoint()
    assert set(await world.watermark()) == {1}
    assert second.shard.open is None
    await world.check()


async def test_a_lane_that_fell_back_alone_is_replayed() -> None:
    """§11 rule 2: W_floor is kept per lane."""
    world = ShardWorld()
    world.append_message([0, 1, 2, 63, 64, 65], sender=1, inline=True)
    first = await started(world, 1)
    await first.work(1, checkpoint=False)
    old = world.store.snapshot()
    await first.slice()
    await first.checkpoint()  # the table knows of the slice
    world.store.restore(old)
    second = await started(world, 2)
    assert not second.shard.caught_up
    assert (await world.store.watermark(SHARD)).promised == 0
    await second.work(1)
    await second.drain()
    assert second.shard.caught_up
    await world.check()


async def test_a_small_record_passes_a_large_one_in_lanes_of_its_own() -> None:
    """§13: only the lanes that a large record touches wait, and each of them only for its own part."""
    world = ShardWorld()
    world.append_message([0, 1, 64, 65], sender=1, inline=True)
    world.append_message([2, 66], sender=2, inline=True)
    world.append_message([1], sender=1, inline=True)
    worker = await started(world, 1)
    await worker.work(3, checkpoint=False)
    lanes = await world.watermark()
    assert (lanes[0], lanes[1], lanes[2]) == (-1, -1, 2)
    assert len(await world.held(2)) == 1
    await worker.slice()  # the lane in which somebody waits comes first
    lanes = await world.watermark()
    assert (lanes[0], lanes[1], lanes[2]) == (-1, 2, 2)
    assert [seq for seq, _ in await world.held(1)] == [0, 2]
    await worker.drain()
    assert set(await world.watermark()) == {2}
    await world.check()


async def test_a_mailbox_that_refuses_holds_its_lane_only() -> None:
    """B11: other lanes go on, and so do those behind it; what was acknowledged ends before it."""
    world = ShardWorld()
    direct(world)
    world.store.refusing = {65}
    for _ in range(4):
        world.append_message([2, 66], sender=2, inline=True)
    worker = await started(world, 1)
    await worker.work(5)
    lanes = await world.watermark()
    assert (lanes[1], lanes[2], worker.acknowledged) == (-1, 4, -1)
    assert await worker.slice() == 0, "it is left alone for a while"
    world.store.refusing.clear()
    world.clock_s += 2
    await worker.drain()
    await worker.checkpoint()
    assert (set(await world.watermark()), worker.acknowledged) == ({4}, 4)
    await world.check()


async def test_a_record_that_holds_too_many_back_holds_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for the sake of one record is bounded; then its partition waits, unacknowledged."""
    monkeypatch.setattr(service, "BEHIND_MAX", 3)
    world = ShardWorld()
    world.store.refusing = {65}
    direct(world, 8)
    worker = await started(world, 1)
    await worker.work(5)
    with pytest.raises(StoreUnavailable, match="wait behind the one after -1"):
        await worker.work(1)
    world.store.refusing.clear()
    world.clock_s += 2
    await worker.drain()
    await worker.work(3)
    assert set(await world.watermark()) == {7}


async def test_the_old_owner_is_fenced() -> None:
    """P14, T-Z1."""
    world = ShardWorld()
    direct(world, 2)
    old = await started(world, 1)
    world.lose_disk()
    await started(world, 2)
    with pytest.raises(FencedError):
        await old.work(1)


async def test_a_missing_member_bitmap_costs_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: to the dead letters with an alarm; W goes on."""
    monkeypatch.setattr(members, "_FIRST_WAIT_S", 0.0)
    world = ShardWorld()
    world.append_message([1, 65], sender=1, inline=False)
    direct(world)
    world.bitmaps.rows.clear()
    worker = await started(world, 1)
    await worker.work(2)
    assert world.graveyard.offsets == [0]
    assert set(await world.watermark()) == {1}
    assert len(await world.held(65)) == 1


async def test_w_is_a_metric_of_whoever_serves_the_shard() -> None:
    """E4: what stands still is seen; a worker that gave the shard up says nothing of it."""
    world = ShardWorld()
    direct(world, 3)
    worker = await started(world, 1)
    shown = metrics.WATERMARK.labels(str(SHARD))._value
    assert shown.get() == -1
    await worker.work(2)
    assert shown.get() == 1
    await worker.service.release(frozenset({SHARD}))
    assert (str(SHARD),) not in metrics.WATERMARK._metrics
    await worker.service.release(frozenset({SHARD}))


async def test_everything_known_of_a_released_shard_is_dropped() -> None:
    world = ShardWorld()
    direct(world, 2)
    worker = await started(world, 1)
    await worker.work(1)
    await worker.service.release(frozenset({SHARD}))
    assert worker.leases.served == {}
    await worker.start()
    assert worker.next_offset == 1
    assert worker.leases.served[SHARD].epoch == 1, "it came back to the same worker"
    await worker.service.close()


def test_the_fake_table_recovers_what_was_acknowledged() -> None:
    """The model's own ground: a wiped disk holds what the changelog holds."""
    table = MemoryTable()
    table.write_batch(0, {b"a": b"1", b"b": b"2"})
    table.crash(0, sent=1)
    assert table.read(0, b"b") == b"2"
    assert (table.elsewhere().read(0, b"a"), table.elsewhere().read(0, b"b")) == (b"1", None)


async def test_a_store_that_was_emptied_is_owed_to_its_readers_until_it_is_back() -> None:
    """T-R2: readers wait for W to be where it was; what the log has no more is trimmed for everybody."""
    world = ShardWorld()
    direct(world, 6)
    worker = await started(world, 1)
    await worker.work(6)
    world.store.restore({})
    world.begin = 2
    worker = await started(world, 2)
    state = await world.store.watermark(SHARD)
    assert (state.promised, min(state.lanes)) == (5, -1)
    assert await world.store.trim_watermark(SHARD, "acme", 1) == 1
    assert world.store.kept(SHARD) == KeptPositions(1, 2, 5), "the numbers are the log's: cursors above stand"
    worker = await started(world, 3)
    assert (await world.store.watermark(SHARD)).promised == 5, "another owner owes the same"


async def test_nobody_knows_positions_of_a_log_that_is_new_to_the_shard() -> None:
    """E8: without a row in the table nothing says that old cursors meant this log."""
    world = ShardWorld()
    direct(world, 3)
    await (await started(world, 1)).work(3)
    world.store.restore({})
    world.floor_table.changelog.clear()
    world.lose_disk()
    await started(world, 2)
    assert world.store.kept(SHARD) is None
    world.store.restore({})
    await started(world, 3)
    assert world.store.kept(SHARD) == KeptPositions(2, 3, 2), "from then on it is known"


async def test_what_retention_took_before_it_was_replayed_is_nobodys_success() -> None:
    """P7: the log begins behind what the table knows: cursors in between are below the trim."""
    world = ShardWorld()
    direct(world, 6)
    await (await started(world, 1)).work(2)
    world.store.restore({})
    world.begin = 4
    await started(world, 2)
    assert await world.store.trim_watermark(SHARD, "acme", 1) == 3


async def test_what_cannot_be_replayed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: members that are gone leave a hole; whoever has not read past it rebuilds from the histories."""
    monkeypatch.setattr(members, "_FIRST_WAIT_S", 0.0)
    world = ShardWorld()
    direct(world)
    world.append_message([1, 65], sender=1, inline=False)
    direct(world)
    await (await started(world, 1)).work(3)
    world.store.restore({})
    world.bitmaps.rows.clear()
    worker = await started(world, 2)
    await worker.work(3)
    assert world.graveyard.offsets == [1]
    assert await world.store.trim_watermark(SHARD, "acme", 1) == 1
    assert (await world.store.watermark(SHARD)).promised == 2, "what is owed is owed still"


async def test_a_store_that_lost_nothing_owes_nothing() -> None:
    world = ShardWorld()
    direct(world, 3)
    worker = await started(world, 1)
    await worker.work(3)
    world.begin = 2
    await started(world, 2)
    assert (await world.store.watermark(SHARD)).promised == -1
    assert await world.store.trim_watermark(SHARD, "acme", 1) == -1
