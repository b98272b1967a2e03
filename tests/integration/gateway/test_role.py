"""The gateway process on a real broker and a real Redis: what it writes, reads, leases and leaves behind."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition
from prometheus_client import CollectorRegistry

from qim_streams.embedded.kafka import EmbeddedKafka
from qim_streams.embedded.ports import free_ports
from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.errors import ConfigError
from qim_streams.gateway.kafka_push import PushReader
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.gateway.redis_signals import RedisSignals
from qim_streams.ids import event_id
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.ownership.ports import Grant
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.placement import mailbox_shard, outbox_partition
from qim_streams.records import (
    MessageRecord,
    Presence,
    PresenceReady,
    PushBatch,
    PushItem,
    Recipient,
    UserMailboxEntry,
    decode_presence,
)
from qim_streams.redis_tier import connect
from qim_streams.roles.gateway import run_gateway
from qim_streams.settings import Settings, load_settings
from qim_streams.streaming import topics
from qim_streams.wire.events import common_body
from qim_streams.wire.frames import Auth, Error, Goodbye, Ping, Pong, PushEvents, SendMessage
from tests.support.alone import prove_everything
from tests.support.gateway_world import CURSOR_SECRET, JWT_SECRET, WireClient, token
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@dataclass
class Servers:
    """Where the embedded servers are, and what stays the same between gateways of a test."""

    brokers: str
    redis_url: str
    state_dir: Path
    kafka: EmbeddedKafka
    rng: random.Random = field(default_factory=random.Random)

    def settings(self, **overrides: Any) -> Settings:
        values: dict[str, Any] = {
            "brokers": self.brokers,
            "redis_url": self.redis_url,
            "state_dir": self.state_dir,
            "jwt_secret": JWT_SECRET,
            "cursor_secret": CURSOR_SECRET,
            "internal_secret": "i" * 40,
            "gateway_port": free_ports(1)[0],
            "send_deadline_ms": 500,
            "node_id": f"n{self.rng.randrange(10**9)}",
        }
        return load_settings(**(values | overrides))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    redis = EmbeddedRedis(tmp_path_factory.mktemp("redis"), progress=lambda _: None)
    redis.start()
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), quick=True) as kafka:
        made = Servers(kafka.bootstrap, redis.url, tmp_path_factory.mktemp("state"), kafka)
        topics.apply(topics.admin_client(made.brokers), topics.load().resolve_for(made.settings()))
        prove_everything(made.settings())
        yield made
    redis.stop()


@asynccontextmanager
async def gateway(settings: Settings, stop: asyncio.Event | None = None) -> AsyncIterator[str]:
    """A running gateway, stopped by `stop` or at the end; gives the URL for clients."""
    stop = stop or asyncio.Event()
    task = asyncio.create_task(run_gateway(settings, stop, CollectorRegistry()))
    base = f"http://127.0.0.1:{settings.gateway_port}"

    async def ready() -> bool:
        if task.done():
            task.result()
        async with aiohttp.ClientSession() as http:
            try:
                async with http.get(f"{base}/readyz") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

    try:
        await eventually(ready, 30)
        yield base.replace("http", "ws") + "/ws"
    finally:
        stop.set()
        await asyncio.wait_for(task, 30)


async def read_presence(settings: Settings, user: str, count: int) -> list[Presence | None]:
    """The first `count` presence records of a user."""
    partition = mailbox_shard("acme", user, settings.mailbox_shards)
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.brokers, auto_offset_reset="earliest")
    await consumer.start()
    found: list[Presence | None] = []
    try:
        consumer.assign([TopicPartition("qim.presence.v1", partition)])
        deadline = time.monotonic() + 20
        while len(found) < count and time.monotonic() < deadline:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [
                    None if one.value is None else decode_presence(one.value)
                    for one in records
                    if one.key == f"acme\0{user}\0phone".encode()
                ]
    finally:
        await consumer.stop()
    return found


@asynccontextmanager
async def producer(settings: Settings) -> AsyncIterator[AIOKafkaProducer]:
    made = AIOKafkaProducer(bootstrap_servers=settings.brokers)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def test_presence_push_and_drain(servers: Servers) -> None:
    """The way of a session through real logs; the lease is free afterwards; a new boot has a new epoch."""
    settings = servers.settings()
    user = f"u{servers.rng.randrange(10**9)}"
    redis, stop = connect(settings), asyncio.Event()
    async with gateway(settings, stop) as url, await WireClient.connect(url) as client:
        auth = await client.sign_on(user)
        await client.go_online()
        (seen,) = await read_presence(settings, user, 1)
        assert seen is not None
        assert (str(seen.connection_id), seen.session_epoch) == (auth.connection_id, auth.session_epoch)
        shard = mailbox_shard("acme", user, settings.mailbox_shards)
        identity = bytes(16)
        body = common_body(
            MessageRecord(1, 1, "acme", "c", identity, identity, "ann", 1, "d", "m", 1, 99, 0, 0, b"hi")
        )
        recipient = Recipient(seen.connection_id, seen.session_epoch, event_id(identity, user), 3, 0, None)
        batches = [
            PushBatch("acme", shard, 1, [], [PresenceReady(seen.connection_id, seen.session_epoch, -1)]),
            PushBatch("acme", shard, 1, [PushItem(5, 0, body, [recipient], 99)], []),
        ]
        async with producer(settings) as log:
            await log.send_and_wait("qim.push.v1", b"poison", partition=seen.connection_shard)
            for batch in batches:
                await log.send_and_wait("qim.push.v1", batch.encode(), partition=seen.connection_shard)
        (event,) = await client.pushed(1)
        assert (event.mailbox_seq, event.message.body) == (5, b"hi")
        # Nobody writes: the send is answered in time, and says that nothing was committed.
        await client.send(SendMessage(9, "m1", b"x", "team"))
        answer = await client.expect(Error)
        assert (answer.name, answer.rid, answer.temporary) == ("SHARD_MOVED", 9, True)
        resource = f"cs:{seen.connection_shard}"
        (holder,) = await RedisLeaseStore(redis).holders([resource])
        assert holder is not None
        assert holder.node == f"gateway.{settings.node_id}.0"
        first = seen
        stop.set()
        assert type(await client.receive(20)) is Goodbye
        assert await client.closed() == 1001
    assert (await RedisLeaseStore(redis).holders([resource])) == [None]
    assert (await read_presence(settings, user, 2))[1] is None
    async with gateway(settings) as url, await WireClient.connect(url) as client:
        again = await client.sign_on(user)
        assert again.session_epoch > auth.session_epoch
        again_at = (await read_presence(settings, user, 3))[2]
        assert again_at is not None
        where = [(one.connection_shard, one.connection_id) for one in (first, again_at)]
        assert where[0] != where[1], "the pair of shard and id is never used twice"
        assert int(again.connection_id) >> 32 >= 1
        assert type(await client.call(Ping(1))) is Pong
    await redis.aclose()


async def test_two_gateways_take_two_connection_shards(servers: Servers) -> None:
    """Each gateway has a shard of its own."""
    first_user, second_user = (f"u{servers.rng.randrange(10**9)}" for _ in range(2))
    one, two = servers.settings(connection_shards=4), servers.settings(connection_shards=4)
    async with (
        gateway(one) as first,
        gateway(two) as second,
        await WireClient.connect(first) as ann,
        await WireClient.connect(second) as ben,
    ):
        await ann.sign_on(first_user)
        await ben.sign_on(second_user)
        (at_first,) = await read_presence(one, first_user, 1)
        (at_second,) = await read_presence(two, second_user, 1)
        assert at_first is not None
        assert at_second is not None
        assert at_first.connection_shard != at_second.connection_shard


async def test_a_gateway_that_stops_sends_its_clients_to_the_others(servers: Servers) -> None:
    """T-D2: where to go and when, before the socket closes; the last gateway names no other."""
    one, two = servers.settings(), servers.settings(gateway_public_url="wss://chat.example/ws")
    first_stop, second_stop = asyncio.Event(), asyncio.Event()
    async with (
        gateway(two, second_stop) as second,
        gateway(one, first_stop) as first,
        await WireClient.connect(first) as ann,
        await WireClient.connect(second) as ben,
    ):
        await ann.sign_on(f"u{servers.rng.randrange(10**9)}")
        await ben.sign_on(f"u{servers.rng.randrange(10**9)}")
        first_stop.set()
        told = await ann.expect(Goodbye, 20)
        assert (told.reason, told.preferred_endpoint) == ("shutting_down", "wss://chat.example/ws")
        assert 500 <= told.retry_after_ms <= 3_500
        assert await ann.closed() == 1001

        async def alone() -> bool:
            redis = connect(two)
            held = await RedisLeaseStore(redis).holders([f"cs:{n}" for n in range(two.connection_shards)])
            await redis.aclose()
            return sum(one is not None for one in held) == 1

        await eventually(alone, 20)
        second_stop.set()
        assert (await ben.expect(Goodbye, 20)).preferred_endpoint is None


async def test_a_session_moves_between_gateways(servers: Servers) -> None:
    """A17, C14: the newer session elsewhere wins; the old gateway ends its own and leaves presence alone."""
    user = f"u{servers.rng.randrange(10**9)}"
    one, two = servers.settings(presence_refresh_s=0.5), servers.settings()
    async with (
        gateway(one) as first,
        gateway(two) as second,
        await WireClient.connect(first) as old,
        await WireClient.connect(second) as new,
    ):
        await old.sign_on(user)
        newer = await new.sign_on(user)
        answer = await old.expect(Error, 20)
        assert answer.name == "SESSION_REPLACED"
        await old.closed()

        async def is_newest() -> bool:
            """The old gateway may have refreshed its own presence before the newer session came."""
            last = (await read_presence(one, user, 2))[-1]
            return last is not None and last.session_epoch == newer.session_epoch

        await eventually(is_newest, 20, "presence of the newer session")
        assert type(await new.call(Ping(1))) is Pong


class OtherWorker:
    """Does what a mailbox worker does that still reaches the broker: writes entries and moves W."""

    def __init__(self, settings: Settings, user: str) -> None:
        self.redis = connect(settings)
        self.mailboxes, self.leases = RedisMailboxStore(self.redis), RedisLeaseStore(self.redis)
        self.shard = mailbox_shard("acme", user, settings.mailbox_shards)
        self.partition = outbox_partition("acme", "team", settings.outbox_partitions)
        self.epoch, self.at = 0, -1

    async def take_over(self) -> None:
        grant = await self.leases.acquire(f"s:{self.shard}", "worker", 1, "nowhere", 600_000)
        assert isinstance(grant, Grant)
        self.epoch = grant.epoch
        await self.mailboxes.promise(self.shard, self.epoch, -1, -1)
        self.at = (await self.mailboxes.watermark(self.shard)).lanes[0]

    def message(self, seq: int) -> MessageRecord:
        identity = (seq + 1).to_bytes(16, "big")
        return MessageRecord(
            1, 1, "acme", "team", identity, identity, "ann", 1, "d", f"m{seq}", seq + 1, 99, 0, 0, b"hi"
        )

    async def write(self, ordinal: int) -> int:
        """The mailbox_seq of a message to the user."""
        before, self.at = self.at, self.at + 1
        message = self.message(self.at)
        await self.redis.hset(f"{{ob:{self.partition}}}:r:acme:team", str(self.at + 1), message.encode())
        entry = UserMailboxEntry(0, message.message_id, "team", self.at + 1, "ann", 3, 99, None)
        group = EntryGroup("acme", self.at, 0, entry.encode(), [ordinal])
        await self.mailboxes.write_and_advance(self.shard, self.epoch, [group], before, self.at)
        return self.at


async def readiness(url: str) -> tuple[int, str]:
    address = url.replace("ws:", "http:").replace("/ws", "/readyz")
    async with aiohttp.ClientSession() as http, http.get(address) as answer:
        return answer.status, await answer.text()


async def is_ready(url: str) -> bool:
    return (await readiness(url))[0] == 200


async def test_a_gateway_that_is_cut_off_from_the_broker(servers: Servers) -> None:
    """E4: not ready, and says why; what becomes visible meanwhile comes from the mailbox, and comes once."""
    settings = servers.settings()
    user = f"u{servers.rng.randrange(10**9)}"
    worker = OtherWorker(settings, user)
    await worker.take_over()
    async with gateway(settings) as url, await WireClient.connect(url) as client:
        await client.sign_on(user)
        await client.go_online()
        (seen,) = await read_presence(settings, user, 1)
        assert seen is not None
        connection = seen.connection_id, seen.session_epoch
        ready = PushBatch("acme", worker.shard, 1, [], [PresenceReady(*connection, worker.at)])
        async with producer(settings) as log:
            await log.send_and_wait("qim.push.v1", ready.encode(), partition=seen.connection_shard)
            servers.kafka.pause()
            try:
                seqs = []
                for _ in range(2):
                    seqs.append(await worker.write(seen.ordinal))
                    (event,) = (await client.expect(PushEvents, 60)).events
                    assert (event.mailbox_seq, event.message.body) == (seqs[-1], b"hi")
                status, why = await readiness(url)
                assert (status, "has not answered" in why) == (503, True), why
            finally:
                servers.kafka.resume()
            await eventually(lambda: is_ready(url), 60)
            seqs.append(await worker.write(seen.ordinal))
            recipient = Recipient(*connection, bytes(16), 3, 0, None)
            items = [PushItem(seq, 0, common_body(worker.message(seq)), [recipient], 99) for seq in seqs]
            late = PushBatch("acme", worker.shard, 1, items, [])
            await log.send_and_wait("qim.push.v1", late.encode(), partition=seen.connection_shard)
        assert [one.mailbox_seq for one in (await client.expect(PushEvents, 60)).events] == seqs[-1:]
    await worker.leases.release([Grant(f"s:{worker.shard}", worker.epoch)], "worker", 1)
    await worker.redis.aclose()


async def ended(client: WireClient, by: str) -> None:
    """The client is told that another device has signed on, and its socket closes with the code of that."""
    answer = await client.expect(Error, 20)
    assert (answer.name, answer.temporary) == ("LOGGED_IN_ELSEWHERE", False)
    assert f"device {by} " in answer.detail
    assert await client.closed() == 4209


async def test_the_newest_device_ends_the_others_on_every_gateway(servers: Servers) -> None:
    """T-C7, I13: told by the bus; it does not come back by itself; a person can, then the other goes."""
    user = f"u{servers.rng.randrange(10**9)}"
    one, two = servers.settings(multi_login="newest"), servers.settings(multi_login="newest")
    async with (
        gateway(one) as first,
        gateway(two) as second,
        await WireClient.connect(first) as phone,
        await WireClient.connect(second) as pad,
    ):
        before = await phone.sign_on(user)
        await phone.go_online()
        await pad.sign_on(user, device="pad")
        await ended(phone, "pad")
        assert (await read_presence(one, user, 2))[1] is None, "no ghost is left"
        for url in (first, second):
            async with await WireClient.connect(url) as again:
                await again.send(Auth(1, token(user), "phone", resumes=before.session_epoch))
                await ended(again, "pad")
        assert type(await pad.call(Ping(1))) is Pong
        async with await WireClient.connect(second) as again:
            await again.sign_on(user)
            await ended(pad, "phone")
            assert type(await again.call(Ping(1))) is Pong


async def test_a_login_is_seen_although_its_signal_was_lost(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T-C7: the mark in the store is looked at a second after a sign-on, and after the bus was away."""
    user = f"u{servers.rng.randrange(10**9)}"
    one, two = servers.settings(multi_login="platform"), servers.settings(multi_login="platform")
    monkeypatch.setattr(RedisSignals, "tell", lambda *_: None)
    async with (
        gateway(one) as first,
        gateway(two) as second,
        await WireClient.connect(first) as phone,
        await WireClient.connect(first) as web,
        await WireClient.connect(second) as pad,
    ):
        await web.sign_on(user, device="web", platform="web")
        await phone.sign_on(user, platform="ios")
        await pad.sign_on(user, device="pad", platform="ios")
        await ended(phone, "pad")
        assert type(await web.call(Ping(1))) is Pong
        redis = connect(one)
        await asyncio.sleep(0)
        async with await WireClient.connect(second) as other:
            await other.sign_on(user, device="other", platform="web")
            await redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            await ended(web, "other")
        await redis.aclose()


async def test_configurations_that_cannot_work(servers: Servers) -> None:
    """Each names the variable to set."""
    stop = asyncio.Event()
    taken = servers.settings()
    async with gateway(taken):
        cases = [
            (servers.settings(gateway_port=taken.gateway_port), "QIM_GATEWAY_PORT"),
            (servers.settings(cursor_secret=""), "QIM_CURSOR_SECRET"),
            (servers.settings(internal_secret=""), "QIM_INTERNAL_SECRET"),
            (servers.settings(jwt_secret=""), "QIM_JWT_SECRET"),
            (servers.settings(connection_shards=7), "qim.push.v1"),
        ]
        for settings, named in cases:
            with pytest.raises(ConfigError, match=named):
                await asyncio.wait_for(run_gateway(settings, stop), 20)


async def test_the_reader_survives_a_log_that_forgot(servers: Servers) -> None:
    """Records are deleted under the reader: it goes on at the end and asks for repair, once."""
    settings = servers.settings()
    place = TopicPartition("qim.push.v1", 3)
    got: list[PushBatch] = []
    gaps: list[int] = []

    async def deliver(batches: Any) -> None:
        got.extend(batches)

    reader = PushReader(
        settings.brokers,
        place.topic,
        "test",
        deliver=deliver,
        on_gap=lambda: gaps.append(1),
        counters=GatewayCounters(),
    )
    batch = PushBatch("acme", 1, 1, [], [])
    async with producer(settings) as log:
        await log.send_and_wait(place.topic, batch.encode(), partition=place.partition)
        await reader.start(place.partition)
        assert reader.is_reading
        await log.send_and_wait(place.topic, batch.encode(), partition=place.partition)
        await eventually(lambda: len(got) == 1, 20)
        consumer = reader._consumer
        end = (await consumer.end_offsets([place]))[place]
        for _ in range(3):
            await log.send_and_wait(place.topic, batch.encode(), partition=place.partition)
        await eventually(lambda: len(got) == 4, 20)
        admin = AIOKafkaAdminClient(bootstrap_servers=settings.brokers)
        await admin.start()
        await admin.delete_records({place: RecordsToDelete(before_offset=end + 3)})
        await admin.close()
        consumer.seek(place, end)  # as a reader that was away for longer than the retention
        await eventually(lambda: gaps == [1], 20)
        await log.send_and_wait(place.topic, batch.encode(), partition=place.partition)
        await eventually(lambda: len(got) == 5, 20)
    await reader.stop()
    assert gaps == [1]
