"""Edits and recalls through a writer on the fakes: cold targets, refusals, repeats (C1, G1, T-N4)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.ports import ArchivedMessage
from qim_streams.commit.archived_targets import ArchivedTargets
from qim_streams.commit.lane_services import SendJob
from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.requests import Windows
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.records import (
    KIND_EDIT,
    KIND_RECALL,
    OUTBOX_RELAYED,
    MessageRecord,
    decode_message,
    decode_outbox,
)
from qim_streams.testing.memory_outbox import Hold
from qim_streams.testing.memory_tier import Fault, MemoryHotTier
from qim_streams.testing.memory_writer import WriterRig
from tests.support.waiting import eventually

CHAT, KEY = "g", ("t", "g")


class World:
    """A writer with a group of three, and an archive."""

    def __init__(self, **options: Any) -> None:
        self.archive, self.now_ms = MemoryArchive(), 1_000_000
        self.rig = WriterRig(
            MemoryHotTier(lambda *_: 0), [], archive=self.archive, now_ms=lambda: self.now_ms, **options
        )

    async def start(self) -> "World":
        await self.rig.take(0)
        await self.group(GroupOp.CREATE, "ann", ("bob", "cat"))
        return self

    async def group(self, op: GroupOp, actor: str, users: Sequence[str] = (), **fields: str) -> None:
        owned = self.rig.writer.epoch_of("t", CHAT)
        assert owned is not None
        command = GroupCommand(op, "t", actor, CHAT, tuple(users), fields=fields)
        await self.rig.groups.execute(*owned, command)

    async def ask(self, sender: str, name: str, body: bytes = b"hi", **fields: Any) -> SendOutcome:
        request = (await self.rig.request(CHAT, sender, name, body))._replace(**fields)
        return await self.rig.writer.send(request)

    async def edit(self, sender: str, target: int, body: bytes = b"new", name: str = "e") -> SendOutcome:
        return await self.ask(sender, name, body, kind=KIND_EDIT, target_seq=target)

    async def recall(self, sender: str, target: int, name: str = "r") -> SendOutcome:
        return await self.ask(sender, name, b"", kind=KIND_RECALL, target_seq=target)

    @property
    def rows(self) -> dict[int, bytes]:
        return self.rig.tier.partition(0).records[KEY]

    def message(self, seq: int) -> MessageRecord:
        return decode_message(self.rows[seq])

    async def archive_and_trim(self, seq: int) -> None:
        old = self.message(seq)
        revision = old.extra[0] if old.extra else 0
        await self.archive.store(0, [ArchivedMessage(*KEY, seq, self.rows.pop(seq), revision)], seq)


async def test_an_edit_is_a_message_of_its_own_and_changes_its_target() -> None:
    world = await World().start()
    await world.ask("bob", "m", b"helo")
    done = await world.edit("bob", 1, b"hello")
    assert (done.status, done.conversation_seq) == (SendStatus.COMMITTED, 2)
    assert (world.message(1).state, world.message(1).body, world.message(1).extra) == (1, b"hello", (1,))
    in_log = [decode_message(decode_outbox(one.value).message) for one in world.rig.outbox.messages]
    assert [(one.kind, one.body) for one in in_log] == [(0, b"helo"), (KIND_EDIT, b"hello")]
    assert in_log[1].extra == (0, 1, 1)
    assert world.rows[2] == in_log[1].encode()
    assert await world.edit("bob", 1, b"hello") == done, "a repeat is answered the same"
    assert (await world.edit("bob", 1, b"other")).code == "CLIENT_MESSAGE_ID_CONFLICT"
    assert (await world.edit("bob", 2, b"hello")).code == "CLIENT_MESSAGE_ID_CONFLICT"
    assert len(world.rig.outbox.messages) == 2


async def test_refusals_have_their_codes_and_nothing_happens() -> None:
    world = await World(windows=Windows(1_000, 500, 2_000)).start()
    await world.ask("bob", "m1")
    await world.ask("bob", "m2")
    await world.recall("bob", 2)
    before = dict(world.rows)
    assert (await world.edit("cat", 1)).code == "NOT_ALLOWED"
    assert (await world.edit("ann", 1)).code == "NOT_ALLOWED", "not even the owner"
    assert (await world.recall("cat", 1, "x")).code == "NOT_ALLOWED"
    assert (await world.edit("bob", 2)).code == "TARGET_RECALLED"
    assert (await world.edit("bob", 3)).code == "TARGET_NOT_A_MESSAGE"
    assert (await world.edit("bob", 9)).code == "TARGET_NOT_FOUND"
    assert (await world.edit("eve", 1)).code == "NOT_MEMBER"
    world.now_ms += 501
    assert (await world.recall("bob", 1, "x")).code == "CHANGE_TOO_LATE"
    world.now_ms += 500
    assert (await world.edit("bob", 1)).code == "CHANGE_TOO_LATE"
    assert world.rows == before
    assert (await world.recall("ann", 1, "x")).status is SendStatus.COMMITTED, "the owner has longer"
    assert (await world.recall("bob", 1, "y")).code == "TARGET_RECALLED"


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": 3, "target_seq": 1},
        {"kind": KIND_EDIT, "target_seq": 0},
        {"kind": 0, "target_seq": 1},
        {"kind": KIND_EDIT, "target_seq": 2**60},
        {"kind": KIND_EDIT, "target_seq": 1, "to_user_id": "cat"},
        {"kind": KIND_RECALL, "target_seq": 1},  # with a body
    ],
)
async def test_what_is_no_operation_is_refused_in_itself(wrong: dict[str, Any]) -> None:
    world = await World().start()
    assert (await world.ask("bob", "m", b"x", **wrong)).code == "FIELD_INVALID"


async def test_the_send_policy_holds_for_edits_and_not_for_recalls() -> None:
    world = await World().start()
    await world.ask("bob", "m")
    await world.group(GroupOp.UPDATE, "ann", send_policy="admins")
    assert (await world.edit("bob", 1)).code == "NOT_ALLOWED"
    assert (await world.recall("bob", 1)).status is SendStatus.COMMITTED


async def test_G1_who_left_and_came_back_recalls_what_he_says_then() -> None:
    world = await World().start()
    await world.ask("bob", "m1")
    await world.group(GroupOp.LEAVE, "bob")
    assert (await world.recall("bob", 1)).code == "NOT_MEMBER"
    await world.group(GroupOp.ADD, "ann", ("bob",))
    await world.ask("bob", "m2")
    assert (await world.recall("bob", 2, "r2")).status is SendStatus.COMMITTED
    assert world.message(2).state == 2


async def test_a_target_that_only_the_archive_has_becomes_hot_again() -> None:
    world = await World().start()
    await world.ask("bob", "m", b"old")
    await world.archive_and_trim(1)
    assert (await world.edit("bob", 1, b"one")).conversation_seq == 2
    assert world.message(1).extra == (1,)
    await world.archive_and_trim(1)
    assert (await world.edit("bob", 1, b"two", "e2")).conversation_seq == 3
    assert (world.message(1).body, world.message(1).extra) == (b"two", (2,))


async def test_while_the_archive_is_away_only_old_messages_cannot_be_changed() -> None:
    world = await World().start()
    await world.ask("bob", "m", b"old")
    await world.archive_and_trim(1)
    world.archive.unavailable = True
    refusal = await world.edit("bob", 1)
    assert (refusal.code, bool(refusal.retry_after_ms)) == ("STORE_UNAVAILABLE", True)
    assert (await world.ask("bob", "m2")).conversation_seq == 2
    assert (await world.edit("bob", 2, name="e2")).conversation_seq == 3
    world.archive.unavailable = False
    assert (await world.edit("bob", 1)).conversation_seq == 4


async def test_a_number_that_no_tier_has_is_no_target() -> None:
    world = await World().start()
    await world.ask("bob", "m")
    del world.rows[1]
    assert (await world.edit("bob", 1)).code == "TARGET_NOT_FOUND"


class SlowArchive:
    """Answers when it is told to, with what it had when it was asked."""

    def __init__(self, archive: MemoryArchive) -> None:
        self.archive, self.asked, self.go = archive, 0, asyncio.Event()

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        self.asked += 1
        found = await self.archive.records(wanted)
        await self.go.wait()
        return found


async def test_an_archived_copy_from_before_another_edit_is_not_built_upon() -> None:
    """Two edits read the same old copy; the first one's outcome is archived and trimmed in between."""
    world = await World().start()
    await world.ask("bob", "m", b"old")
    await world.archive_and_trim(1)
    slow = SlowArchive(world.archive)
    services = world.rig.writer._services
    object.__setattr__(services, "targets", ArchivedTargets(slow))
    late = asyncio.create_task(world.edit("bob", 1, b"late", "late"))
    await eventually(lambda: slow.asked)
    object.__setattr__(services, "targets", ArchivedTargets(world.archive))
    assert (await world.edit("bob", 1, b"early", "early")).conversation_seq == 2
    await world.archive_and_trim(1)
    slow.go.set()
    assert (await late).conversation_seq == 3
    assert (world.message(1).body, world.message(1).extra) == (b"late", (2,))


async def test_messages_do_not_wait_for_a_slow_archive_and_waiting_is_bounded() -> None:
    world = await World().start()
    await world.ask("bob", "m", b"old")
    await world.archive_and_trim(1)
    slow = SlowArchive(world.archive)
    targets = ArchivedTargets(slow, waiting_max=2, timeout_s=0.05)
    object.__setattr__(world.rig.writer._services, "targets", targets)
    waiting = [asyncio.create_task(world.edit("bob", 1, b"%d" % n, f"e{n}")) for n in range(2)]
    await eventually(lambda: slow.asked == 2)
    assert (await world.edit("bob", 1, name="e9")).code == "OVERLOADED"
    assert (await world.ask("bob", "m2")).conversation_seq == 2
    assert {(await one).code for one in waiting} == {"STORE_UNAVAILABLE"}


async def test_a_message_that_is_not_settled_cannot_be_changed_yet() -> None:
    """The relay would append its changed record: the Outbox must have the original."""
    world = await World().start()
    answers: list[SendOutcome] = []
    world.rig.outbox.hold = Hold.ARRIVED
    request: SendRequest = await world.rig.request(CHAT, "bob", "m")
    world.rig.writer.submit([SendJob(request, answers.append, 1e12)])
    await eventually(lambda: 1 in world.rig.tier.partition(0).records.get(KEY, {}))
    refusal = await world.edit("bob", 1)
    assert (refusal.code, bool(refusal.retry_after_ms)) == ("TARGET_UNSETTLED", True)
    world.rig.outbox.hold = Hold.NONE
    world.rig.outbox.acknowledge()
    await eventually(lambda: answers)
    assert (await world.edit("bob", 1)).status is SendStatus.COMMITTED


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST])
async def test_an_edit_whose_commit_is_unsure_is_settled_with_its_revision(fault: Fault) -> None:
    """T-N4: the repeated call says RESERVED; the Outbox gets the very record that the store has."""
    world = await World().start()
    await world.ask("bob", "m", b"old")
    await world.edit("bob", 1, b"one", "e1")
    world.rig.tier.faults.append(fault)
    done = await world.edit("bob", 1, b"two", "e2")
    assert (done.status, done.conversation_seq) == (SendStatus.COMMITTED, 3)
    last = decode_outbox(world.rig.outbox.messages[-1].value).message
    assert last == world.rows[3]
    assert decode_message(last).extra == (0, 1, 2)
    assert world.message(1).extra == (2,)


async def test_an_edit_that_a_killed_writer_had_numbered_is_relayed_and_answered_the_same() -> None:
    """§14.3: numbered, applied to its target, and not in the Outbox when the process died."""
    world = await World().start()
    await world.ask("bob", "m", b"old")
    rig = world.rig
    await eventually(lambda: not rig.tier.partition(0).pending)
    rig.outbox.hold = Hold.BUFFERED
    request = (await rig.request(CHAT, "bob", "e", b"new"))._replace(kind=KIND_EDIT, target_seq=1)
    answers: list[SendOutcome] = []
    rig.writer.submit([SendJob(request, answers.append, 1e12)])
    await eventually(lambda: world.message(1).state == 1)
    rig.kill()
    assert len(rig.outbox.messages) == 1
    world.rig = WriterRig(
        rig.tier, rig.outbox.log, boot=2, archive=world.archive, change_log=rig.change_log,
        now_ms=lambda: world.now_ms,
    )  # fmt: skip
    await world.rig.take(0)
    in_log = [decode_outbox(one.value) for one in rig.outbox.messages]
    assert [one.flags for one in in_log] == [0, OUTBOX_RELAYED]
    assert in_log[1].message == world.rows[2]
    outcome = await world.rig.writer.send(request)
    assert (outcome.status, outcome.conversation_seq) == (SendStatus.COMMITTED, 2)
    assert (await world.edit("bob", 1, b"newer", "e2")).conversation_seq == 3
    assert world.message(1).extra == (2,)


async def test_a_hot_tier_that_forgot_that_a_message_is_settled_appends_no_edited_copy() -> None:
    """§14.4: it comes back as of before the confirmation; the Outbox keeps the one form of the message."""
    world = await World().start()
    rig = world.rig
    rig.outbox.hold = Hold.ARRIVED
    answers: list[SendOutcome] = []
    rig.writer.submit([SendJob(await rig.request(CHAT, "bob", "m", b"old"), answers.append, 1e12)])
    await eventually(lambda: rig.outbox.messages)
    forgotten = rig.tier.remember()
    rig.outbox.hold = Hold.NONE
    rig.outbox.acknowledge()
    await eventually(lambda: answers)
    assert (await world.edit("bob", 1, b"new")).conversation_seq == 2
    rig.kill()
    rig.tier.roll_back(forgotten)
    assert rig.tier.partition(0).pending
    world.rig = WriterRig(
        rig.tier, rig.outbox.log, boot=2, archive=world.archive, change_log=rig.change_log,
        now_ms=lambda: world.now_ms,
    )  # fmt: skip
    await world.rig.take(0)
    assert (world.message(1).state, world.message(1).body) == (1, b"new")
    copies = [decode_message(decode_outbox(one.value).message) for one in rig.outbox.messages]
    assert {(one.state, one.body) for one in copies if one.conversation_seq == 1} == {(0, b"old")}
