"""Random conversations with edits and recalls equal a list in which messages are changed in place.

The real writer, archiver and history service on fakes. What is archived may leave the hot tier at any time,
the hot tier may lose its last writes, the writer may be killed, the archiver may start anew and read its
log again. Then PULL_HISTORY, in both directions and pages of any size, is the list (T-M7, T-X5).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.service import HistoryArchiver
from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.ports import OutboxAppend
from qim_streams.commit.requests import Windows
from qim_streams.history.rules import PageQuery
from qim_streams.history.service import HistoryReader, HistoryService
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.records import KIND_EDIT, KIND_MESSAGE, KIND_RECALL, decode_message, decode_outbox
from qim_streams.testing.memory_history import MemoryHistoryStore
from qim_streams.testing.memory_outbox import MemoryMembershipLog, without_barriers
from qim_streams.testing.memory_tier import MemoryHotTier
from qim_streams.testing.memory_writer import MemoryClockBound, WriterRig
from tests.unit.archive.outbox_batches import Record, RememberedLetters, batch

TENANT, CHAT, KEY = "t", "g", ("t", "g")
ROLES = {"ann": "owner", "bob": "member", "cat": "member"}
WINDOWS = Windows(edit_ms=1_000, recall_ms=500, recall_admin_ms=2_000)

users = st.sampled_from([*ROLES, "eve"])
targets = st.integers(1, 14)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), users),
        st.tuples(st.just("send"), st.sampled_from(list(ROLES))),
        st.tuples(st.just("edit"), users, targets),
        st.tuples(st.just("edit"), users, targets),
        st.tuples(st.just("recall"), users, targets),
        st.tuples(st.just("repeat"), st.integers(0, 50)),
        st.tuples(st.just("wait"), st.sampled_from([100, 400, 600])),
        st.tuples(st.just("archive"), st.integers(1, 9)),
        st.tuples(st.just("archive again")),
        st.tuples(st.just("trim"), st.sets(st.integers(1, 20))),
        st.tuples(st.just("remember")),
        st.tuples(st.just("lose")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@dataclass
class Row:
    """A number of the conversation as the model has it."""

    sender: str
    kind: int
    at_ms: int
    body: bytes
    state: int = 0
    target: int | None = None


@dataclass
class World:
    """Writer, archiver and reader on one hot tier, and the list."""

    tier: MemoryHotTier = field(default_factory=lambda: MemoryHotTier(lambda *_: 0))
    log: list[OutboxAppend] = field(default_factory=list)
    changes: MemoryMembershipLog = field(default_factory=MemoryMembershipLog)
    archive: MemoryArchive = field(default_factory=MemoryArchive)
    rows: list[Row] = field(default_factory=list)
    asked: list[tuple[SendRequest, SendOutcome]] = field(default_factory=list)
    now_ms: int = 1_000_000
    boots: int = 0
    archived: int = 0
    remembered: Any = None
    bound: MemoryClockBound = field(default_factory=MemoryClockBound)

    async def start(self) -> None:
        """A writer process takes the partition, an archiver its place in the log."""
        self.boots += 1
        self.rig = WriterRig(
            self.tier, self.log, boot=self.boots, now_ms=lambda: self.now_ms, bound=self.bound,
            change_log=self.changes, archive=self.archive, windows=WINDOWS,
        )  # fmt: skip
        await self.rig.take(0)
        await self.start_archiver()

    async def start_archiver(self) -> None:
        self.letters = RememberedLetters()
        self.archiver = HistoryArchiver("qim.outbox.v1", self.archive, self.letters, now_ms=lambda: 0)
        self.archived = await self.archiver.start_position(0)

    async def make_group(self) -> None:
        owned = self.rig.writer.epoch_of(TENANT, CHAT)
        assert owned is not None
        create = GroupCommand(GroupOp.CREATE, TENANT, "ann", CHAT, ("bob", "cat"))
        await self.rig.groups.execute(*owned, create)

    # -- what users do

    async def ask(self, sender: str, kind: int, target: int = 0) -> None:
        number = len(self.asked)
        body = b"" if kind == KIND_RECALL else b"%d of %s" % (number, sender.encode())
        plain = await self.rig.request(CHAT, sender, f"m{number}", body)
        request = plain._replace(kind=kind, target_seq=target)
        outcome = await self.rig.writer.send(request)
        self.asked.append((request, outcome))
        code = self.judge(sender, kind, target)
        assert outcome.code == code, (request, outcome, code)
        if code:
            assert outcome.status is SendStatus.REFUSED
            return
        assert outcome.status is SendStatus.COMMITTED
        self.rows.append(Row(sender, kind, self.now_ms, body, kind, target or None))
        assert outcome.conversation_seq == len(self.rows)
        if kind:
            self.rows[target - 1].state, self.rows[target - 1].body = kind, body

    def judge(self, sender: str, kind: int, target: int) -> str:
        """The error's name, empty when it is to be done. Written from the rules, not from the code."""
        if sender not in ROLES:
            return "NOT_MEMBER"
        if kind == KIND_MESSAGE:
            return ""
        if target > len(self.rows):
            return "TARGET_NOT_FOUND"
        row = self.rows[target - 1]
        if row.kind:
            return "TARGET_NOT_A_MESSAGE"
        if row.state == 2:
            return "TARGET_RECALLED"
        age, own = self.now_ms - row.at_ms, row.sender == sender
        if kind == KIND_EDIT:
            return "NOT_ALLOWED" if not own else "" if age <= 1_000 else "CHANGE_TOO_LATE"
        if ROLES[sender] == "owner":
            return "" if age <= 2_000 else "CHANGE_TOO_LATE"
        return "NOT_ALLOWED" if not own else "" if age <= 500 else "CHANGE_TOO_LATE"

    async def repeat(self, number: int) -> None:
        """A committed one is answered the same; nothing happens again."""
        done = [pair for pair in self.asked if pair[1].status is SendStatus.COMMITTED]
        if done:
            request, outcome = done[number % len(done)]
            assert await self.rig.writer.send(request) == outcome

    # -- what the rest of the system does

    async def archive_some(self, count: int) -> None:
        """`count` messages more, and the barriers before them."""
        part: list[OutboxAppend] = []
        for one in self.log[self.archived :]:
            if len(without_barriers(part)) == count:
                break
            part.append(one)
        if part:
            records = [Record(one.key, one.value, self.archived + index) for index, one in enumerate(part)]
            await self.archiver.handle(batch(records))
            self.archived += len(part)
        assert not self.letters.letters

    def trim(self, seqs: set[int]) -> None:
        """Only the very same bytes go, and nothing that is not confirmed."""
        state = self.tier.partition(0)
        waiting = {seq for *_, seq in state.pending.values()}
        rows = state.records.get(KEY, {})
        for seq in seqs - waiting:
            if seq in rows and self.archive.messages.get((*KEY, seq)) == rows[seq]:
                del rows[seq]

    async def lose(self) -> None:
        """The hot tier comes back without its last writes."""
        if self.remembered is not None:
            self.rig.kill()
            self.tier.roll_back(self.remembered)
            await self.start()

    def assert_no_forgery(self) -> None:
        """However often the Outbox has a message, the bytes are the same: fan-out takes others for forged."""
        copies: dict[bytes, set[bytes]] = {}
        for one in without_barriers(self.log):
            record = decode_outbox(one.value).message
            copies.setdefault(decode_message(record).message_id, set()).add(record)
        assert all(len(found) == 1 for found in copies.values())

    # -- what readers see

    async def assert_equal(self) -> None:
        for size in (100, 3):
            for newer in (True, False):
                seen = await self.read(newer, size)
                assert seen == [self.expected(seq) for seq in range(1, len(self.rows) + 1)]

    def expected(self, seq: int) -> dict[str, Any]:
        row = self.rows[seq - 1]
        final = row if row.kind != KIND_EDIT else self.rows[(row.target or 0) - 1]
        found = {"conversation_seq": seq, "sender_id": row.sender, "kind": row.kind}
        found |= {"state": final.state, "body": final.body}
        return found | ({"target_seq": row.target} if row.kind else {})

    async def read(self, newer: bool, size: int) -> list[dict[str, Any]]:
        service = HistoryService(MemoryHistoryStore(self.tier), self.archive)
        found, anchor = list[dict[str, Any]](), None
        while True:
            page = await service.page(
                HistoryReader(TENANT, "ann", CHAT), PageQuery(newer, anchor, size, 10**6)
            )
            assert not page.breaks
            part = [msgpack.unpackb(body) for body in page.messages]
            found = found + part if newer else part + found
            anchor = page.next_anchor
            if not page.has_more:
                break
        return [{k: v for k, v in one.items() if k not in HIDDEN} for one in found]


HIDDEN = ("message_id", "conversation_id", "committed_at")


async def play(script: list[tuple[Any, ...]]) -> World:
    world = World()
    await world.start()
    await world.make_group()
    world.remembered = world.tier.remember()
    do: dict[str, Callable[..., Any]] = {
        "send": lambda user: world.ask(user, KIND_MESSAGE),
        "edit": lambda user, target: world.ask(user, KIND_EDIT, target),
        "recall": lambda user, target: world.ask(user, KIND_RECALL, target),
        "repeat": world.repeat,
        "archive": world.archive_some,
        "archive again": world.start_archiver,
        "lose": world.lose,
    }
    for name, *rest in script:
        if name in do:
            await do[name](*rest)
        elif name == "wait":
            world.now_ms += rest[0]
        elif name == "trim":
            world.trim(*rest)
        elif name == "remember":
            world.remembered = world.tier.remember()
        else:
            world.rig.kill()
            await world.start()
    await settled(world)
    await world.assert_equal()
    await world.archive_some(len(world.log))
    await world.assert_equal()
    world.trim(set(range(1, len(world.rows) + 1)))
    await world.assert_equal()
    assert not any(world.tier.partition(0).records.get(KEY, {})), "the archive has the very same bytes of all"
    world.assert_no_forgery()
    world.rig.kill()
    return world


async def settled(world: World) -> None:
    for _ in range(1_000):
        if not world.tier.partition(0).pending:
            return
        await asyncio.sleep(0)
    raise AssertionError("messages stay pending")


@settings(max_examples=150, deadline=None)
@given(steps)
def test_history_is_the_list(script: list[tuple[Any, ...]]) -> None:
    asyncio.run(play(script))


def test_an_edit_of_what_only_the_archive_has_twice_over_a_trim() -> None:
    """The second edit finds the first one's outcome, whichever tier has it, also after a lost hot tier."""
    script: list[tuple[Any, ...]] = [
        ("send", "ann"), ("archive", 9), ("trim", {1}), ("edit", "ann", 1), ("archive", 9), ("trim", {1, 2}),
        ("edit", "ann", 1), ("remember",), ("edit", "ann", 1), ("lose",), ("edit", "ann", 1),
        ("recall", "ann", 1), ("edit", "ann", 1),
    ]  # fmt: skip
    world = asyncio.run(play(script))
    assert [row.kind for row in world.rows] == [0, 1, 1, 1, 1, 2]
    assert (world.rows[0].state, world.rows[0].body) == (2, b"")
    assert world.asked[-1][1].code == "TARGET_RECALLED"


def test_a_lost_edit_of_what_only_the_archive_has_comes_back() -> None:
    """§14.4: the number and the revision of the lost edit are used up, and its target is hot again."""
    script: list[tuple[Any, ...]] = [
        ("send", "bob"), ("archive", 1), ("trim", {1}), ("remember",), ("edit", "bob", 1), ("lose",),
        ("edit", "bob", 1), ("archive again",), ("archive", 9),
    ]  # fmt: skip
    world = asyncio.run(play(script))
    assert world.archive.revisions[(*KEY, 1)] == 2
