"""What each stage tells: once its work on a message is durable, under the ids that its neighbours know."""

import asyncio

import pytest

from qim_streams import failpoints
from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.service import HistoryArchiver
from qim_streams.commit.lane_services import SendJob
from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.errors import StoreUnavailable
from qim_streams.gateway.spans import SpannedDeliveries, SpannedWriters
from qim_streams.ids import direct_conversation_id
from qim_streams.membership.commands import GroupCommand, GroupOp, GroupState
from qim_streams.records import PushBatch, PushItem, Recipient
from qim_streams.spans.rules import Place, Stage, parent_of, span_id_of, trace_id_of
from qim_streams.testing.memory_outbox import Hold
from qim_streams.testing.memory_spans import MemorySpans, every_message
from qim_streams.testing.memory_tier import MemoryHotTier
from qim_streams.testing.memory_writer import WriterRig
from qim_streams.wire.events import common_body, message_id_in_body
from tests.support.shard_world import ShardWorld, Worker
from tests.unit.archive import outbox_batches as outbox_of_archiver
from tests.unit.fanout.outbox import Bench, conversation_in, message, record


@pytest.fixture
def sink() -> MemorySpans:
    return MemorySpans()


# -- gateway


class Writers:
    """`WriterLinks` that remembers what waits."""

    def __init__(self) -> None:
        self.waiting: list[object] = []

    def submit(self, request: SendRequest, timeout_s: float, reply: object) -> None:
        self.waiting.append(reply)

    async def group(self, command: GroupCommand, timeout_s: float) -> GroupState:
        raise NotImplementedError("not of this test")


def request() -> SendRequest:
    chat = direct_conversation_id("acme", "ann", "ben")
    return SendRequest("acme", chat, "ann", 1, "phone", "m1", b"hello", "ben")


def test_a_send_is_told_with_its_answer(sink: MemorySpans) -> None:
    writers, answers = Writers(), list[SendOutcome]()
    spanned = SpannedWriters(writers, every_message(sink))  # type: ignore[arg-type]
    spanned.submit(request(), 1.0, answers.append)
    assert sink.spans == []
    message_id = bytes(range(16))
    outcome = SendOutcome(SendStatus.COMMITTED, message_id, 1, 2)
    writers.waiting[0](outcome)  # type: ignore[operator]
    assert answers == [outcome]
    (span,) = sink.spans
    assert (span.stage, span.trace_id, span.parent_id) == (Stage.SEND, trace_id_of(message_id), None)
    assert span.began_ns < span.ended_ns


def test_a_send_without_a_message_has_no_trace(sink: MemorySpans) -> None:
    writers, answers = Writers(), list[SendOutcome]()
    spanned = SpannedWriters(writers, every_message(sink))  # type: ignore[arg-type]
    for status in (SendStatus.REFUSED, SendStatus.UNKNOWN):
        spanned.submit(request(), 1.0, answers.append)
        writers.waiting[-1](SendOutcome(status))  # type: ignore[operator]
    assert len(answers) == 2
    assert sink.spans == []


async def test_a_delivery_is_told_once_the_sessions_have_it(sink: MemorySpans) -> None:
    one = message(7, "c1")
    item = PushItem(3, 0, common_body(one), [Recipient(1, 1, b"e" * 16, 0, 0, None)], 9)
    odd = item._replace(common_body=b"\x80")
    batch = PushBatch("acme", 5, 1, [item, odd], [])
    seen: list[int] = []

    async def deliver(batches: object) -> None:
        seen.append(len(sink.spans))

    await SpannedDeliveries(deliver, every_message(sink), "gateway.a.0")([batch])
    assert seen == [0]
    (span,) = sink.spans
    place = Place(5, "gateway.a.0")
    assert span.span_id == span_id_of(one.message_id, Stage.DELIVER, place)
    assert span.parent_id == span_id_of(one.message_id, Stage.PUSH, Place(5))


def test_the_id_of_a_body_is_read_off_its_front() -> None:
    one = message(7, "c1", body=b"message_id")
    assert message_id_in_body(common_body(one)) == one.message_id
    assert message_id_in_body(common_body(one)[:20]) is None
    assert message_id_in_body(b"") is None


# -- writer


async def rig_with_chat(sink: MemorySpans) -> WriterRig:
    rig = WriterRig(MemoryHotTier(lambda *_: 0), [], spans=every_message(sink))
    await rig.take(0)
    owned = rig.writer.epoch_of("t", "g")
    assert owned is not None
    await rig.groups.execute(*owned, GroupCommand(GroupOp.CREATE, "t", "ann", "g", ("bob",)))
    return rig


async def test_commit_and_append_are_told_when_they_stand(sink: MemorySpans) -> None:
    rig = await rig_with_chat(sink)
    rig.outbox.hold = Hold.ARRIVED
    answers: list[SendOutcome] = []
    job = SendJob(await rig.request("g", "ann", "m1"), answers.append, 1e12)
    rig.writer.submit([job])
    await turns()
    assert [one.stage for one in sink.spans] == [Stage.COMMIT], "not acknowledged yet"
    rig.outbox.acknowledge()
    await turns()
    commit, append = sink.spans
    message_id = answers[0].message_id
    assert commit.parent_id == span_id_of(message_id, Stage.SEND)
    assert (append.stage, append.parent_id) == (Stage.APPEND, commit.span_id)
    assert append.attributes["qim.outbox_partition"] == 0


async def test_a_repeat_and_a_refusal_are_no_commit(sink: MemorySpans) -> None:
    rig = await rig_with_chat(sink)
    answers: list[SendOutcome] = []
    for sender, name, body in (("ann", "m1", b"hi"), ("ann", "m1", b"hi"), ("ann", "m1", b"other")):
        rig.writer.submit([SendJob(await rig.request("g", sender, name, body), answers.append, 1e12)])
        await turns()
    rig.writer.submit([SendJob(await rig.request("g", "eve", "m9"), answers.append, 1e12)])
    await turns()
    assert [one.status for one in answers] == [
        SendStatus.COMMITTED, SendStatus.COMMITTED, SendStatus.REFUSED, SendStatus.REFUSED
    ]  # fmt: skip
    assert [one.stage for one in sink.spans] == [Stage.COMMIT, Stage.APPEND]


async def turns(count: int = 40) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- fan-out and archive


async def test_fan_out_is_told_once_all_dispatches_are_in_the_log(sink: MemorySpans) -> None:
    bench = Bench()
    bench.spans = every_message(sink)
    bench.restart()
    await bench.coordinator.start_position(0)
    one = message(1, conversation_in(0))
    bench.log.fail_after = 0
    with pytest.raises(StoreUnavailable):
        await bench.handle(record(0, one))
    assert sink.spans == []
    await bench.handle(record(0, one), record(1, one))
    (span,) = sink.spans
    assert span.span_id == span_id_of(one.message_id, Stage.FANOUT)
    assert span.parent_id == span_id_of(one.message_id, Stage.APPEND)


async def test_the_archive_is_told_with_its_watermark(sink: MemorySpans) -> None:
    archive, letters = MemoryArchive(), outbox_of_archiver.RememberedLetters()
    archiver = HistoryArchiver(
        "qim.outbox.v1", archive, letters, now_ms=lambda: 5_000, spans=every_message(sink)
    )
    await archiver.start_position(0)
    one = outbox_of_archiver.message(1)
    await archiver.handle(outbox_of_archiver.batch([outbox_of_archiver.record(0, one)]))
    (span,) = sink.spans
    assert span.span_id == span_id_of(one.message_id, Stage.ARCHIVE)
    assert span.parent_id == span_id_of(one.message_id, Stage.APPEND)


# -- mailbox


async def worker_of(world: ShardWorld) -> Worker:
    worker = Worker(world, 1)
    await worker.start()
    return worker


async def test_mailboxes_are_told_when_w_covers_them(sink: MemorySpans) -> None:
    world = ShardWorld()
    world.spans = every_message(sink)
    numbers = [world.append_message([1, 65], sender=1, inline=True) for _ in range(2)]
    worker = await worker_of(world)
    await worker.work(2)
    message_ids = [one.attributes["qim.message_id"] for one in sink.of(Stage.MAILBOX)]
    assert len(message_ids) == len(numbers)
    message_id = bytes.fromhex(str(message_ids[0]))
    assert sink.spans[0].parent_id == parent_of(message_id, Stage.MAILBOX, Place(0))
    await worker_of_next_boot(world)
    assert len(sink.spans) == 2, "a replay is nothing new"


async def worker_of_next_boot(world: ShardWorld) -> None:
    worker = Worker(world, 2)
    await worker.start()
    while await worker.work(10):
        pass


async def test_a_record_in_slices_is_told_when_its_last_lane_has_it(sink: MemorySpans) -> None:
    world = ShardWorld()
    world.spans = every_message(sink)
    world.append_message([0, 1, 2, 63, 64, 65], sender=1, inline=True)
    worker = await worker_of(world)
    await worker.work(1, checkpoint=False)
    assert sink.spans == [], "some lanes lack it"
    await worker.drain()
    (span,) = sink.of(Stage.MAILBOX)
    assert span.attributes["qim.lanes_apart"] == 1


async def test_a_worker_that_dies_before_w_moves_tells_nothing(sink: MemorySpans) -> None:
    world = ShardWorld()
    world.spans = every_message(sink)
    world.append_message([1], sender=1, inline=True)
    worker = await worker_of(world)
    failpoints.arm("mailbox.bitmap_loaded:1:raise")
    try:
        with pytest.raises(failpoints.FailpointError):
            await worker.work(1)
    finally:
        failpoints.arm("")
    assert sink.spans == []
