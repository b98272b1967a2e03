"""Commit: what the writer makes of a send before the script is called. Spec: §3."""

import asyncio
import atexit
import itertools

from qim_streams.commit.admission import Admission, AdmissionLimits
from qim_streams.commit.lane_services import SendJob
from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.rules import payload_digest
from qim_streams.placement import mailbox_shard, outbox_partition
from qim_streams.quotas.buckets import TenantQuotas
from qim_streams.records import decode_message, message_head
from qim_streams.testing.memory_tier import MemoryHotTier
from qim_streams.testing.memory_writer import WriterRig
from tests.perf.registry import Case, always, benchmark
from tests.perf.samples import (
    BODY,
    CHAT,
    DEVICE,
    MESSAGE,
    PARTITION,
    PARTITIONS,
    PEER,
    SENDER,
    SENDER_ORDINAL,
    SHARDS,
    TENANT,
)

GROUP, CHATS = 64, 200
REQUEST = SendRequest(TENANT, CHAT, SENDER, SENDER_ORDINAL, DEVICE, "m-000000000017", BODY, PEER)


@benchmark("commit.payload_digest")
def digest() -> Case[bytes]:
    """What tells a repeat from a conflict, over a body of 200 bytes; the same in every version."""
    return Case(lambda: payload_digest(0, BODY), always(bytes.fromhex("531c67b314482cb517cf98dea2fbacfc")))


@benchmark("commit.message_tail")
def tail() -> Case[bytes]:
    """The bytes of a message that the script puts a head in front of."""
    head = message_head(MESSAGE.conversation_seq, MESSAGE.membership_version)
    return Case(MESSAGE.tail, lambda data: decode_message(head + data) == MESSAGE)


@benchmark("commit.admission")
def admission() -> Case[bool]:
    """What a send is asked before it waits; each has an id of its own."""
    rules, numbers = Admission(AdmissionLimits(65_536, 500, 0)), itertools.count()
    return Case(
        lambda: rules.check(REQUEST._replace(client_message_id=f"m-{next(numbers)}")) is None, always(True)
    )


@benchmark("commit.rates_64")
def rates() -> Case[bool]:
    """All rates and quotas of a group of sends to direct chats, asked and learned."""
    limits = AdmissionLimits(65_536, 500, 3_000, 1_000_000, 2_000)
    rules, numbers = Admission(limits, TenantQuotas(1e9, 2.0)), itertools.count(1_000_000)
    sends = [REQUEST._replace(conversation_id=f"{CHAT}{n % CHATS}") for n in range(GROUP)]

    def decide() -> bool:
        now_ms = next(numbers)
        tickets = rules.tickets(sends, now_ms)
        for send, ticket in zip(sends, tickets, strict=True):
            rules.learn(send, ticket, 2, now_ms)
        return tickets == [2] * GROUP

    return Case(decide, always(True))


@benchmark("commit.lane_64")
def lane() -> Case[int]:
    """A group of sends to direct chats through a lane on a store in memory, until all are answered."""
    loop = asyncio.new_event_loop()
    rig = WriterRig(MemoryHotTier(lambda *_: 0), [])
    loop.run_until_complete(rig.take(0))
    requests = [loop.run_until_complete(rig.direct(f"a{n}", f"b{n}", "x", BODY)) for n in range(CHATS)]
    numbers = itertools.count()

    async def call() -> int:
        outcomes, done = list[SendOutcome](), asyncio.Event()

        def reply(outcome: SendOutcome) -> None:
            outcomes.append(outcome)
            if len(outcomes) == GROUP:
                done.set()

        jobs = [
            SendJob(requests[n % CHATS]._replace(client_message_id=f"m-{n}"), reply, 1e18)
            for n in itertools.islice(numbers, GROUP)
        ]
        rig.writer.submit(jobs)
        await done.wait()
        return sum(one.status is SendStatus.COMMITTED for one in outcomes)

    async def close() -> None:
        await rig.writer.close(1.0)

    atexit.register(lambda: loop.run_until_complete(close()))
    return Case(lambda: loop.run_until_complete(call()), always(GROUP))


@benchmark("placement.outbox_partition")
def partition() -> Case[int]:
    """Where a conversation lives; asked for each send."""
    return Case(lambda: outbox_partition(TENANT, CHAT, PARTITIONS), always(PARTITION))


@benchmark("placement.mailbox_shard")
def shard() -> Case[int]:
    """Where a user lives; the same in every version."""
    return Case(lambda: int(mailbox_shard(TENANT, PEER, SHARDS)), always(11))
