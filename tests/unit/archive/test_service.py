"""HistoryArchiver on the fake archive. Spec: §1, §3; P11, P13, I12, T-R4."""

import random
from collections.abc import Sequence

import pytest

from qim_streams import failpoints
from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.ports import ArchivedMessage
from qim_streams.archive.service import HistoryArchiver
from qim_streams.errors import InvariantViolation, Policy, StoreUnavailable, policy_of
from tests.unit.archive.outbox_batches import Record, RememberedLetters, barrier, batch, message, record

OUTBOX = "qim.outbox.v1"


@pytest.fixture
def archive() -> MemoryArchive:
    return MemoryArchive()


@pytest.fixture
def letters() -> RememberedLetters:
    return RememberedLetters()


@pytest.fixture
def archiver(archive: MemoryArchive, letters: RememberedLetters) -> HistoryArchiver:
    return HistoryArchiver(OUTBOX, archive, letters, now_ms=lambda: 5_000)


async def test_a_batch_is_archived_and_covered(archiver: HistoryArchiver, archive: MemoryArchive) -> None:
    assert await archiver.start_position(0) == 0
    await archiver.handle(batch([record(offset, message(offset + 1)) for offset in range(5)]))
    assert await archive.watermark(0) == 4
    assert len(archive.messages) == 5
    assert archive.messages["acme", "room", 3] == message(3).encode()


async def test_a_partition_starts_at_the_archives_own_watermark(archive: MemoryArchive) -> None:
    """§11 rule 1: not at what the group committed."""
    await archive.store(4, [], 41)
    archiver = HistoryArchiver(OUTBOX, archive, RememberedLetters(), now_ms=lambda: 0)
    assert await archiver.start_position(4) == 42
    assert await archiver.start_position(5) == 0


async def test_replaying_a_batch_changes_nothing(archiver: HistoryArchiver, archive: MemoryArchive) -> None:
    """P11: a kill after the archive and before the acknowledgement."""
    await archiver.start_position(0)
    repeated = batch([record(offset, message(offset + 1)) for offset in range(5)])
    await archiver.handle(repeated)
    before, writes = dict(archive.messages), archive.writes
    await archiver.handle(repeated)
    assert archive.messages == before
    assert archive.writes == writes, "what is there is not written again"


async def test_a_poison_record_costs_itself(
    archiver: HistoryArchiver, archive: MemoryArchive, letters: RememberedLetters
) -> None:
    """P13: dead letter with its coordinates, then on; the watermark passes it."""
    await archiver.start_position(0)
    records = [record(0, message(1)), Record(b"k", b"junk", 1), record(2, message(2))]
    await archiver.handle(batch(records))
    assert [offset for offset, _ in letters.letters] == [1]
    assert sorted(seq for _, _, seq in archive.messages) == [1, 2]
    assert await archive.watermark(0) == 2


async def test_a_batch_of_poison_alone_moves_the_watermark(
    archiver: HistoryArchiver, archive: MemoryArchive, letters: RememberedLetters
) -> None:
    await archiver.start_position(0)
    await archiver.handle(batch([Record(None, None, 0), Record(None, b"", 1)]))
    assert len(letters.letters) == 2
    assert await archive.watermark(0) == 1


async def test_the_first_message_at_a_seq_stands_across_batches(
    archiver: HistoryArchiver, archive: MemoryArchive, letters: RememberedLetters
) -> None:
    await archiver.start_position(0)
    await archiver.handle(batch([record(0, message(1, body=b"first"))]))
    await archiver.handle(batch([record(1, message(1, body=b"second"))]))
    assert archive.messages["acme", "room", 1] == message(1, body=b"first").encode()
    assert [offset for offset, _ in letters.letters] == [1]


class Counting(MemoryArchive):
    """Counts the addresses that were looked up."""

    asked = 0

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        self.asked += len(wanted)
        return await super().records(wanted)


async def test_only_what_may_be_there_is_looked_up(letters: RememberedLetters) -> None:
    """The first batch since the start, a batch that failed, repeated seqs and changes; nothing else."""
    archive = Counting()
    archiver = HistoryArchiver(OUTBOX, archive, letters, now_ms=lambda: 0)
    await archiver.start_position(0)
    await archiver.handle(batch([record(0, message(1)), record(1, message(2))]))
    assert archive.asked == 2, "the first batch"
    await archiver.handle(batch([record(2, message(3)), record(3, message(1, "other"))]))
    assert archive.asked == 2
    await archiver.handle(batch([record(4, message(3)), record(5, message(4))]))
    assert archive.asked == 3, "seq 3 comes again"
    edited = message(1, body=b"edited")._replace(state=1, extra=(1,))
    await archiver.handle(batch([record(6, edited), record(7, message(5))]))
    assert archive.asked == 4, "a change"
    assert archive.messages["acme", "room", 1] == edited.encode()
    waiting = batch([record(8, message(6)), record(9, message(7))])
    archive.unavailable = True
    with pytest.raises(StoreUnavailable):
        await archiver.handle(waiting)
    archive.unavailable = False
    asked = archive.asked
    await archiver.handle(waiting)
    assert archive.asked == asked + 2, "what a failure may have left"
    assert not letters.letters


async def test_an_unavailable_archive_moves_nothing_and_is_retried(
    archiver: HistoryArchiver, archive: MemoryArchive, letters: RememberedLetters
) -> None:
    """T-R4: the lane repeats the same batch until the archive is back."""
    await archiver.start_position(0)
    waiting = batch([record(0, message(1)), Record(b"k", b"junk", 1)])
    archive.unavailable = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable) as raised:
            await archiver.handle(waiting)
        assert policy_of(raised.value) is Policy.RETRY
    assert not archive.messages
    assert not letters.letters, "poison is reported when the batch can be finished"
    archive.unavailable = False
    await archiver.handle(waiting)
    assert await archive.watermark(0) == 1


async def test_retries_do_not_multiply_dead_letters(letters: RememberedLetters) -> None:
    """I15: a full disk refuses writes and still reads; the batch is retried for as long as that takes."""

    class Full(MemoryArchive):
        full = True

        async def store(self, partition: int, messages: Sequence[ArchivedMessage], watermark: int) -> None:
            if self.full:
                raise StoreUnavailable("no space left")
            await super().store(partition, messages, watermark)

    archive = Full()
    archiver = HistoryArchiver(OUTBOX, archive, letters, now_ms=lambda: 0)
    await archiver.start_position(0)
    waiting = batch([Record(b"k", b"junk", 0), record(1, message(1)), Record(b"k", b"junk", 2)])
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            await archiver.handle(waiting)
    archive.full = False
    await archiver.handle(waiting)
    await archiver.handle(batch([Record(b"k", b"junk", 3)]))
    assert [offset for offset, _ in letters.letters] == [0, 2, 3]
    assert await archive.watermark(0) == 3


async def test_failed_dead_letters_hold_the_watermark(archive: MemoryArchive) -> None:
    class Refusing:
        async def send(self, poison: object) -> None:
            raise StoreUnavailable("no broker")

    archiver = HistoryArchiver(OUTBOX, archive, Refusing(), now_ms=lambda: 0)
    await archiver.start_position(0)
    with pytest.raises(StoreUnavailable):
        await archiver.handle(batch([record(0, message(1)), Record(b"k", b"junk", 1)]))
    assert await archive.watermark(0) == -1


async def test_a_gap_is_never_covered(archiver: HistoryArchiver, archive: MemoryArchive) -> None:
    """Only a prefix without a gap may be covered."""
    await archiver.start_position(0)
    await archiver.handle(batch([record(0, message(1))]))
    with pytest.raises(InvariantViolation, match="does not continue"):
        await archiver.handle(batch([record(5, message(3))], previous=4))
    assert await archive.watermark(0) == 0
    assert len(archive.messages) == 1


async def test_a_hole_in_the_offsets_that_the_log_proved_is_no_gap(
    archiver: HistoryArchiver, archive: MemoryArchive
) -> None:
    """§14.2: what counts is the offset of the record read before, not observed - 1."""
    await archiver.start_position(0)
    await archiver.handle(batch([record(0, message(1))]))
    await archiver.handle(batch([record(7, message(2))], previous=0))
    assert await archive.watermark(0) == 7


async def test_a_partition_that_was_not_started_is_refused(archiver: HistoryArchiver) -> None:
    with pytest.raises(InvariantViolation, match="before its start position"):
        await archiver.handle(batch([record(0, message(1))]))
    await archiver.start_position(0)
    await archiver.release(frozenset({0}))
    with pytest.raises(InvariantViolation, match="before its start position"):
        await archiver.handle(batch([record(0, message(1))]))


async def test_partitions_are_independent(archiver: HistoryArchiver, archive: MemoryArchive) -> None:
    await archiver.start_position(0)
    await archiver.start_position(1)
    await archiver.handle(batch([record(0, message(1, "a")), record(1, message(2, "a"))], partition=0))
    await archiver.handle(batch([record(0, message(1, "b"))], partition=1))
    assert (await archive.watermark(0), await archive.watermark(1)) == (1, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_archived_is_the_outbox_up_to_the_watermark(seed: int) -> None:
    """I12 under kills at any step: a new archiver starts at watermark + 1 over the same log."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    log: list[Record] = []
    for offset in range(200):
        room, seq = f"r{rng.randrange(3)}", rng.randrange(1, 60)
        junk = rng.random() < 0.05
        log.append(Record(b"k", b"junk", offset) if junk else record(offset, message(seq, room)))
    archive, letters = MemoryArchive(), RememberedLetters()
    while (at := await archive.watermark(0) + 1) < len(log):
        archiver = HistoryArchiver(OUTBOX, archive, letters, now_ms=lambda: 0)
        assert await archiver.start_position(0) == at
        for _ in range(rng.randrange(1, 6)):
            part = log[at : at + rng.randrange(1, 20)]
            if not part:
                break
            archive.unavailable = rng.random() < 0.3
            if archive.unavailable:
                with pytest.raises(StoreUnavailable):
                    await archiver.handle(batch(part))
                archive.unavailable = False
                break
            await archiver.handle(batch(part))
            at += len(part)
    expected = {(r.key, r.value) for r in log if r.value != b"junk"}
    assert len(archive.messages) == len(expected)
    assert {offset for offset, _ in letters.letters} == {r.offset for r in log if r.value == b"junk"}


async def test_a_crash_after_the_watermark_and_before_the_acknowledgement(
    archiver: HistoryArchiver, archive: MemoryArchive
) -> None:
    await archiver.start_position(0)
    failpoints.arm("archiver.watermark_published:1:raise")
    try:
        with pytest.raises(failpoints.FailpointError):
            await archiver.handle(batch([record(0, message(1))]))
    finally:
        failpoints.arm("")
    assert await archive.watermark(0) == 0
    assert (
        await HistoryArchiver(OUTBOX, archive, RememberedLetters(), now_ms=lambda: 0).start_position(0) == 1
    )


async def test_what_an_old_owner_appends_behind_a_barrier_is_left_out(
    archive: MemoryArchive, letters: RememberedLetters
) -> None:
    """T-Z1, I14: also after a restart, and where a batch failed between the barrier and what follows."""
    zombie, counts = message(2, body=b"zombie"), message(2, body=b"counts")
    first = batch([record(0, message(1), epoch=5), barrier(1, 6), record(2, zombie, epoch=5)])
    for _ in range(2):
        archiver = HistoryArchiver(OUTBOX, archive, letters, now_ms=lambda: 0)
        assert await archiver.start_position(0) in (0, 3)
        await archiver.handle(first)
    assert (await archive.watermark(0), await archive.fence(0)) == (2, 6)
    later = [
        record(3, zombie, epoch=5),
        record(4, counts, epoch=6),
        barrier(5, 7),
        record(6, zombie, epoch=6),
    ]
    archiver = HistoryArchiver(OUTBOX, archive, letters, now_ms=lambda: 0)
    await archiver.start_position(0)
    original, calls = archive.store, [0]

    async def store(partition: int, messages: Sequence[ArchivedMessage], watermark: int) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise StoreUnavailable("in the middle")
        await original(partition, messages, watermark)

    archive.store = store  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await archiver.handle(batch(later))
    assert (await archive.watermark(0), await archive.fence(0)) == (4, 7), "all before the barrier is covered"
    await archiver.handle(batch(later))
    assert (await archive.watermark(0), await archive.fence(0)) == (6, 7)
    assert archive.messages["acme", "room", 2] == counts.encode()
    assert letters.letters == []
