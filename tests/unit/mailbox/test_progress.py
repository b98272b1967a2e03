"""DispatchProgress: exact deduplication over restarts, lost disks, takeovers and retention."""

from itertools import pairwise

import pytest

from qim_streams.mailbox import progress as progress_module
from qim_streams.mailbox.memory_table import MemoryTable
from qim_streams.mailbox.pages import DoneDispatch, OpenProgress, page_end
from qim_streams.mailbox.progress import EXPIRE_PAGES_MAX, SWEEP_KEYS_MAX, DispatchProgress

P, DAY = 3, 86_400_000


def row(offset: int) -> DoneDispatch:
    return DoneDispatch(offset, offset.to_bytes(16, "big"), b"digest!!")


async def page(progress: DispatchProgress, first: int, last: int, now_ms: int = 0) -> None:
    progress.note(P, first, last, [row(offset) for offset in range(first, last + 1)])
    progress.write_page(P, now_ms)
    await progress.barrier(P)
    progress.settle(P)


async def recovered(table: MemoryTable, retention_ms: int = 7 * DAY) -> DispatchProgress:
    progress = DispatchProgress(table, retention_ms)
    await progress.recover(P)
    return progress


def known(progress: DispatchProgress, offset: int) -> int | None:
    seen = progress.seen(P, [row(offset).dispatch_id])[0]
    return None if seen is None else seen.offset


async def test_a_new_partition_has_done_nothing() -> None:
    progress = DispatchProgress(MemoryTable(), DAY)
    assert await progress.recover(P) == -1
    assert progress.open(P) is None
    assert progress.seen(P, []) == []


async def test_ids_survive_a_lost_disk() -> None:
    """T-S3: the index is rebuilt from the pages of the changelog."""
    table = MemoryTable()
    progress = await recovered(table)
    for first in range(0, 30, 10):
        await page(progress, first, first + 9)
    elsewhere = DispatchProgress(table.elsewhere(), DAY)
    assert await elsewhere.recover(P) == 29
    assert [known(elsewhere, offset) for offset in (0, 15, 29, 30)] == [0, 15, 29, None]


async def test_only_pages_above_the_mark_are_indexed_again() -> None:
    table = MemoryTable()
    await page(await recovered(table), 0, 9)
    table.local(P).write_batch({b"i" + row(3).dispatch_id: None})  # would come back from a full rebuild
    other = table.elsewhere()
    await page(await recovered(other), 10, 19)
    merged = MemoryTable(table.changelog)  # the first disk, after recovery brought the other's page
    merged.local(P).write_batch(dict(table.local(P).iterate()))
    progress = await recovered(merged)
    assert (known(progress, 3), known(progress, 4), known(progress, 12)) == (None, 4, 12)


async def test_notes_are_known_at_once_and_become_one_page() -> None:
    table = MemoryTable()
    progress = await recovered(table)
    progress.note(P, 0, 2, [row(0), row(2)])
    progress.note(P, 3, 7, [row(5)])
    assert [known(progress, offset) for offset in (0, 1, 2, 5)] == [0, None, 2, 5]
    assert known(await recovered(table), 5) is None, "notes are memory"
    assert progress.write_page(P, 0) == 7
    await progress.barrier(P)
    progress.settle(P)
    assert progress.write_page(P, 0) is None, "nothing was noted since"
    elsewhere = DispatchProgress(table.elsewhere(), DAY)
    assert await elsewhere.recover(P) == 7
    assert [known(elsewhere, offset) for offset in (0, 1, 2, 5)] == [0, None, 2, 5]


async def test_a_page_that_failed_is_written_again() -> None:
    table = MemoryTable()
    progress = await recovered(table)
    progress.note(P, 0, 4, [row(3)])
    progress.write_page(P, 0)
    table.crash(P)
    assert progress.write_page(P, 1) == 4
    await progress.barrier(P)
    progress.settle(P)
    assert known(await recovered(table.elsewhere()), 3) == 3


async def test_the_newest_page_is_sent_again() -> None:
    """A worker died between its disk and the log; the next owner must know its ids all the same."""
    table = MemoryTable()
    progress = await recovered(table)
    await page(progress, 0, 4)
    progress.note(P, 5, 9, [row(7)])
    progress.write_page(P, 0)
    table.crash(P)
    assert known(await recovered(table.elsewhere()), 7) is None
    await recovered(table)
    assert known(await recovered(table.elsewhere()), 7) == 7


async def test_a_replay_cut_differently_loses_no_id() -> None:
    """The page [3, 5] does not overwrite [0, 5]."""
    table = MemoryTable()
    progress = await recovered(table)
    await page(progress, 0, 5)
    await page(progress, 3, 5)
    elsewhere = await recovered(table.elsewhere())
    assert [known(elsewhere, offset) for offset in range(6)] == list(range(6))


async def test_open_progress_lives_while_its_record_does() -> None:
    """§5: which chunks of a large record are durable, beside the page that ends before it."""
    table = MemoryTable()
    progress = await recovered(table)
    opened = OpenProgress(5, "5.20", {1: 3})
    progress.note(P, 0, 9, [row(n) for n in range(10)])
    assert progress.write_page(P, 1, through=4, opened=opened) == 4
    await progress.barrier(P)
    progress.settle(P)
    elsewhere = await recovered(table.elsewhere())
    assert elsewhere.open(P) == opened
    assert (known(elsewhere, 4), known(elsewhere, 5)) == (4, None)
    assert known(progress, 7) == 7, "what was noted and is in no page yet is still remembered"
    assert progress.write_page(P, 1, through=4, opened=opened) is None
    assert progress.write_page(P, 2, through=9) == 9
    await progress.barrier(P)
    assert progress.open(P) is None
    assert (await recovered(table.elsewhere())).open(P) is None
    assert known(await recovered(table.elsewhere()), 7) == 7


async def test_old_pages_go_with_their_ids_in_bounded_steps() -> None:
    """Retention is by time; a backlog of old pages shrinks with each new one."""
    table = MemoryTable()
    progress = await recovered(table, retention_ms=DAY)
    for number in range(20):
        await page(progress, number * 10, number * 10 + 9, now_ms=number)
    late, left = DAY + 1_000, []
    for number in range(20, 30):
        await page(progress, number * 10, number * 10 + 9, now_ms=late)
        left.append(sum(page_end(key) is not None for key, _ in table.iterate(P)))
    assert left[0] == 21 - EXPIRE_PAGES_MAX
    assert left[-1] == 10
    assert known(progress, 5) is None
    assert known(progress, 199) is None
    assert known(progress, 200) == 200
    elsewhere = await recovered(table.elsewhere())
    assert (known(elsewhere, 199), known(elsewhere, 200)) == (None, 200)


async def test_the_newest_page_stays_however_old() -> None:
    """It is the stage's position: an idle shard must not start from the beginning."""
    table = MemoryTable()
    progress = await recovered(table, retention_ms=DAY)
    await page(progress, 0, 9, now_ms=0)
    await page(progress, 10, 19, now_ms=9 * DAY)
    assert known(progress, 5) == 5, "the newest page at the time was the only one"
    assert await DispatchProgress(table.elsewhere(), DAY).recover(P) == 19
    await page(progress, 20, 29, now_ms=9 * DAY)
    assert known(progress, 5) is None


async def test_an_id_that_came_again_after_its_time_stays() -> None:
    table = MemoryTable()
    progress = await recovered(table, retention_ms=DAY)
    await page(progress, 0, 1, now_ms=0)
    progress.note(P, 2, 3, [row(0)._replace(offset=2)])
    progress.write_page(P, 2 * DAY)
    progress.settle(P)
    await page(progress, 4, 5, now_ms=2 * DAY)
    assert known(progress, 0) == 2
    assert known(await recovered(table.elsewhere()), 0) == 2


async def test_a_damaged_page_is_removed_and_said_so() -> None:
    table = MemoryTable()
    progress = await recovered(table, retention_ms=DAY)
    await page(progress, 0, 1, now_ms=0)
    key = next(key for key, _ in table.iterate(P, b"p"))
    table.write_batch(P, {key: b"\x07junk"})
    await page(progress, 2, 3, now_ms=2 * DAY)
    await page(progress, 4, 5, now_ms=2 * DAY)
    assert [page_end(key) for key, _ in table.iterate(P, b"p")] == [3, 5]


async def test_a_sweep_spares_what_an_overlapping_page_holds() -> None:
    """A replay left [5, 5] beside [0, 6]: the oldest page by its end is not the one that begins first."""
    table = MemoryTable()
    progress = await recovered(table)
    await page(progress, 5, 5)
    await page(progress, 0, 6)
    ours = dict(table.local(P).iterate())
    await page(await recovered(table.elsewhere()), 7, 7)
    back = MemoryTable(table.changelog)
    back.local(P).write_batch(ours)
    progress = await recovered(back)
    await page(progress, 8, 8)
    assert [known(progress, offset) for offset in range(9)] == list(range(9))


async def test_ids_of_pages_that_another_owner_expired_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our disk missed the deletions: its index is cleaned in bounded steps, not left to grow."""
    monkeypatch.setattr(progress_module, "SWEEP_MARGIN", 0)
    table = MemoryTable()
    progress = await recovered(table, retention_ms=DAY)
    count = 3 * SWEEP_KEYS_MAX
    for first in range(0, count, 100):
        await page(progress, first, first + 99, now_ms=0)
    ours = dict(table.local(P).iterate())
    other = await recovered(table.elsewhere(), retention_ms=DAY)
    for number in range(10):
        await page(other, count + number, count + number, now_ms=2 * DAY)
    back = MemoryTable(table.changelog)
    back.local(P).write_batch(ours)
    progress = await recovered(back, retention_ms=DAY)
    entries = [sum(key.startswith(b"i") for key, _ in back.local(P).iterate())]
    for number in range(10, 20):
        await page(progress, count + number, count + number, now_ms=2 * DAY)
        entries.append(sum(key.startswith(b"i") for key, _ in back.local(P).iterate()))
    assert entries[0] == count + 10
    assert all(before - after < SWEEP_KEYS_MAX + 1 for before, after in pairwise(entries))
    assert entries[-1] == 20
    assert known(progress, count + 3) == count + 3
