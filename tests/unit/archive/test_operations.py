"""Edits and recalls in the archiver: the target gets its revision wherever it is. P11, I12; Spec: §8."""

import pytest

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.ports import ArchivedMessage
from qim_streams.archive.service import HistoryArchiver
from qim_streams.operations.rules import RECALL_REVISION
from qim_streams.records import KIND_EDIT, KIND_RECALL, MessageRecord, decode_message
from tests.unit.archive.outbox_batches import RememberedLetters, batch, message, record

ROOM = ("acme", "room")


def edit(seq: int, target: int, revision: int, body: bytes = b"new") -> MessageRecord:
    return message(seq)._replace(kind=KIND_EDIT, state=1, body=body, extra=(0, target, revision))


def recall(seq: int, target: int) -> MessageRecord:
    return message(seq)._replace(kind=KIND_RECALL, state=2, body=b"", extra=(0, target, RECALL_REVISION))


class World:
    def __init__(self) -> None:
        self.archive, self.letters = MemoryArchive(), RememberedLetters()
        self.covered: list[int] = []
        self.offset = 0

    async def start(self) -> None:
        self.archiver = HistoryArchiver(
            "qim.outbox.v1", self.archive, self.letters, now_ms=lambda: 0,
            on_covered=lambda _, found: self.covered.extend(one.conversation_seq for one in found),
        )  # fmt: skip
        self.offset = await self.archiver.start_position(0)

    async def log(self, *messages: MessageRecord) -> None:
        self.covered.clear()
        records = [record(self.offset + at, one) for at, one in enumerate(messages)]
        await self.archiver.handle(batch(records))
        self.offset += len(messages)

    def state(self, seq: int) -> tuple[int, bytes]:
        found = decode_message(self.archive.messages[*ROOM, seq])
        return found.state, found.body


@pytest.fixture
async def world() -> World:
    made = World()
    await made.start()
    return made


async def test_in_one_batch(world: World) -> None:
    await world.log(message(1), edit(2, 1, 1), message(3), edit(4, 1, 2, b"newer"), recall(5, 3))
    assert world.state(1) == (1, b"newer")
    assert world.state(3) == (2, b"")
    assert world.archive.messages[*ROOM, 2] == edit(2, 1, 1).encode(), "operations are kept as they are"
    assert world.archive.revisions[*ROOM, 3] == RECALL_REVISION
    assert sorted(world.covered) == [1, 2, 3, 4, 5]


async def test_a_target_that_was_archived_long_ago_is_told_to_the_trimmer(world: World) -> None:
    await world.log(message(1), message(2))
    await world.log(edit(3, 1, 1))
    assert world.state(1) == (1, b"new")
    assert sorted(world.covered) == [1, 3]


async def test_a_replay_changes_nothing_and_tells_the_targets_again(world: World) -> None:
    """P11: killed between the archive and the acknowledgement, or between the archive and the trimmer."""
    await world.log(message(1), message(2))
    await world.log(edit(3, 1, 1), edit(4, 1, 2, b"newer"), recall(5, 2))
    before, writes = dict(world.archive.messages), world.archive.writes
    world.archive.watermarks[0] = 1
    await world.start()
    await world.log(edit(3, 1, 1), edit(4, 1, 2, b"newer"), recall(5, 2))
    assert world.archive.messages == before
    assert world.archive.writes == writes
    assert sorted(world.covered) == [1, 2, 3, 4, 5]
    assert not world.letters.letters


async def test_a_lost_watermark_replays_all_and_a_recall_stands(world: World) -> None:
    log = (message(1), edit(2, 1, 1), recall(3, 1))
    await world.log(*log)
    world.archive.watermarks.clear()
    await world.start()
    await world.log(log[0])
    assert world.state(1) == (2, b"")
    await world.log(log[1])
    assert world.state(1) == (2, b"")
    assert not world.letters.letters, "an earlier revision is a repeat, not a contradiction"


async def test_a_relayed_copy_of_an_operation_counts_once(world: World) -> None:
    await world.log(message(1), edit(2, 1, 1), edit(2, 1, 1), message(3))
    assert world.state(1) == (1, b"new")
    assert not world.letters.letters


async def test_a_target_that_is_nowhere_stops_nobody(world: World) -> None:
    await world.log(edit(7, 4, 1), message(8))
    assert (*ROOM, 4) not in world.archive.messages
    assert {seq for *_, seq in world.archive.messages} == {7, 8}


async def test_a_damaged_target_stops_nobody(world: World) -> None:
    await world.archive.store(0, [ArchivedMessage(*ROOM, 4, b"\x01junk")], -1)
    await world.log(edit(7, 4, 1), message(8))
    assert world.archive.messages[*ROOM, 4] == b"\x01junk"
    assert await world.archive.watermark(0) == 1


async def test_a_malformed_operation_is_poison(world: World) -> None:
    await world.log(message(1), edit(2, 1, 1)._replace(extra=(0, 2, 1)))
    assert [offset for offset, _ in world.letters.letters] == [1]
    assert world.state(1) == (0, b"hi")
