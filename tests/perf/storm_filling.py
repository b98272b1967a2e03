"""What came while the clients of a storm were away: groups of them in which somebody else spoke.

Every client is in `rounds` groups; a group gets `messages_each` messages, sent through the gateway and
acknowledged. Over when they are in all mailboxes: after the last one, each Outbox partition gets a marker
that goes to a listener in every MailboxShard, and a shard pushes an entry after it has written everything
that came before it. So a listener that has the markers of all partitions vouches for its shard.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from qim_streams.client.discovery import StackAddress
from qim_streams.loadgen.device import Device
from qim_streams.loadgen.groups import make_group
from qim_streams.loadgen.plan import Conversation, Plan, user_id
from qim_streams.placement import mailbox_shard, outbox_partition
from tests.perf.processes import MeasurementError
from tests.perf.talking import Talk

CLIENTS_FROM = 1_000_000  # numbers of clients; those of speakers are below
GROUPS_AT_ONCE = 4  # made by a speaker


@dataclass(slots=True)
class Group:
    """A group of clients, and what was said in it: conversation_seq -> what the body carries.

    `places` (conversation_seq -> which message of the group it is, from 0) is there once all is said.
    """

    number: int
    round: int
    conversation_id: str
    members: Sequence[int]
    said: dict[int, int] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)

    def settle(self, said: dict[int, int]) -> None:
        """All is said: number the messages in their order."""
        self.said = said
        self.places = {seq: at for at, seq in enumerate(sorted(said))}


@dataclass(frozen=True, slots=True)
class Shape:
    """How many clients there are, in how many groups each, how large, and what is said there."""

    clients: int
    rounds: int
    group: int
    messages_each: int
    body: int
    seed: int

    @property
    def entries(self) -> int:
        """How many each client missed."""
        return self.rounds * self.messages_each


def groups_of(shape: Shape, tag: str) -> list[Group]:
    """Every round is another shuffle of the clients, cut into groups."""
    made: list[Group] = []
    for number in range(shape.rounds):
        order = list(range(CLIENTS_FROM, CLIENTS_FROM + shape.clients))
        Random(f"storm-{shape.seed}-{number}").shuffle(order)
        for start in range(0, shape.clients, shape.group):
            members = order[start : start + shape.group]
            made.append(Group(len(made), number, f"g{tag}-{len(made)}", members))
    return made


def speakers_of(plan_id: Callable[[int], str], tenant: str, shards: int) -> list[int]:
    """Numbers of users of whom every MailboxShard has one; at least two."""
    found: dict[int, int] = {}
    for number in range(CLIENTS_FROM):
        found.setdefault(mailbox_shard(tenant, plan_id(number), shards), number)
        if len(found) == shards:
            break
    numbers = sorted(found.values())
    return numbers if len(numbers) > 1 else [*numbers, numbers[-1] + 1]


def markers_of(tag: str, tenant: str, partitions: int) -> list[str]:
    """Names of conversations, one in each Outbox partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < partitions:
        name = f"m{tag}-{number}"
        found.setdefault(outbox_partition(tenant, name, partitions), name)
        number += 1
    return [found[partition] for partition in range(partitions)]


class Filler(Talk):
    """Makes the groups and speaks in them."""

    def __init__(
        self, address: StackAddress, shape: Shape, tag: str, run: int, partitions: int, shards: int
    ) -> None:
        super().__init__(address, tag, run, shape.body)
        self._shape, tenant = shape, address.require_tenant()
        self.groups = groups_of(shape, tag)
        self._markers = markers_of(tag, tenant, partitions)
        self._speakers = speakers_of(lambda number: user_id(tag, number), tenant, shards)
        conversations = [
            Conversation(group.conversation_id, (self._speaker(group.number), *group.members), False)
            for group in self.groups
        ]
        conversations += [Conversation(name, self._speakers, False) for name in self._markers]
        self.plan = Plan(tag, tenant, 0, 0, 1, conversations, ())
        self._heard: set[tuple[int, str]] = set()

    def _speaker(self, number: int) -> int:
        return self._speakers[number % len(self._speakers)]

    def event(self, device: Device, event: dict[str, Any], now_ns: int, fresh: bool, live: bool) -> None:
        """See `Owner`: of interest are the markers of others."""
        body = event["message"]
        if body["sender_id"] != device.user_id and body["conversation_id"] in self._markers:
            self._heard.add((device.user, body["conversation_id"]))
            self.progress += 1

    async def connect(self) -> None:
        """Sign the speakers on."""
        for number in self._speakers:
            await self.sign_on(number)

    async def make_groups(self) -> None:
        """Make all groups, each by its speaker."""
        gates = {number: asyncio.Semaphore(GROUPS_AT_ONCE) for number in self._speakers}

        async def one(number: int) -> None:
            owner = self.plan.conversations[number].members[0]
            async with gates[owner]:
                await make_group(self.device(owner), self.plan, number, lambda _: None)

        await asyncio.gather(*(one(number) for number in range(len(self.plan.conversations))))

    async def speak(self) -> None:
        """Send everything; returns once it is acknowledged and in every mailbox."""
        await asyncio.gather(*(self._speak(number) for number in self._speakers))
        await self.all_acked()
        for sender in self._speakers[:2]:
            for name in self._markers:
                await self.say(sender, name)
        wanted = len(self._markers) * len(self._speakers)
        await self.until(lambda: len(self._heard) == wanted, "markers in every MailboxShard")
        for group in self.groups:
            group.settle(self.said[group.conversation_id])
            if len(group.places) != self._shape.messages_each:
                raise MeasurementError(f"{group.conversation_id}: {len(group.places)} messages")

    async def _speak(self, speaker: int) -> None:
        mine = [group for group in self.groups if self._speaker(group.number) == speaker]
        for _ in range(self._shape.messages_each):
            for group in mine:
                await self.say(speaker, group.conversation_id)
