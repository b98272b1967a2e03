"""The archive port: one suite on the fake, on RocksDB, on RocksDB read beside its writer, and on Cassandra.

Spec: §1 ARCHIVED, §14.8. Promise P11, scenario C7.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from qim_streams.archive.cassandra_archive import CassandraArchive
from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.ports import RANGE_LIMIT_MAX, SEQ_MAX, Archive, ArchivedMessage, ArchiveReader
from qim_streams.archive.rocksdb_archive import RocksArchive
from qim_streams.archive.rocksdb_reader import RocksArchiveReader
from qim_streams.errors import StoreError
from tests.support.cassandra_node import empty, options_of

TENANT, ROOM = "acme", "room"


def message(
    seq: int, *, conversation: str = ROOM, tenant: str = TENANT, body: str = "", revision: int = 0
) -> ArchivedMessage:
    """A message whose bytes tell its address."""
    record = f"{tenant}/{conversation}/{seq}{body}".encode()
    return ArchivedMessage(tenant, conversation, seq, record, revision)


@dataclass
class Pair:
    """An archive and who reads it."""

    archive: Archive
    reader: ArchiveReader


@pytest.fixture(params=["memory", "rocksdb", "rocksdb-reader", "cassandra"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    """Each implementation, fresh."""
    archive, reader = await opened(request, tmp_path)
    yield Pair(archive, reader)
    await reader.close()
    await archive.close()


async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Archive, ArchiveReader]:
    """The archive that the test asks for, and who reads it."""
    if request.param == "memory":
        fake = MemoryArchive()
        return fake, fake
    if request.param == "cassandra":
        options = options_of(request.getfixturevalue("cassandra_node"))
        await empty(options)
        real = await CassandraArchive.open(options)
        return real, await CassandraArchive.open(options)
    embedded = await RocksArchive.open(tmp_path / "archive")
    if request.param == "rocksdb":
        return embedded, embedded
    return embedded, RocksArchiveReader(tmp_path / "archive", refresh_ms=0)


async def seqs(reader: ArchiveReader, after: int, up_to: int, limit: int = 100) -> list[int]:
    """The seqs of a range of ROOM."""
    found = await reader.range(TENANT, ROOM, after, up_to, limit)
    assert all(one == message(one.conversation_seq) for one in found)
    return [one.conversation_seq for one in found]


async def test_a_new_archive_holds_nothing(pair: Pair) -> None:
    assert await pair.reader.watermark(3) == -1
    assert await pair.reader.latest(TENANT, ROOM) == 0
    assert await pair.reader.range(TENANT, ROOM, 0, 10, 10) == []
    assert await pair.reader.records([(TENANT, ROOM, 1)]) == [None]
    assert await pair.reader.records([]) == []


async def test_what_is_stored_can_be_read_at_once(pair: Pair) -> None:
    await pair.archive.store(0, [message(1), message(2)], 7)
    await pair.archive.store(0, [message(3)], 8)
    assert await pair.reader.watermark(0) == 8
    assert await seqs(pair.reader, 0, 10) == [1, 2, 3]
    assert await pair.reader.latest(TENANT, ROOM) == 3
    wanted = [(TENANT, ROOM, 3), (TENANT, "other", 1), (TENANT, ROOM, 1)]
    assert await pair.reader.records(wanted) == [message(3).record, None, message(1).record]


async def test_the_bounds_of_a_range(pair: Pair) -> None:
    await pair.archive.store(0, [message(seq) for seq in range(1, 301)], 0)
    assert await seqs(pair.reader, 254, 258) == [255, 256, 257, 258], "after is exclusive, up_to inclusive"
    assert await seqs(pair.reader, 0, 300, limit=3) == [1, 2, 3]
    assert await seqs(pair.reader, 300, 400) == []
    assert await seqs(pair.reader, 10, 10) == []
    assert await seqs(pair.reader, 10, 9) == []
    assert await seqs(pair.reader, -1, 2**63) == list(range(1, 101)), "bounds beyond what exists"


@pytest.mark.parametrize("newest_first", [False, True])
async def test_the_edges_of_a_page_in_both_directions(pair: Pair, newest_first: bool) -> None:
    """C8, E11: every combination of bounds and limit around bucket edges gives what a list would."""
    held = [seq for seq in range(1, 61) if seq % 13]
    await pair.archive.store(0, [message(seq) for seq in held], 0)
    for after in (-5, 0, 1, 12, 13, 14, 29, 59, 60, 99):
        for up_to in (0, 1, 13, 30, 31, 59, 60, SEQ_MAX):
            for limit in (1, 3, 100):
                between = [seq for seq in held if after < seq <= up_to]
                wanted = (between[::-1] if newest_first else between)[:limit]
                found = await pair.reader.range(TENANT, ROOM, after, up_to, limit, newest_first=newest_first)
                assert [one.conversation_seq for one in found] == wanted, (after, up_to, limit)


async def test_paging_back_gives_each_message_once(pair: Pair) -> None:
    """E11: from the newest to the first, page by page, while new ones arrive."""
    await pair.archive.store(0, [message(seq) for seq in range(1, 101)], 0)
    seen: list[int] = []
    before = SEQ_MAX
    while True:
        page = await pair.reader.range(TENANT, ROOM, 0, before - 1, 7, newest_first=True)
        if not page:
            break
        seen += [one.conversation_seq for one in page]
        before = seen[-1]
        await pair.archive.store(0, [message(101 + len(seen))], 0)
    assert seen == list(range(100, 0, -1))


async def test_the_newest_page_has_what_was_stored_last(pair: Pair) -> None:
    await pair.archive.store(0, [message(seq) for seq in range(1, 11)], 0)
    assert len(await pair.reader.range(TENANT, ROOM, 0, SEQ_MAX, 3, newest_first=True)) == 3
    await pair.archive.store(0, [message(11)], 1)
    (newest,) = await pair.reader.range(TENANT, ROOM, 0, SEQ_MAX, 1, newest_first=True)
    assert newest == message(11)


async def test_the_highest_revision_stands_in_whatever_order_they_come(pair: Pair) -> None:
    """Spec: §8. An edit or recall replaces a message; a replay of the log does not bring the old one back."""
    edited, recalled = message(2, body="edited", revision=1), message(2, body="recalled", revision=2)
    await pair.archive.store(0, [message(seq) for seq in (1, 2, 3)], 2)
    await pair.archive.store(0, [edited], 3)
    assert (await pair.reader.range(TENANT, ROOM, 1, 2, 1))[0] == edited
    await pair.archive.store(0, [recalled], 4)
    for older in (edited, message(2), recalled):
        await pair.archive.store(0, [older], 4)
    assert await pair.reader.range(TENANT, ROOM, 1, 2, 1) == [recalled]
    assert await pair.reader.records([(TENANT, ROOM, 2)]) == [recalled.record]
    assert len(await pair.reader.range(TENANT, ROOM, 0, 9, 9)) == 3
    assert await pair.reader.latest(TENANT, ROOM) == 3


async def test_a_revision_may_come_before_the_message(pair: Pair) -> None:
    edited = message(1, body="edited", revision=7)
    await pair.archive.store(0, [edited], 0)
    await pair.archive.store(0, [message(1), message(2)], 1)
    assert await pair.reader.range(TENANT, ROOM, 0, 9, 9) == [edited, message(2)]


async def test_of_two_records_at_one_seq_the_first_stands(pair: Pair) -> None:
    """§3.5: by their order in the log, also when nobody asked before."""
    first = replace(message(1, body="first"), offset=10)
    second = replace(message(1, body="second, and larger"), offset=11)
    await pair.archive.store(0, [first], 10)
    await pair.archive.store(0, [second], 11)
    await pair.archive.store(0, [first], 11)
    assert await pair.reader.range(TENANT, ROOM, 0, 9, 9) == [first]
    changed = [replace(message(1, body=text, revision=3), offset=at) for text, at in (("b", 20), ("c", 21))]
    for one in changed:
        await pair.archive.store(0, [one], one.offset)
    assert await pair.reader.range(TENANT, ROOM, 0, 9, 9) == [changed[0]]


async def test_an_archiver_that_was_replaced_and_wakes_up_changes_nothing(pair: Pair) -> None:
    """§14.6: it repeats its batch after the new owner went on: watermark and messages stay."""
    old = [message(seq) for seq in range(1, 6)]
    await pair.archive.store(0, old, 4)
    await pair.archive.store(0, [message(3, body="edited", revision=1), message(6)], 6)
    await pair.archive.store(0, old, 4)
    assert await pair.reader.watermark(0) == 6
    assert await pair.reader.range(TENANT, ROOM, 2, 3, 1) == [message(3, body="edited", revision=1)]


@pytest.mark.parametrize("limit", [0, -1, RANGE_LIMIT_MAX + 1])
async def test_a_range_is_bounded(pair: Pair, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        await pair.reader.range(TENANT, ROOM, 0, 10, limit)


async def test_paging_by_seq_gives_each_message_once(pair: Pair) -> None:
    """C8: pages follow the seq, whatever times the messages have."""
    await pair.archive.store(0, [message(seq) for seq in range(1, 501)], 0)
    seen: list[int] = []
    while page := await seqs(pair.reader, seen[-1] if seen else 0, 500, limit=20):
        seen += page
    assert seen == list(range(1, 501))


async def test_the_largest_messages_come_back_whole(pair: Pair) -> None:
    """64 KiB each: batches stay below what a server accepts without being told, and so do pages."""
    large = [message(seq, body="x" * 65_536) for seq in range(1, 41)]
    await pair.archive.store(0, large, 39)
    assert await pair.reader.range(TENANT, ROOM, 0, 40, 1_000) == large
    assert await pair.reader.records([(TENANT, ROOM, 7)]) == [large[6].record]


async def test_storing_again_changes_nothing(pair: Pair) -> None:
    """P11: a replay of the log archives each message once."""
    batch = [message(seq) for seq in range(1, 51)]
    for _ in range(3):
        await pair.archive.store(0, batch, 99)
    assert await seqs(pair.reader, 0, 1_000) == list(range(1, 51))
    assert await pair.reader.watermark(0) == 99


async def test_the_watermark_only_grows_and_each_partition_has_its_own(pair: Pair) -> None:
    await pair.archive.store(0, [], 10)
    await pair.archive.store(1, [], 3)
    await pair.archive.store(0, [message(1)], 9)
    assert await pair.reader.watermark(0) == 10
    assert await pair.reader.watermark(1) == 3
    assert await seqs(pair.reader, 0, 10) == [1]


async def test_conversations_and_tenants_do_not_reach_into_each_other(pair: Pair) -> None:
    """I16: neighbours in key order whose names extend each other."""
    rooms = [(TENANT, name) for name in ("room", "room-2", "roo")]
    rooms += [("acme2", "room"), ("acm", "room"), ("a", "b")]
    for tenant, conversation in rooms:
        await pair.archive.store(0, [message(1, tenant=tenant, conversation=conversation)], 0)
    await pair.archive.store(0, [message(9, conversation="room")], 0)
    for tenant, conversation in rooms:
        found = await pair.reader.range(tenant, conversation, 0, 2**63, 10)
        last = 9 if (tenant, conversation) == (TENANT, "room") else 1
        assert {(one.tenant_id, one.conversation_id) for one in found} == {(tenant, conversation)}
        assert found[-1].record == message(last, tenant=tenant, conversation=conversation).record
        assert await pair.reader.latest(tenant, conversation) == last
    assert await pair.reader.latest(TENANT, "zzz") == 0


async def test_large_seqs_keep_their_order(pair: Pair) -> None:
    numbers = [1, 255, 256, 2**32 - 1, 2**32, 2**53 + 1, SEQ_MAX]
    await pair.archive.store(0, [message(seq) for seq in reversed(numbers)], 0)
    assert await seqs(pair.reader, 0, SEQ_MAX) == numbers


async def test_reading_a_thousand_messages_fifty_times_writes_nothing(pair: Pair) -> None:
    """C7: pulling history never writes history."""
    batch = [message(seq) for seq in range(1, 1_001)]
    await pair.archive.store(0, batch, 999)
    for _ in range(50):
        assert len(await pair.reader.range(TENANT, ROOM, 0, 1_000, 1_000)) == 1_000
    assert await seqs(pair.reader, 0, 5_000, limit=1_000) == list(range(1, 1_001))
    assert await pair.reader.latest(TENANT, ROOM) == 1_000
    assert await pair.reader.watermark(0) == 999


async def test_after_close_every_call_raises(pair: Pair) -> None:
    await pair.archive.store(0, [message(1)], 0)
    await pair.reader.close()
    await pair.reader.close()
    with pytest.raises(StoreError):
        await pair.reader.watermark(0)
    with pytest.raises(StoreError):
        await pair.reader.range(TENANT, ROOM, 0, 1, 1)
    await pair.archive.close()
    with pytest.raises(StoreError):
        await pair.archive.store(0, [message(2)], 1)


async def test_a_fence_only_rises_and_is_no_watermark(pair: Pair) -> None:
    archive = pair.archive
    assert await archive.fence(3) == 0
    await archive.raise_fence(3, 1_790_000_005)
    await archive.raise_fence(3, 7)
    assert await archive.fence(3) == 1_790_000_005
    assert await archive.fence(2) == 0
    assert await pair.reader.watermark(3) == -1
    await archive.store(3, [message(1)], 4)
    assert (await archive.fence(3), await pair.reader.watermark(3)) == (1_790_000_005, 4)
