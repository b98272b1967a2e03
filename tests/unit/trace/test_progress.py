"""How far each stage has come, read from changelogs, stores and the archive. Spec: §4, §5."""

from qim_streams.fanout.progress import PAGE_KEY, OutboxPage
from qim_streams.mailbox.pages import DoneDispatch, Page, page_key
from qim_streams.trace.progress import FANOUT_PROGRESS, TAIL_RECORDS, read_progress
from qim_streams.trace.service import DISPATCH, OUTBOX, PROGRESS
from tests.unit.trace.world import OUTBOX_PARTITIONS, SHARDS, T0, World


def world() -> World:
    """A world with the fan-out's table, too."""
    made = World({3: [64]})
    made.log.topics[FANOUT_PROGRESS] = [[] for _ in range(OUTBOX_PARTITIONS)]
    return made


async def test_nothing_has_happened() -> None:
    made = world()
    progress = await read_progress(made.log, made.mailboxes, made.archive)
    assert len(progress.outbox) == OUTBOX_PARTITIONS
    assert len(progress.shards) == SHARDS
    assert {(row.end, row.dispatched_through, row.archived_through) for row in progress.outbox} == {
        (0, -1, -1)
    }
    assert {(row.fanout_lag, row.archive_lag) for row in progress.outbox} == {(0, 0)}
    assert {(row.end, row.lag, row.page_last) for row in progress.shards} == {(0, 0, None)}


async def test_lags_are_offsets_behind_the_end_of_the_source() -> None:
    made = world()
    for number in range(10):
        made.log.append(OUTBOX, 2, T0 + number, b"record")
        made.log.append(DISPATCH, 3, T0 + number, b"dispatch")
    for through in (3, 6):
        made.log.append(FANOUT_PROGRESS, 2, T0, OutboxPage(through, T0 + through).encode(), PAGE_KEY)
    await made.archive.store(2, [], 4)
    await made.mailboxes.write_and_advance(3, 1, [], -1, 7)
    for first, last in ((0, 4), (5, 7)):
        rows = [DoneDispatch(offset, bytes(16), bytes(8)) for offset in range(first, last + 1)]
        page = Page(first, last, T0 + last, rows)
        made.log.append(PROGRESS, 3, T0, page.encode(), page_key(first, last))
        made.log.append(PROGRESS, 3, T0, b"open progress", b"o")
    progress = await read_progress(made.log, made.mailboxes, made.archive)
    row = progress.outbox[2]
    assert (row.end, row.dispatched_through, row.fanout_lag, row.dispatched_at_ms) == (10, 6, 3, T0 + 6)
    assert (row.archived_through, row.archive_lag) == (4, 5)
    shard = progress.shards[3]
    assert (shard.end, set(shard.lanes), shard.lag, shard.epoch) == (10, {7}, 2, 1)
    assert (shard.page_first, shard.page_last, shard.page_dispatches) == (5, 7, 3)
    assert shard.page_at_ms == T0 + 7


async def test_only_the_tail_of_a_table_is_read() -> None:
    made = world()
    for number in range(5 * TAIL_RECORDS):
        made.log.append(PROGRESS, 3, T0, Page(number, number, T0, []).encode(), page_key(number, number))
    progress = await read_progress(made.log, made.mailboxes, made.archive, shard=3)
    assert progress.shards[0].page_last == 5 * TAIL_RECORDS - 1
    assert made.log.looked_at == TAIL_RECORDS


async def test_one_shard_only() -> None:
    made = world()
    progress = await read_progress(made.log, made.mailboxes, made.archive, shard=3)
    assert progress.outbox == []
    assert [row.shard for row in progress.shards] == [3]
    assert (await read_progress(made.log, made.mailboxes, made.archive, shard=99)).shards == []
