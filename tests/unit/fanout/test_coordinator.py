"""The fan-out stage: repeats, forgeries, holes, poison, replays. T-G1, T-A3, I10, I15, I17."""

import asyncio

import pytest

from qim_streams import failpoints
from qim_streams.errors import StoreUnavailable
from qim_streams.fanout import metrics
from qim_streams.fanout import service as service_module
from qim_streams.fanout.progress import ConversationProgress, OutboxPage, decode_outbox_page
from qim_streams.ownership.log_fence import BARRIER_KEY
from qim_streams.records import OUTBOX_RELAYED
from tests.unit.fanout.outbox import Bench, barrier, conversation_in, message, record

CHAT = conversation_in(0)


def alarms(kind: str) -> float:
    return metrics.ALARMS.labels(kind)._value.get()


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_each_message_once_per_shard_and_the_page_after(bench: Bench) -> None:
    assert await bench.coordinator.start_position(0) == 0
    await bench.handle(record(0, message(1, CHAT)), record(1, message(2, CHAT)))
    made = [(one.conversation_seq, one.target_mailbox_shard) for one in bench.log.dispatches()]
    assert made == [(1, 2), (1, 5), (2, 2), (2, 5)]
    assert [one.partition for one in bench.log.records] == [2, 5, 2, 5]
    assert bench.log.calls == [4], "one call, one wait for all acknowledgements"
    assert await bench.coordinator.start_position(0) == 2


async def test_ten_copies_are_one_message(bench: Bench) -> None:
    """T-G1, C1: the same bytes again, in one batch or in later ones, relayed or not."""
    one = message(1, CHAT)
    await bench.handle(*(record(offset, one, flags=offset % 2) for offset in range(5)))
    for offset in range(5, 10):
        await bench.handle(record(offset, one, flags=OUTBOX_RELAYED))
    assert len(bench.log.dispatches()) == 2
    assert bench.graveyard.buried == []
    assert ConversationProgress(bench.table).read(0).dispatched_through == 9


async def test_the_same_id_with_other_bytes_is_buried(bench: Bench) -> None:
    """T-G1: the first content stands, an alarm is raised, the original bytes are kept."""
    before = alarms("forged_repeat")
    forged = record(1, message(1, CHAT, body=b"other"))
    await bench.handle(record(0, message(1, CHAT)), forged, record(2, message(2, CHAT)))
    await bench.handle(record(3, message(2, CHAT, body=b"other")))
    assert [one.conversation_seq for one in bench.log.dispatches()] == [1, 1, 2, 2]
    assert [one.record.offset for one in bench.graveyard.buried] == [1, 3]
    assert bench.graveyard.buried[0].record.value == forged.value
    assert alarms("forged_repeat") == before + 2


async def test_poison_costs_itself(bench: Bench) -> None:
    """T-A3, I15: the neighbours are dispatched, the page passes over it."""
    good = [message(number, CHAT) for number in range(1, 4)]
    poison = record(1, message(9, CHAT), key=b"wrong")
    await bench.handle(record(0, good[0]), poison, record(2, good[1]), record(3, good[2]))
    assert [one.conversation_seq for one in bench.log.dispatches()] == [1, 1, 2, 2, 3, 3]
    assert [(one.record, one.topic, one.partition) for one in bench.graveyard.buried] == [
        (poison, "qim.outbox.v1", 0)
    ]
    assert ConversationProgress(bench.table).read(0).dispatched_through == 3


async def test_a_batch_of_poison_only(bench: Bench) -> None:
    await bench.handle(record(0, message(9, CHAT), key=b"wrong"))
    assert bench.log.calls == []
    assert ConversationProgress(bench.table).read(0).dispatched_through == 0


async def test_a_hole_in_the_seq_is_an_alarm_and_no_stop(bench: Bench) -> None:
    """I4: the fan-out reports what the writer must explain."""
    before = alarms("seq_hole")
    await bench.handle(record(0, message(1, CHAT)), record(1, message(4, CHAT, seq=3)))
    assert alarms("seq_hole") == before + 1
    assert len(bench.log.dispatches()) == 4
    await bench.handle(record(2, message(5, CHAT, seq=4)), record(3, message(6, CHAT, seq=2)))
    assert alarms("seq_hole") == before + 1, "neither the next one nor a late one is a hole"
    assert len(bench.log.dispatches()) == 8


async def test_a_failed_append_is_repeated_with_the_same_bytes(bench: Bench) -> None:
    """I10, I17: no page before all acknowledgements; a retry writes equal bytes."""
    batch = [record(offset, message(offset + 1, CHAT)) for offset in range(3)]
    bench.log.fail_after = 3
    with pytest.raises(StoreUnavailable):
        await bench.handle(*batch)
    assert ConversationProgress(bench.table).read(0).dispatched_through == -1
    await bench.handle(*batch)
    values = [one.value for one in bench.log.records]
    assert values[3:6] == values[:3]
    assert len(values) == 3 + 6


async def test_replaying_the_outbox_gives_equal_dispatches(bench: Bench) -> None:
    """I10: byte-equal, whatever the batches were, in this process or in another."""
    records = [record(offset, message(offset + 1, CHAT)) for offset in range(20)]
    await bench.handle(*records)
    first, bench.log.records = [one.value for one in bench.log.records], []
    bench.restart()
    for start in range(0, 20, 7):
        await bench.handle(*records[start : start + 7])
    assert [one.value for one in bench.log.records] == first


async def test_poison_is_buried_once_over_retries(bench: Bench) -> None:
    bench.log.fail_after = 0
    batch = (record(0, message(1, CHAT)), record(1, message(9, CHAT), key=b"wrong"))
    with pytest.raises(StoreUnavailable):
        await bench.handle(*batch)
    await bench.handle(*batch)
    assert len(bench.graveyard.buried) == 1


async def test_large_groups_read_their_version_once(bench: Bench) -> None:
    bench.versions.rows["acme", CHAT, 3] = {0: 2, 6: 9}
    for offset in range(3):
        await bench.handle(record(offset, message(offset + 1, CHAT), None))
    made = bench.log.dispatches()
    assert [(one.target_mailbox_shard, one.bitmap_version, one.members) for one in made[:2]] == [
        (0, 2, None), (6, 9, None),
    ]  # fmt: skip
    assert len(made) == 6
    assert bench.versions.asked == [1]


async def test_an_unknown_version_is_buried_after_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    before = alarms("version_missing")
    await bench.handle(record(0, message(1, CHAT), None), record(1, message(2, CHAT)))
    assert 1 < sum(waits) < 5, "a store that is catching up gets its time"
    assert [one.record.offset for one in bench.graveyard.buried] == [0]
    assert alarms("version_missing") == before + 1
    assert [one.conversation_seq for one in bench.log.dispatches()] == [2, 2]


async def test_appends_are_cut_into_bounded_calls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "DISPATCHES_MAX", 3)
    await bench.handle(*(record(offset, message(offset + 1, CHAT)) for offset in range(4)))
    assert bench.log.calls == [3, 3, 2]
    seqs = [one.conversation_seq for one in bench.log.dispatches()]
    assert seqs == sorted(seqs)


async def test_the_failpoint_between_two_appends(bench: Bench) -> None:
    """`fanout.dispatch_appended_some` exists only when armed: half of the call is acknowledged then."""
    failpoints.arm("fanout.dispatch_appended_some:1:raise")
    try:
        with pytest.raises(failpoints.FailpointError):
            await bench.handle(record(0, message(1, CHAT)))
    finally:
        failpoints.arm("")
    assert len(bench.log.records) == 1
    await bench.handle(record(0, message(1, CHAT)))
    assert len(bench.log.records) == 3


def test_the_page_comes_back() -> None:
    page = OutboxPage(7, 9, 5)
    assert decode_outbox_page(page.encode()) == page
    assert page.encode().hex() == "0193070905"
    assert decode_outbox_page(bytes.fromhex("01920709")) == OutboxPage(7, 9, 0), "as older versions wrote it"


async def test_what_an_old_owner_appends_behind_a_barrier_is_left_out(bench: Bench) -> None:
    """T-Z1, I14: also after a restart in between; a batch that failed is judged again as it was."""
    old, new = message(2, CHAT, body=b"zombie"), message(3, CHAT, seq=2)
    await bench.handle(record(0, message(1, CHAT), epoch=5), barrier(1, 6), record(2, old, epoch=5))
    bench.restart()
    assert await bench.coordinator.start_position(0) == 3
    bench.log.fail_after = 0
    batch = (record(3, old, epoch=5), record(4, new, epoch=6), barrier(5, 7), record(6, old, epoch=6))
    with pytest.raises(StoreUnavailable):
        await bench.handle(*batch)
    await bench.handle(*batch)
    assert [one.fencing_epoch for one in bench.log.dispatches()] == [5, 5, 6, 6]
    assert bench.graveyard.buried == []
    assert ConversationProgress(bench.table).read(0)[:3] == (6, 5_000, 7)


async def test_what_only_looks_like_a_barrier_is_poison(bench: Bench) -> None:
    forged = record(0, message(1, CHAT), epoch=9, key=BARRIER_KEY)
    await bench.handle(forged, record(1, message(1, CHAT), epoch=5))
    assert [one.record.offset for one in bench.graveyard.buried] == [0]
    assert len(bench.log.dispatches()) == 2
