"""A writer over logs that keep everything, on a Redis that does not: what it lived through, and did.

The logs are in memory and shared by all boots of the writer, as a broker is; Redis and its loss are real.
"""

import random
from dataclasses import dataclass, field

from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.ports import OutboxAppend
from qim_streams.errors import AdmissionRefused
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.records import MessageRecord, decode_message, decode_outbox
from qim_streams.redis_tier import RedisClient
from qim_streams.testing.memory_outbox import MemoryMembershipLog, without_barriers
from qim_streams.testing.memory_writer import WriterRig
from tests.support.hot_tier import PARTITIONS, TENANT, redis_tier
from tests.support.writer_rig import rig_on

GROUPS = ("g1", "g2", "g3")
USERS = tuple(f"u{n}" for n in range(12))


@dataclass
class World:
    """Boots of one writer over logs that nothing is lost of."""

    client: RedisClient
    log: list[OutboxAppend] = field(default_factory=list)
    changes: MemoryMembershipLog = field(default_factory=MemoryMembershipLog)
    acked: dict[str, tuple[SendRequest, SendOutcome]] = field(default_factory=dict)
    boots: int = 0
    sent: int = 0

    async def boot(self, serve: bool = True) -> WriterRig:
        """A new process; its predecessor is dead."""
        self.boots += 1
        rig = rig_on(redis_tier(self.client), self.log, self.boots, self.changes)
        if serve:
            await rig.take(*range(PARTITIONS))
        return rig

    async def command(self, rig: WriterRig, command: GroupCommand) -> None:
        owned = rig.writer.epoch_of(TENANT, command.conversation_id)
        assert owned is not None
        try:
            await rig.groups.execute(*owned, command)
        except AdmissionRefused:
            return  # at random: already in, the last owner, and so on

    async def live(self, rig: WriterRig, rng: random.Random, steps: int) -> None:
        """Groups come to be, members come and go, and everybody talks."""
        for group in GROUPS:
            await self.command(rig, GroupCommand(GroupOp.CREATE, TENANT, "u0", group, USERS[1:5]))
        for _ in range(steps):
            group, user = rng.choice(GROUPS), rng.choice(USERS)
            if rng.random() < 0.3:
                op = rng.choice((GroupOp.ADD, GroupOp.REMOVE))
                await self.command(rig, GroupCommand(op, TENANT, None, group, (user,)))
            else:
                await self.say(rig, rng, group, user)

    async def say(self, rig: WriterRig, rng: random.Random, group: str, user: str) -> None:
        self.sent += 1
        key, body = f"m{self.sent}", b"%d" % self.sent
        if rng.random() < 0.4:
            request = await rig.direct(user, rng.choice(USERS), key, body)
        else:
            request = await rig.request(group, user, key, body)
        outcome = await rig.writer.send(request, 10)
        if outcome.status is SendStatus.COMMITTED:
            self.acked[key] = (request, outcome)

    def messages(self) -> list[MessageRecord]:
        return [decode_message(decode_outbox(one.value).message) for one in without_barriers(self.log)]


async def everything(world: World, rig: WriterRig) -> dict[str, object]:
    """What readers see, by conversation; what depends on the run of the server is left out."""
    found: dict[str, object] = {}
    for chat in sorted({one.conversation_id for one in world.messages()} | set(GROUPS)):
        head = await rig.membership.conversation(TENANT, chat)
        assert head is not None
        everyone = await rig.membership.everyone(TENANT, chat)
        (version,) = await rig.reader.versions([(TENANT, chat, head.version)])
        assert version is not None
        bitmaps = await rig.reader.bitmaps([(TENANT, chat, *pair) for pair in sorted(version.items())])
        records = await rig.conversations.records([(TENANT, chat, seq) for seq in range(1, head.seq + 1)])
        page = await rig.membership.page(TENANT, chat, "", 100)
        found[chat] = (
            head,
            sorted(everyone, key=lambda m: m.user_id),
            sorted(version),
            bitmaps,
            records,
            page,
        )
    found["ordinals"] = await rig.directory.find(TENANT, USERS)
    return found
