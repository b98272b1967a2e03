"""Who talks to whom: users, conversations, and the lanes that messages are sent on.

Users are numbers, 0 <= user < `users`; those below `connections` are online, user u in process
u % processes. Conversations are numbers, too. Everything follows from the options and the seed, so every
process makes the same plan by itself.

A direct plan gives each user some contacts and one direct chat with each; `group:N` draws the members of
each group from all users; `large` is one group of all users; `mixed` and `trace` are in ``mix``.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from qim_streams.demo.traces import Trace
from qim_streams.ids import direct_conversation_id
from qim_streams.loadgen.mix import MIX, EvenSize, SizeDraw, trace_rows
from qim_streams.loadgen.options import BenchOptions


class Conversation(NamedTuple):
    """A direct chat (`direct`) or a group, and its members."""

    conversation_id: str
    members: Sequence[int]
    direct: bool


class Share(NamedTuple):
    """A kind of traffic: which conversations, with which weight, and how long its bodies are."""

    weight: float
    conversations: Sequence[int]
    size: SizeDraw


class TimedSend(NamedTuple):
    """A message of a trace: when (ns from the start), who, how long. Its conversation is number 0."""

    at_ns: int
    user: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module. `timed` is None unless a trace is played."""

    tag: str
    tenant: str
    users: int
    connections: int
    processes: int
    conversations: Sequence[Conversation]
    shares: Sequence[Share]
    timed: Sequence[TimedSend] | None = None

    def user_id(self, user: int) -> str:
        """The id of a user of this plan."""
        return user_id(self.tag, user)

    def online_of(self, conversation: int) -> list[int]:
        """The members of a conversation that are online."""
        members = self.conversations[conversation].members
        if isinstance(members, range):
            return list(range(members.start, min(members.stop, self.connections)))
        return [user for user in members if user < self.connections]


def user_id(tag: str, user: int) -> str:
    """The id of user number `user` of the plan `tag`."""
    return f"b{tag}-{user}"


def make_plan(options: BenchOptions, tag: str, tenant: str, trace: Trace | None = None) -> Plan:
    """The plan of a run."""
    rng = Random(f"plan-{options.seed}")
    size = EvenSize(options.body)
    conversations: list[Conversation] = []
    shares: list[Share] = []
    timed = None
    if options.workload == "direct":
        shares.append(Share(1.0, _directs(conversations, options, tag, tenant, rng), size))
    elif options.workload == "group":
        members = options.group_size
        shares.append(Share(1.0, _groups(conversations, options, tag, members, options.groups, rng), size))
    elif options.workload == "large":
        conversations.append(Conversation(f"g{tag}-0", range(options.users), False))
        shares.append(Share(1.0, (0,), size))
    elif options.workload == "trace":
        assert trace is not None
        conversations.append(Conversation(f"g{tag}-0", range(options.users), False))
        timed = [TimedSend(*row) for row in trace_rows(trace, options.speed)]
    else:
        for part in MIX:
            if part.members == 2:
                chosen = _directs(conversations, options, tag, tenant, rng)
            else:
                count = max(1, options.connections * part.groups_per_user // part.members)
                chosen = _groups(conversations, options, tag, min(part.members, options.users), count, rng)
            shares.append(Share(part.weight, chosen, part.size))
    return Plan(
        tag, tenant, options.users, options.connections, options.processes, conversations, shares, timed
    )


def _directs(
    conversations: list[Conversation], options: BenchOptions, tag: str, tenant: str, rng: Random
) -> range:
    """Every online user gets about `contacts` partners among all users."""
    first = len(conversations)
    pairs: set[tuple[int, int]] = set()
    wanted = max(1, options.contacts // 2)
    for user in range(options.connections):
        for _ in range(wanted):
            other = rng.randrange(options.users - 1)
            other += other >= user
            pairs.add((min(user, other), max(user, other)))
    for one, two in sorted(pairs):
        name = direct_conversation_id(tenant, user_id(tag, one), user_id(tag, two))
        conversations.append(Conversation(name, (one, two), True))
    return range(first, len(conversations))


def _groups(
    conversations: list[Conversation], options: BenchOptions, tag: str, members: int, count: int, rng: Random
) -> range:
    """`count` groups of `members`, each with at least one member who is online and can speak."""
    first = len(conversations)
    for _ in range(count):
        speaker = rng.randrange(options.connections)
        chosen = set(rng.sample(range(options.users), members)) if members <= options.users else set()
        if not any(user < options.connections for user in chosen):
            chosen.discard(max(chosen))
            chosen.add(speaker)
        conversations.append(Conversation(f"g{tag}-{len(conversations)}", tuple(sorted(chosen)), False))
    return range(first, len(conversations))
