"""Gateway: sends from a socket's bytes and back, pushes to sockets, the internal RPC. Spec: §3, §6."""

import asyncio
import atexit
from collections.abc import Sequence
from typing import Any

from qim_streams import ids
from qim_streams.commit.lane_services import SendJob
from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.commit.rpc_server import RpcServer
from qim_streams.gateway.feed import LiveFeed
from qim_streams.gateway.live import LiveStream
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.gateway.outbound import Cork, Outbound
from qim_streams.gateway.ports import Answered
from qim_streams.gateway.push import Deliveries
from qim_streams.gateway.registry import Registry
from qim_streams.gateway.services import Services
from qim_streams.gateway.session import ClientSession
from qim_streams.ownership.ports import Grant
from qim_streams.records import RECIPIENT_FLAGS, PushBatch, PushItem, Recipient
from qim_streams.settings import Settings
from qim_streams.sync.ports import MailboxAddress
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore
from qim_streams.wire import MSGPACK
from qim_streams.wire.frames import Auth, SendMessage
from tests.perf.registry import Case, always, benchmark
from tests.perf.samples import (
    BODY,
    CHAT,
    COMMON_BODY,
    DEVICE,
    MESSAGE,
    NOW_MS,
    PEER,
    SENDER,
    SENDER_ORDINAL,
    TENANT,
    never_repeated,
)

SESSIONS, CALLS, SHARD, EPOCH = 100, 64, 5, 12
COMMITTED = SendOutcome(SendStatus.COMMITTED, MESSAGE.message_id, 4_711, NOW_MS)
REQUEST = SendRequest(TENANT, CHAT, SENDER, SENDER_ORDINAL, DEVICE, "m-000000000017", BODY, PEER)
NOTHING: Any = None  # a service that is not asked


class Sink:
    """A transport that takes everything and counts it."""

    def __init__(self) -> None:
        self.nbytes = 0

    def write(self, data: bytes) -> None:
        """Count the bytes."""
        self.nbytes += len(data)

    def get_write_buffer_size(self) -> int:
        """Never anything."""
        return 0

    def is_closing(self) -> bool:
        """Never."""
        return False


class Prompt:
    """Writers that answer before `submit` returns."""

    def submit(self, request: SendRequest, timeout_s: float, reply: Answered) -> None:
        """COMMITTED."""
        reply(COMMITTED)

    async def group(self, command: object, timeout_s: float) -> Any:
        """Never asked."""
        raise NotImplementedError


class PromptWriter:
    """In the place of a ConversationWriter behind the RPC server."""

    ready = (0,)

    def submit(self, jobs: Sequence[SendJob]) -> None:
        """COMMITTED, in the turn after this one, as after the broker's acknowledgement."""
        asyncio.get_running_loop().call_soon(self._answer, jobs)

    def _answer(self, jobs: Sequence[SendJob]) -> None:
        for job in jobs:
            job.answer(COMMITTED)


class World:
    """A gateway's sessions of one shard, all flowing, on sinks."""

    def __init__(self, sessions: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.cork = Cork(self.loop)
        self.services = Services(
            settings=Settings(_env_file=None),  # type: ignore[call-arg]  # known to pydantic-settings only
            tokens=NOTHING,
            ordinals=NOTHING,
            sync=NOTHING,
            pulls=NOTHING,
            histories=NOTHING,
            sessions=NOTHING,
            devices=NOTHING,
            logins=NOTHING,
            writers=Prompt(),
            presence=NOTHING,
            push=NOTHING,
            registry=Registry(),
            counters=GatewayCounters(),
            pull_slots=asyncio.Semaphore(),
            now_ms=lambda: NOW_MS,
            random=lambda: 0.5,
            new_group_id=lambda: "g",
        )
        self.sinks = [Sink() for _ in range(sessions)]
        self.sessions = self.loop.run_until_complete(self._sessions())

    async def _sessions(self) -> list[ClientSession]:
        return [self._session(number, sink) for number, sink in enumerate(self.sinks)]

    def _session(self, number: int, sink: Sink) -> ClientSession:
        outbound = Outbound(sink, NOTHING, self.cork, binary=True, bytes_max=1 << 20)
        session = ClientSession(self.services, MSGPACK, outbound, NOTHING)
        address = MailboxAddress(TENANT, f"user-{number:06}", DEVICE, number, SHARD, number % 64)
        session._address, session.place = address, (TENANT, SHARD)
        self.services.registry.add(session)
        session.connection.receive(Auth(1, "token", DEVICE))
        session.connection.auth_accepted()
        session.connection.completion_accepted()
        stream = LiveStream(-1, 1 << 20)
        session.feed = LiveFeed(stream, MSGPACK, outbound, NOTHING, self.services.counters)
        session.feed.online()
        session.feed.ready(EPOCH, -1)
        return session

    def turn(self) -> None:
        """Let the loop run what is due."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()


@benchmark("gateway.session.send_100")
def sends() -> Case[int]:
    """A hundred SEND_MESSAGE to users from as many sockets, answered: bytes in, bytes out."""
    world = World(SESSIONS)
    frame = SendMessage(17, "m-000000000017", BODY, to_user_id=PEER)
    data = never_repeated(MSGPACK.encode(frame), b"000000000017")

    def call() -> int:
        before = world.services.counters.sends_acked
        for session in world.sessions:
            session.receive(data())
        world.turn()
        return world.services.counters.sends_acked - before

    return Case(call, lambda acked: acked == SESSIONS and world.sinks[7].nbytes > 100)


@benchmark("gateway.deliver_100")
def deliver() -> Case[int]:
    """A PushBatch of a hundred direct messages to as many sockets."""
    world = World(SESSIONS)
    deliveries = Deliveries(world.services)
    event_id = ids.event_id(MESSAGE.message_id, PEER)
    seqs = iter(range(1 << 62))

    def call() -> int:
        seq, before = next(seqs), world.services.counters.pushed_events
        items = [
            PushItem(
                seq,
                number,
                COMMON_BODY,
                [Recipient(one.connection_id, one.session_epoch, event_id, RECIPIENT_FLAGS, 0, None)],
                NOW_MS,
            )
            for number, one in enumerate(world.sessions)
        ]
        batch = PushBatch(TENANT, SHARD, EPOCH, items, [])
        world.loop.run_until_complete(deliveries.deliver([batch]))
        world.turn()
        return world.services.counters.pushed_events - before

    return Case(call, lambda pushed: pushed == SESSIONS and world.sinks[7].nbytes > len(BODY))


@benchmark("rpc.round_trip_64")
def round_trip() -> Case[int]:
    """Sends of one turn of a gateway through a socket to a writer that answers at once."""
    loop = asyncio.new_event_loop()
    links, server = loop.run_until_complete(_linked())

    async def call() -> int:
        done, outcomes = asyncio.Event(), list[SendOutcome]()

        def reply(outcome: SendOutcome) -> None:
            outcomes.append(outcome)
            if len(outcomes) == CALLS:
                done.set()

        for _ in range(CALLS):
            links.submit(REQUEST, 30.0, reply)
        await done.wait()
        return sum(outcome == COMMITTED for outcome in outcomes)

    async def close() -> None:
        await links.close()
        await server.close()

    atexit.register(lambda: loop.run_until_complete(close()))
    return Case(lambda: loop.run_until_complete(call()), always(CALLS))


async def _linked() -> tuple[WriterLinks, RpcServer]:
    leases = MemoryLeaseStore(MemoryHotTier(lambda *_: 0))
    writer: Any = PromptWriter()
    server = RpcServer(writer, NOTHING, b"p" * 32, NOTHING)
    port = await server.start("127.0.0.1", 0)
    grant = await leases.acquire("ob:0", "w1", 1, f"127.0.0.1:{port}", 10**9)
    assert isinstance(grant, Grant)
    links = WriterLinks(leases, b"p" * 32, "gw", 1)
    await links.start()
    return links, server
