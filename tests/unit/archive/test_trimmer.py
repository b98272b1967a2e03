"""The trimmer as a task: it works by itself, waits out a store that is away, and never stops archiving.

What it removes is held in ``tests/contract/test_hot_records.py``. Spec: §14.8; T-R4.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from qim_streams.archive import trimmer as module
from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.ports import ArchivedCopy, ArchivedMessage, Covered, Dropped, Silent
from qim_streams.archive.service import HistoryArchiver
from qim_streams.archive.tiers import HotThenArchive
from qim_streams.archive.trimmer import HotTierTrimmer, TrimPolicy
from qim_streams.errors import StoreUnavailable
from tests.support.waiting import eventually
from tests.unit.archive.outbox_batches import TENANT, RememberedLetters, batch, message, record


@dataclass
class Hot:
    """A hot tier that remembers what it was told, and may be away."""

    away: bool = False
    noted: list[tuple[int, list[Covered]]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    failed: int = 0
    broken: bool = False

    async def note(self, partition: int, conversations: Sequence[Covered], at_ms: int) -> list[int]:
        if self.broken:
            raise ZeroDivisionError
        if self.away:
            self.failed += 1
            raise StoreUnavailable("away")
        self.noted.append((partition, list(conversations)))
        return [1] * len(conversations)

    async def silent(self, partition: int, before_ms: int, limit: int) -> list[Silent]:
        return []

    async def drop(
        self, partition: int, conversation: tuple[str, str], copies: Sequence[ArchivedCopy], hot_from: int
    ) -> Dropped:
        self.dropped += [one.conversation_seq for one in copies]
        return Dropped(len(copies), 0, None)

    async def forget(self, partition: int, conversations: Sequence[tuple[str, str]], before_ms: int) -> None:
        return None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds and pauses of a test's size."""
    monkeypatch.setattr(module, "ROUND_S", 0.001)
    monkeypatch.setattr(module, "PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(module, "PAUSE_MAX_S", 0.01)


def made(archive: MemoryArchive, hot: Hot, died: list[str] | None = None) -> HotTierTrimmer:
    """A trimmer that keeps nothing."""
    told = [] if died is None else died
    return HotTierTrimmer(
        archive, hot, TrimPolicy(0, 60_000), now_ms=lambda: 1, die=told.append, uniform=lambda: 0.5
    )


def archived(seqs: Iterable[int], room: str = "room") -> list[ArchivedMessage]:
    """Messages as the archive has them."""
    return [ArchivedMessage(TENANT, room, seq, message(seq, room).encode()) for seq in seqs]


async def test_it_works_off_what_an_archiver_covers() -> None:
    archive, hot = MemoryArchive(), Hot()
    trimmer = made(archive, hot)
    archiver = HistoryArchiver(
        "qim.outbox.v1", archive, RememberedLetters(), now_ms=lambda: 1, on_covered=trimmer.note
    )
    trimmer.start()
    trimmer.adopt(0)
    await archiver.start_position(0)
    await archiver.handle(batch([record(offset, message(offset + 1)) for offset in range(20)]))
    await eventually(lambda: len(hot.dropped) == 20, 10, "the batch to be trimmed")
    await trimmer.close()
    await trimmer.close()


async def test_nothing_is_noted_before_the_watermark_is_published() -> None:
    """I12: a batch that the archive refused was not archived."""
    archive, seen = MemoryArchive(), list[int]()
    archiver = HistoryArchiver(
        "qim.outbox.v1",
        archive,
        RememberedLetters(),
        now_ms=lambda: 1,
        on_covered=lambda partition, messages: seen.append(archive.watermarks[partition]),
    )
    await archiver.start_position(0)
    waiting = batch([record(offset, message(offset + 1)) for offset in range(3)])
    archive.unavailable = True
    with pytest.raises(StoreUnavailable):
        await archiver.handle(waiting)
    assert seen == []
    archive.unavailable = False
    await archiver.handle(waiting)
    assert seen == [2]


async def test_a_hot_tier_that_is_away_is_tried_again_and_nothing_is_forgotten() -> None:
    archive, hot = MemoryArchive(), Hot(away=True)
    trimmer = made(archive, hot)
    trimmer.adopt(0)
    trimmer.start()
    messages = archived(range(1, 6))
    await archive.store(0, messages, 4)
    trimmer.note(0, messages)
    await eventually(lambda: hot.failed >= 3, 10, "some failures")
    more = archived(range(6, 9))
    await archive.store(0, more, 7)
    trimmer.note(0, more)
    hot.away = False
    await eventually(lambda: sorted(hot.dropped) == list(range(1, 9)), 10, "all of it to be trimmed")
    await trimmer.close()


async def test_an_error_that_is_none_of_a_store_is_told() -> None:
    archive, died = MemoryArchive(), list[str]()
    trimmer = made(archive, Hot(broken=True), died)
    trimmer.start()
    trimmer.note(0, archived([1]))
    await eventually(lambda: died, 10, "it to tell")
    assert "ZeroDivisionError" in died[0]
    await trimmer.close()


async def test_what_was_released_is_not_trimmed() -> None:
    archive, hot = MemoryArchive(), Hot()
    trimmer = made(archive, hot)
    messages = archived(range(1, 4))
    await archive.store(0, messages, 2)
    for partition in (0, 1):
        trimmer.adopt(partition)
        trimmer.note(partition, messages)
    trimmer.release({0})
    await trimmer.work()
    assert [partition for partition, _ in hot.noted] == [1]
    hot.away = True
    trimmer.note(1, messages)
    with pytest.raises(StoreUnavailable):
        await trimmer.work()
    trimmer.release({1})
    hot.away = False
    await trimmer.work()
    assert [partition for partition, _ in hot.noted] == [1]


async def test_the_number_of_waiting_conversations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTES_MAX", 3)
    hot = Hot()
    trimmer = made(MemoryArchive(), hot)
    trimmer.note(0, [one for room in "abcde" for one in archived([1], room)])
    await trimmer.work()
    assert hot.noted == [(0, [(TENANT, "a", 1), (TENANT, "b", 1), (TENANT, "c", 1)])]
    trimmer.note(0, archived([1], "d"))
    await trimmer.work()
    assert len(hot.noted) == 2, "there is room again"


async def test_damage_in_the_archive_keeps_the_hot_copy() -> None:
    archive, hot = MemoryArchive(), Hot()
    trimmer = made(archive, hot)
    damaged = [*archived([1]), ArchivedMessage(TENANT, "room", 2, b"\x01junk")]
    await archive.store(0, damaged, 1)
    trimmer.note(0, damaged)
    await trimmer.work()
    assert hot.dropped == [1]


async def test_a_reader_finds_each_message_in_one_of_the_tiers() -> None:
    hot, archive = MemoryArchive(), MemoryArchive()
    await hot.store(0, archived([3, 4]), 0)
    await archive.store(0, archived([1, 2, 3]), 0)
    both = HotThenArchive(hot, archive)
    wanted = [(TENANT, "room", seq) for seq in (1, 4, 5, 3)]
    assert await both.records(wanted) == [
        message(1).encode(),
        message(4).encode(),
        None,
        message(3).encode(),
    ]
    archive.unavailable = True
    assert await both.records(wanted) == [None, message(4).encode(), None, message(3).encode()]
    hot.unavailable = True
    with pytest.raises(StoreUnavailable):
        await both.records(wanted)


async def test_many_notes_are_one_round() -> None:
    archive, hot = MemoryArchive(), Hot()
    trimmer = made(archive, hot)
    for seq in range(1, 11):
        await archive.store(0, archived([seq]), seq)
        trimmer.note(0, archived([seq]))
    trimmer.start()
    await eventually(lambda: len(hot.dropped) == 10, 10, "one round")
    assert len(hot.noted) == 1
    await trimmer.close()
    await asyncio.sleep(0)
