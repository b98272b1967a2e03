"""T-R2 for the writer: Redis is killed and loses the end of its append-only file; no number is used twice.

The Outbox is in memory and shared by all boots, so the log keeps everything that was handed over, as Kafka
would; Redis and its loss are real.
"""

import random

import pytest

from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.ports import OutboxAppend
from qim_streams.ids import direct_conversation_id
from qim_streams.records import MessageRecord, decode_message, decode_outbox
from qim_streams.redis_tier import RedisClient
from qim_streams.testing.memory_outbox import without_barriers
from qim_streams.testing.memory_writer import WriterRig
from tests.support.forgetful_redis import ForgetfulRedis
from tests.support.hot_tier import redis_tier
from tests.support.writer_rig import rig_on

pytestmark = pytest.mark.integration

ROUNDS, ROUNDS_LONG = 8, 50
CUT_BYTES_MAX = 60_000


class World:
    """Boots of one writer on one Redis and one log, and what its clients were told."""

    def __init__(self, client: RedisClient) -> None:
        self.client = client
        self.log: list[OutboxAppend] = []
        self.acked: dict[str, tuple[SendRequest, SendOutcome]] = {}
        self.boots = self.numbers = 0

    async def boot(self) -> WriterRig:
        self.boots += 1
        rig = rig_on(redis_tier(self.client), self.log, self.boots)
        await rig.take(0, 1, 2, 3)
        return rig

    async def send(self, rig: WriterRig, count: int) -> None:
        for _ in range(count):
            self.numbers += 1
            pair = ("ann", f"u{self.numbers % 5}")
            request = await rig.direct(*pair, f"m{self.numbers}", b"%d" % self.numbers)
            outcome = await rig.writer.send(request, 10)
            assert outcome.status is SendStatus.COMMITTED, outcome
            self.acked[request.client_message_id] = (request, outcome)

    async def until_it_dies(self, rig: WriterRig) -> None:
        """A writer that lives on must notice, at the latest at its next commit in each partition."""
        for peer in range(20):
            if rig.deaths:
                break
            chat = direct_conversation_id("t", "ann", f"u{peer}")
            (ordinal,) = await rig.directory.assign("t", ["ann"])
            probe = SendRequest(
                "t", chat, "ann", ordinal, "phone", f"probe{self.boots}-{peer}", b"p", f"u{peer}"
            )
            await rig.writer.send(probe, 0.3)
        rig.kill()


def messages(log: list[OutboxAppend]) -> list[MessageRecord]:
    return [decode_message(decode_outbox(one.value).message) for one in without_barriers(log)]


async def lose_and_recover(forgetful: ForgetfulRedis, rounds: int, seed: int) -> None:
    print(f"seed {seed}")
    rng, world = random.Random(seed), World(forgetful.client)
    rig = await world.boot()
    await world.send(rig, 30)
    for _ in range(rounds):
        await world.send(rig, 30)
        await forgetful.forget(rng.randrange(CUT_BYTES_MAX))
        await world.until_it_dies(rig)
        rig = await world.boot()
        for request, outcome in list(world.acked.values())[-60:]:
            assert await rig.writer.send(request, 10) == outcome, "the same answer as before the loss"
    await world.send(rig, 20)
    first: dict[tuple[str, int], MessageRecord] = {}
    for message in messages(world.log):
        known = first.setdefault((message.conversation_id, message.conversation_seq), message)
        assert known.message_id == message.message_id, "a number was used twice"
    by_client_id = {message.client_message_id: message for message in first.values()}
    for client_message_id, (_, outcome) in world.acked.items():
        assert by_client_id[client_message_id].message_id == outcome.message_id


async def test_no_number_is_used_twice_after_a_loss(forgetful: ForgetfulRedis) -> None:
    await lose_and_recover(forgetful, ROUNDS, 20_260_104)


@pytest.mark.slow
async def test_no_number_is_used_twice_after_fifty_losses(forgetful: ForgetfulRedis) -> None:
    await lose_and_recover(forgetful, ROUNDS_LONG, 20_260_105)
