"""T-M2: writers, clients and an unreliable hot tier as a state machine, and proof that it finds known bugs.

Steps: send, repeat, repeat with another body, bursts, acknowledgements held back, lost requests and answers
of the store, a power loss of the store, a crash at every failpoint, a takeover behind the back of a paused
owner, clocks set back (T-Z2), joins, leaves. Checked after each step: P1 to P5, P14, I1 to I5; once healed:
nothing pending, no number without a message, everybody has an answer (C1, C5, T-K1).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from qim_streams import failpoints
from qim_streams.commit import lane, rules
from qim_streams.commit.lane import PartitionLane
from qim_streams.commit.outbox_tail import OutboxTail
from qim_streams.commit.outcome import UNKNOWN, SendStatus, committed
from qim_streams.commit.owned_outbox import OwnedOutbox
from qim_streams.commit.ports import CommitStatus
from qim_streams.commit.relay import OutboxRelay
from qim_streams.commit.repair import OutboxRepair, Repaired
from qim_streams.commit.rules import PartitionState
from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.membership.commands import GroupOp
from qim_streams.membership.replay import MembershipReplay
from qim_streams.testing.memory_outbox import Hold
from qim_streams.testing.memory_tier import Fault, MemoryConversationStore
from tests.support.writer_world import CHATS, NODES, USERS, WriterWorld

POINTS = (
    "writer.admitted",
    "writer.committed_in_redis",
    "writer.produce_sent",
    "writer.produce_acked",
    "writer.ack_sent",
    "relay.pending_read",
    "relay.pending_appended",
)
alive = precondition(lambda self: not self.world.rigs[self.world.owner].outbox.dead)
nodes, chats, users = st.sampled_from(NODES), st.sampled_from(CHATS), st.sampled_from((*USERS, "ann"))
right = st.booleans() | st.just(True)
again = st.sampled_from(("wait", "repeat", "next"))
skews = st.sampled_from((-3_600_000, -5_000, 0, 0, 5_000, 3_600_000))
faults = st.sampled_from((Fault.LOST_ANSWER, Fault.NONE, Fault.LOST_REQUEST, Fault.REFUSED))
EXAMPLES, EXAMPLES_LONG, STEPS = 250, 6_000, 20
MUTANT_EXAMPLES = 1_500


class WriterMachine(RuleBasedStateMachine):
    """Rules pick what happens; `WriterWorld` lets it happen."""

    def __init__(self) -> None:
        super().__init__()
        self.world = WriterWorld()

    def node(self, right: bool) -> str:
        """The owner, or the other one: a gateway may be out of date."""
        other = NODES[0] if self.world.owner == NODES[1] else NODES[1]
        return self.world.owner if right or other not in self.world.rigs else other

    @alive
    @rule(right=right, chat=chats, user=users, count=st.integers(1, 3), again=again, fault=faults)
    def send(self, right: bool, chat: str, user: str, count: int, again: str, fault: Fault) -> None:
        """`fault` meets the commit; then the client repeats, or sends the next, or waits."""
        node = self.node(right)
        self.world.tier.faults.appendleft(fault)
        attempts = self.world.new(node, chat, user, count)
        self.world.submit(node, attempts)
        if again == "repeat":
            self.world.submit(node, attempts)
        elif again == "next":
            self.world.submit(node, self.world.new(node, chat, user, 1))

    @alive
    @precondition(lambda self: self.world.sent)
    @rule(right=right, pick=st.integers(0, 3) | st.integers(0, 100), same=st.booleans() | st.just(True))
    def repeat(self, right: bool, pick: int, same: bool) -> None:
        sent = list(self.world.sent.values())
        one = sent[-1 - pick % len(sent)]
        body = one.request.body if same else b"another"
        self.world.send(self.node(right), one.request.conversation_id, one.request.sender_id, body, one)

    @alive
    @rule(fault=faults)
    def store_fault(self, fault: Fault) -> None:
        """Meets whatever is written next: a commit, a confirmation, a change of members."""
        self.world.tier.faults.append(fault)

    @alive
    @rule(hold=st.sampled_from((Hold.BUFFERED, Hold.ARRIVED, Hold.BUFFERED, Hold.NONE)))
    def hold_back(self, hold: Hold) -> None:
        self.world.rigs[self.world.owner].outbox.hold = hold

    @alive
    @rule(right=right, count=st.integers(1, 3))
    def acknowledge(self, right: bool, count: int) -> None:
        self.world.acknowledge(self.node(right), count)

    @alive
    @rule(right=right, count=st.integers(1, 2))
    def arrive(self, right: bool, count: int) -> None:
        """Some of what the producer has buffered reaches the broker."""
        self.world.rigs[self.node(right)].outbox.arrive(count)

    @rule(point=st.sampled_from(POINTS), nth=st.integers(1, 2))
    def arm_crash(self, point: str, nth: int) -> None:
        failpoints.arm(f"{point}:{nth}:raise")

    @alive
    @rule()
    def crash_now(self) -> None:
        self.world.rigs[self.world.owner].kill()
        self.world.settle()

    @rule(waiting=st.sampled_from((1, 0, 2)), chat=chats, fault=faults)
    def restart_owner(self, waiting: int, chat: str, fault: Fault) -> None:
        self.world.tier.faults.appendleft(fault)
        self.world.boot(self.world.owner, self.world.new(self.world.owner, chat, "ann", waiting))

    @rule(skew_ms=skews, zombie=st.booleans(), chat=chats)
    def takeover(self, skew_ms: int, zombie: bool, chat: str) -> None:
        """The owner sleeps past its lease, the other node takes over and serves, the owner wakes up."""
        before = self.world.owner
        other = NODES[1] if before == NODES[0] else NODES[0]
        self.world.skew_ms[other] = skew_ms
        self.world.expire()
        if other in self.world.rigs and not self.world.rigs[other].outbox.dead:
            self.world.ask(other)
        else:
            self.world.boot(other)
        self.world.send(other, chat, "ann")
        if zombie:
            self.world.send(before, chat, "bob")

    @rule()
    def write_to_disk(self) -> None:
        self.world.remember()

    @rule(go_on=st.booleans(), chat=chats)
    def lose_power(self, go_on: bool, chat: str) -> None:
        """The hot tier forgets its last writes; the owner may try to go on."""
        self.world.lose_power()
        if go_on:
            self.world.send(self.world.owner, chat, "ann")

    @rule(node=nodes, skew_ms=skews)
    def set_clock(self, node: str, skew_ms: int) -> None:
        self.world.skew_ms[node] = skew_ms

    @alive
    @rule(chat=chats, op=st.sampled_from((GroupOp.ADD, GroupOp.REMOVE)), user=st.sampled_from(("bob", "cat")))
    def change_members(self, chat: str, op: GroupOp, user: str) -> None:
        self.world.group(op, chat, "ann", (user,))

    @invariant()
    def promises_hold(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        try:
            self.world.heal()
            self.world.check_healed()
        finally:
            self.world.close()


def run(examples: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        WriterMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            database=None,
            report_multiple_bugs=False,
        ),
    )


def test_promises_hold_whatever_happens() -> None:
    run(EXAMPLES)


@pytest.mark.slow
def test_promises_hold_whatever_happens_long() -> None:
    run(EXAMPLES_LONG)


# -- the same machine must find these bugs


def ack_before_append() -> Any:
    original = OutboxTail.append

    async def append(self: OutboxTail, new: list[Any], made: Any) -> None:
        for one in new:
            for job in self._in_flight[one.result.message_id]:
                job.answer(committed(one.result))
            self._in_flight[one.result.message_id] = []
        await original(self, new, made)

    return patch.object(OutboxTail, "append", append)


def no_relay() -> Any:
    async def drain(*_: Any) -> int:
        return 0

    return patch.object(OutboxRelay, "drain", drain)


def relay_backwards() -> Any:
    original = MemoryConversationStore.pending

    async def pending(self: MemoryConversationStore, *args: Any) -> Any:
        return (await original(self, *args))[::-1]

    return patch.object(MemoryConversationStore, "pending", pending)


def reserved_is_as_good_as_committed() -> Any:
    def join(_: OutboxTail, job: Any, result: Any) -> bool:
        job.answer(committed(result))
        return True

    return patch.object(OutboxTail, "join", join)


def no_fencing() -> Any:
    """Calls are numbered per epoch, which would notice it too: both defences are taken away."""
    return _both(
        patch.object(PartitionState, "fence", lambda *_: None),
        patch.object(PartitionState, "number", lambda *_: None),
    )


def confirmed_before_acknowledged() -> Any:
    original = OutboxTail.expect

    def expect(self: OutboxTail, message_id: bytes, job: Any) -> None:
        original(self, message_id, job)
        self._acked[message_id] = None

    return patch.object(OutboxTail, "expect", expect)


def unknown_outcome_is_dropped() -> Any:
    original = PartitionLane._settled

    async def settled(self: PartitionLane, jobs: list[Any], requests: list[Any]) -> Any:
        try:
            return await self._s.store.commit(self.partition, self.epoch, requests)
        except StoreUnavailable as error:
            if error.outcome is Outcome.NOT_APPLIED:
                return await original(self, jobs, requests)
            for job in jobs:
                job.answer(UNKNOWN)
            return None

    return patch.object(PartitionLane, "_settled", settled)


def new_ids_for_a_repeated_call() -> Any:
    """What was applied at first is taken for somebody else's and never appended."""

    def join(self: OutboxTail, job: Any, result: Any) -> bool:
        if result.message_id not in self._in_flight:
            job.answer(committed(result))
        else:
            self._in_flight[result.message_id].append(job)
        return True

    original = PartitionLane._commit_once

    async def commit_once(self: PartitionLane, jobs: list[Any]) -> Any:
        with patch.object(lane, "CommitRequest", lambda *args: rules.CommitRequest(*args)):
            settled = self._settled

            async def forgetful(jobs: list[Any], requests: list[Any]) -> Any:
                results = await settled(jobs, requests)
                for index, result in enumerate(results or ()):
                    if result.status is CommitStatus.REPEAT_RESERVED:
                        requests[index] = requests[index]._replace(message_id=bytes(16))
                return results

            with patch.object(self, "_settled", forgetful, create=True):
                return await original(self, jobs)

    both = patch.object(PartitionLane, "_commit_once", commit_once)
    return _both(both, patch.object(OutboxTail, "join", join))


def ids_are_not_compared() -> Any:
    original = rules.decide_new

    def decide_new(request: Any, head: Any, sender: Any, behind: bool) -> CommitStatus:
        status = original(request, head, sender, behind)
        return CommitStatus.NEW if status is CommitStatus.CLOCK_BEHIND else status

    return patch.object(rules, "decide_new", decide_new)


def payload_is_not_compared() -> Any:
    def decide_repeat(kept: Any, digest: bytes, is_pending: bool) -> CommitStatus:
        return CommitStatus.REPEAT_RESERVED if is_pending else CommitStatus.REPEAT_COMMITTED

    return patch.object(rules, "decide_repeat", decide_repeat)


def dedup_is_forgotten_when_confirmed() -> Any:
    original = rules.confirm

    def confirm(state: PartitionState, confirmed: Any) -> None:
        for key, kept in list(state.reservations.items()):
            if kept.message_id in confirmed.message_ids:
                del state.reservations[key]
        original(state, confirmed)

    return _both(
        patch.object(rules, "confirm", confirm), patch("qim_streams.testing.memory_tier.confirm", confirm)
    )


def serves_before_the_relay() -> Any:
    original = PartitionLane._recover

    async def recover(self: PartitionLane) -> None:
        while self._queue:
            await self._commit_group(self._take())
        self.ready.set()
        await original(self)

    return patch.object(PartitionLane, "_recover", recover)


def no_repair() -> Any:
    async def run(*_: Any) -> Repaired:
        return Repaired()

    return patch.object(OutboxRepair, "run", run)


def no_replay() -> Any:
    async def run(*_: Any) -> int:
        return 0

    return patch.object(MembershipReplay, "run", run)


def lost_writes_go_unnoticed() -> Any:
    return patch.object(PartitionState, "number", lambda *_: None)


def no_barrier() -> Any:
    """A paused owner's records count whenever they come, and nobody tells it that they should not."""
    original = OwnedOutbox.begin

    async def begin(self: OwnedOutbox, partition: int, epoch: int) -> int:
        log: list[Any] = self._outbox.log  # type: ignore[attr-defined]
        count = len(log)
        offset = await original(self, partition, epoch)
        del log[count:]
        self._stands[partition].next = count
        return offset

    return patch.object(OwnedOutbox, "begin", begin)


def answers_behind_a_barrier() -> Any:
    """The log leaves out what a fenced owner appends, and its sender is told that it is there."""

    async def newest(*_: Any) -> int:
        return 0

    return patch.object(OwnedOutbox, "_newest", newest)


@contextmanager
def _both(one: Any, two: Any) -> Iterator[None]:
    with one, two:
        yield


MUTANTS = (
    ack_before_append,
    no_relay,
    relay_backwards,
    reserved_is_as_good_as_committed,
    no_fencing,
    confirmed_before_acknowledged,
    unknown_outcome_is_dropped,
    new_ids_for_a_repeated_call,
    ids_are_not_compared,
    payload_is_not_compared,
    dedup_is_forgotten_when_confirmed,
    serves_before_the_relay,
    no_repair,
    no_replay,
    lost_writes_go_unnoticed,
    no_barrier,
)


def three_faults_at_once() -> WriterWorld:
    """T-Z1: an owner is paused with a message in its producer, the hot tier loses that very commit, and
    another owner numbers on; then the first one wakes up, and the broker acknowledges what it had."""
    world = WriterWorld()
    paused = world.rigs[world.owner]
    world.send(world.owner, CHATS[0], "ann")
    world.remember()
    paused.outbox.hold = Hold.BUFFERED
    lost = world.send(world.owner, CHATS[0], "bob")
    world.lose_power()
    world.expire()
    world.boot(NODES[1])
    world.send(NODES[1], CHATS[0], "ann")
    world.check()
    paused.outbox.hold = Hold.NONE
    world.acknowledge(NODES[0], None)
    world.check()
    assert [outcome.status for _, outcome in lost.answers] == [SendStatus.UNKNOWN]
    return world


def test_a_paused_owner_and_a_store_that_forgot_what_it_had_numbered() -> None:
    """I3, I14, P1: its record is left out, its sender is told so, and the repeat gets a number of its own."""
    world = three_faults_at_once()
    try:
        assert world.left_out == 1
        world.heal()
        world.check_healed()
    finally:
        world.close()


@pytest.mark.parametrize("mutant", [no_barrier, answers_behind_a_barrier], ids=lambda one: one.__name__)
def test_the_three_faults_show_a_fence_that_is_none(mutant: Callable[[], Any]) -> None:
    with mutant(), pytest.raises(AssertionError):
        three_faults_at_once()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_machine_finds_known_bugs(mutant: Callable[[], Any]) -> None:
    with mutant(), pytest.raises(AssertionError) as caught:
        run(MUTANT_EXAMPLES)
    print(f"{mutant.__name__}: {caught.value!r:.200}")
