"""A small world of writers for model tests: two nodes, one Outbox partition, two groups, an unreliable store.

Everything runs on one event loop that is turned by hand, on the real services and the verified fakes, so a
run is a function of its steps. `check` holds the promises against what clients were told and what lies in
the Outbox; it is written from the promises, not from the code.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from qim_streams import failpoints
from qim_streams.commit.lane_services import SendJob
from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.ports import OutboxAppend
from qim_streams.errors import QimError
from qim_streams.failpoints import FailpointError
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.membership.ports import Member
from qim_streams.membership.rows import decode_log_row
from qim_streams.ownership.ports import Grant
from qim_streams.records import MessageRecord, decode_message, decode_outbox
from qim_streams.testing.memory_outbox import Hold, MemoryMembershipLog
from qim_streams.testing.memory_tier import MemoryHotTier
from qim_streams.testing.memory_writer import LEASE_TTL_MS, Died, MemoryClockBound, WriterRig

T = TypeVar("T")
CHATS = ("g1", "g2")
USERS = ("ann", "bob", "cat")
NODES = ("w1", "w2")
TURNS_MAX = 500  # of the loop in one step; what repeats a call for ever goes on in the next
START_MS = 1_000_000
FOR_EVER_S = float("inf")


@dataclass
class Sent:
    """A client_message_id and what its attempts were told."""

    request: SendRequest
    answers: list[tuple[bytes, SendOutcome]] = field(default_factory=list)  # body of the attempt, answer
    bodies: set[bytes] = field(default_factory=set)
    attempts: int = 0


Attempt = tuple[Sent, bytes]  # what is sent, with which body this time


class WriterWorld:
    """`rig_class` may be a broken one, for the mutation check."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda *_: None)  # a killed task's error is no news
        self.clock_ms = START_MS
        self.skew_ms = dict.fromkeys(NODES, 0)
        self.tier = MemoryHotTier(lambda *_: 0, lambda: self.clock_ms)
        self.log: list[OutboxAppend] = []
        self.change_log = MemoryMembershipLog()
        self.bounds = {node: MemoryClockBound() for node in NODES}
        self.boots = dict.fromkeys(NODES, 0)
        self.rigs: dict[str, WriterRig] = {}
        self.sent: dict[tuple[str, str, str], Sent] = {}
        self.numbers = 0
        self._checked = 0  # records of the log that were checked
        self._fence = self.left_out = 0
        self._first: dict[str, list[MessageRecord]] = {chat: [] for chat in CHATS}
        self._ids: dict[tuple[str, str, str], bytes] = {}
        self.owner = NODES[0]
        self.boot(self.owner)
        for chat in CHATS:
            self.group(GroupOp.CREATE, chat, "ann", ("bob",))
        self.remember()

    # -- turning the loop

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(step)

    def settle(self) -> None:
        """Let everything happen that can happen without another step."""

        async def turn() -> None:
            loop: Any = self.loop
            for _ in range(TURNS_MAX):
                await asyncio.sleep(0)
                if not loop._ready and not loop._scheduled:
                    return

        self.run(turn())

    def close(self) -> None:
        failpoints.arm("")
        for rig in self.rigs.values():
            rig.kill()
        self.settle()
        self.loop.close()

    # -- steps

    def boot(self, node: str, waiting: Sequence[Attempt] = ()) -> None:
        """Start a node anew (the one before is dead) and let it ask for the partition.

        `waiting` arrives right after the grant, before the relay had a turn.
        """
        if node in self.rigs:
            self.rigs[node].kill()
            self.settle()
        self.boots[node] += 1
        self.rigs[node] = self.new_rig(node)
        self.ask(node, waiting)

    def new_rig(self, node: str) -> WriterRig:
        return WriterRig(
            self.tier,
            self.log,
            node=node,
            boot=self.boots[node],
            now_ms=lambda: self.clock_ms + self.skew_ms[node],
            bound=self.bounds[node],
            change_log=self.change_log,
        )

    def ask(self, node: str, waiting: Sequence[Attempt] = ()) -> None:
        """A node asks for the lease, as its keeper does from time to time."""
        rig = self.rigs[node]
        if rig.outbox.dead:
            return

        jobs = self._jobs(waiting)

        async def step() -> None:
            grant = await rig.leases.acquire("ob:0", node, rig.boot, f"{node}:1", LEASE_TTL_MS)
            if isinstance(grant, Grant) and rig.writer.epoch_of("t", CHATS[0]) != (0, grant.epoch):
                rig.writer.grant(grant)
                self.owner = node
            self._hand_in(rig, jobs)

        self.run(step())
        self.settle()

    def expire(self) -> None:
        """The owner is paused past its lease; it does not know."""
        self.clock_ms += LEASE_TTL_MS + 1

    def remember(self) -> None:
        """The hot tier's disk holds what there is now."""
        self._on_disk = self.tier.remember()

    def lose_power(self) -> None:
        """The hot tier restarts with what was on disk last (Spec: §14.4). Nobody is told, and an owner that
        is paused with records in its producer has them still."""
        self.tier.roll_back(self._on_disk)

    def send(self, node: str, chat: str, user: str, body: bytes = b"", known: Sent | None = None) -> Sent:
        """A client sends (or repeats `known`) through a gateway that thinks that `node` is the owner."""
        if known is None:
            ((known, body),) = self.new(node, chat, user, 1)
        self.submit(node, [(known, body)])
        return known

    def burst(self, node: str, chat: str, user: str, count: int) -> None:
        """Several new messages arrive at once."""
        self.submit(node, self.new(node, chat, user, count))

    def submit(self, node: str, attempts: Sequence[Attempt]) -> None:
        """Hand attempts to a writer in one batch."""
        rig, jobs = self.rigs[node], self._jobs(attempts)
        if rig.outbox.dead:
            return

        async def step() -> None:
            self._hand_in(rig, jobs)

        self.run(step())
        self.settle()

    def _hand_in(self, rig: WriterRig, jobs: Sequence[SendJob]) -> None:
        try:
            rig.writer.submit(jobs)
        except (FailpointError, Died):
            rig.kill()

    def _jobs(self, attempts: Sequence[Attempt]) -> list[SendJob]:
        jobs = []
        for sent, body in attempts:
            sent.attempts += 1
            sent.bodies.add(body)
            jobs.append(self._job(sent, body))
        return jobs

    def new(self, node: str, chat: str, user: str, count: int) -> list[Attempt]:
        """First attempts of new messages, not sent yet."""
        attempts = []
        for _ in range(count):
            self.numbers += 1
            body = b"body %d" % self.numbers
            request = self.run(self.rigs[node].request(chat, user, f"m{self.numbers}", body))
            sent = self.sent[chat, user, request.client_message_id] = Sent(request)
            attempts.append((sent, body))
        return attempts

    def _job(self, sent: Sent, body: bytes) -> SendJob:
        def told(outcome: SendOutcome) -> None:
            sent.answers.append((body, outcome))

        return SendJob(sent.request._replace(body=body), told, FOR_EVER_S)

    def group(self, op: GroupOp, chat: str, actor: str, users: tuple[str, ...] = ()) -> None:
        """A membership change at the owner; refusals and lost owners are fine."""
        rig = self.rigs[self.owner]
        owned = rig.writer.epoch_of("t", chat)
        if owned is None or rig.outbox.dead:
            return

        async def step() -> None:
            try:
                await rig.groups.execute(*owned, GroupCommand(op, "t", actor, chat, users))
            except (QimError, Died):
                return  # a refusal, a lost owner, or the end of the process: all are fine here

        self.run(step())
        self.settle()

    def acknowledge(self, node: str, count: int | None) -> None:
        """The broker acknowledges the oldest calls of a node."""

        async def step() -> None:
            self.rigs[node].outbox.acknowledge(count)

        self.run(step())
        self.settle()

    def heal(self) -> None:
        """No more faults; a fresh writer owns the partition; every client repeats until it knows."""
        failpoints.arm("")
        self.tier.faults.clear()
        for rig in self.rigs.values():
            rig.outbox.hold = Hold.NONE
        for node in NODES:
            if node in self.rigs:
                self.acknowledge(node, None)
        self.expire()
        self.boot(NODES[0])
        rig = self.rigs[NODES[0]]
        self.run(rig.changes.settle_all(0, self.tier.epochs["ob:0"]))
        for sent in self.sent.values():
            self.send(NODES[0], sent.request.conversation_id, sent.request.sender_id, sent.request.body, sent)

    # -- promises

    def check(self) -> None:
        """What must hold at every instant."""
        for append in self.log[self._checked :]:
            self._check_append(append)
        self._checked = len(self.log)
        for key, sent in self.sent.items():
            self._check_answers(key, sent)

    def _check_append(self, append: OutboxAppend) -> None:
        outbox = decode_outbox(append.value)
        if append.key == b"\0barrier":
            self._fence = max(self._fence, outbox.fencing_epoch)
            return
        if outbox.fencing_epoch < self._fence:  # no reader takes it
            self.left_out += 1
            return
        message = decode_message(outbox.message)
        seen = self._first[message.conversation_id]
        if message.conversation_seq <= len(seen):
            assert seen[message.conversation_seq - 1] == message, "one seq, two messages (I3)"
        else:
            assert message.conversation_seq == len(seen) + 1, "a seq overtook another (I5)"
            if seen:
                assert message.message_id > seen[-1].message_id, "ids do not grow with seqs (P5)"
                assert message.fencing_epoch >= seen[-1].fencing_epoch, "an old owner wrote (P14)"
            seen.append(message)
        key = (message.conversation_id, message.sender_id, message.client_message_id)
        known = self._ids.setdefault(key, message.message_id)
        assert known == message.message_id, "one client_message_id, two messages (I3)"
        assert key in self.sent, "nobody sent this (I2)"
        assert message.body in self.sent[key].bodies, "another body than any that was sent"

    def _check_answers(
        self,
        key: tuple[str, str, str],
        sent: Sent,
    ) -> None:
        acks = {outcome for _, outcome in sent.answers if outcome.status is SendStatus.COMMITTED}
        assert len(acks) <= 1, "two different answers (P2)"
        for body, ack in sent.answers:
            if ack.status is not SendStatus.COMMITTED:
                continue
            messages = self._first[key[0]]
            assert ack.conversation_seq <= len(messages), "acknowledged and not in the Outbox (P1)"
            message = messages[ack.conversation_seq - 1]
            assert (message.message_id, message.committed_at) == (ack.message_id, ack.committed_at)
            assert self._ids[key] == ack.message_id
            assert message.body == body, "another payload got the SEND_ACK of the first"
        final = [
            outcome
            for _, outcome in sent.answers
            if outcome.status is SendStatus.REFUSED and outcome.retry_after_ms is None
        ]
        if final and len(final) == sent.attempts:
            assert key not in self._ids, "refused and in the Outbox (P3)"

    def _check_members(self) -> None:
        """No acknowledged change is lost: store and change log say the same."""
        state = self.tier.partition(0)
        assert not self.tier.unsettled.get(0), "the change log lacks something"
        for key, value in self.change_log.latest().items():
            version, row = decode_log_row(key, value)
            tenant, chat, user = key.decode().split("\0")
            head = state.heads[tenant, chat]
            if isinstance(row, Member):
                assert state.members[tenant, chat][user] == row, "a member is not as the change log says"
            else:
                assert head.version == version, "a change is missing"

    def check_healed(self) -> None:
        """What must hold once everything is well again."""
        self.check()
        state = self.tier.partition(0)
        assert not state.pending, "pending messages are left (I4)"
        self._check_members()
        for (_, chat), head in state.heads.items():
            assert len(self._first[chat]) == head.seq, "a number without a message (I4)"
        for sent in self.sent.values():
            _, last = sent.answers[-1]
            settled = last.status is SendStatus.COMMITTED or last.retry_after_ms is None
            assert settled, f"no answer after healing: {last}"
            assert last.status is not SendStatus.UNKNOWN
