"""A real gateway on a real socket over stores in memory, and a client that speaks frames.

Kafka's place is taken by `GatewayWorld.push` (what the mailbox stage would append) and by a list of
presence records; the writers' by `FakeWriters`.
"""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.errors import StoreUnavailable
from qim_streams.gateway.logins import Logins
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.gateway.ports import DEFAULT_LOGIN, DeviceKey, Login, Newest, Opened
from qim_streams.gateway.presence import PresenceLog
from qim_streams.gateway.push import Deliveries
from qim_streams.gateway.push_devices import PushDeviceFrames
from qim_streams.gateway.registry import Registry
from qim_streams.gateway.server import GatewayServer
from qim_streams.gateway.services import PULLS_AT_ONCE_MAX, Services
from qim_streams.gateway.session import ClientSession
from qim_streams.gateway.shard import ConnectionShard
from qim_streams.gateway.sweeper import Sweeper
from qim_streams.gateway.tokens import TokenVerifier, mint_token
from qim_streams.gateway.unpushed import Unpushed
from qim_streams.history.service import HistoryService
from qim_streams.ids import event_id
from qim_streams.log_ports import Outgoing
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.membership.commands import GroupCommand
from qim_streams.membership.commands import GroupState as GroupAnswer
from qim_streams.membership.ports import Conversation, Member
from qim_streams.notification.registry import PushDevices
from qim_streams.ownership.ports import Grant
from qim_streams.placement import lane, mailbox_shard, ordinal_of
from qim_streams.quotas.rules import NO_RULES, TenantRules
from qim_streams.quotas.service import RulesCache
from qim_streams.records import (
    RECIPIENT_FLAGS,
    MessageRecord,
    PresenceReady,
    PushBatch,
    PushItem,
    Recipient,
    UserMailboxEntry,
    decode_presence,
)
from qim_streams.settings import Settings, load_settings
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.ports import MailboxAddress
from qim_streams.sync.pull import PullService
from qim_streams.sync.service import SyncService
from qim_streams.testing.memory_push import KeptLog, MemoryPushDevices
from qim_streams.wire import MSGPACK, Codec
from qim_streams.wire.events import common_body
from qim_streams.wire.frames import Auth, AuthOk, Event, PullMailbox, PushEvents, SyncComplete
from qim_streams.wire.frames_sessions import SessionTotals
from tests.support.history_world import HistoryWorld
from tests.support.mailbox_world import Bodies, Epochs, HookedStore
from tests.support.session_world import SessionWorld

JWT_SECRET, CURSOR_SECRET = "j" * 64, "c" * 40
TENANT = "acme"


class FakeOrdinals:
    """`OrdinalDirectory` in memory."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], int] = {}

    async def assign(self, tenant_id: str, user_ids: Sequence[str]) -> list[int]:
        """See the port."""
        for user in user_ids:
            number = ordinal_of(len(self.known), lane(tenant_id, user))
            self.known.setdefault((tenant_id, user), number)
        return [self.known[tenant_id, user] for user in user_ids]

    async def find(self, tenant_id: str, user_ids: Sequence[str]) -> list[int | None]:
        """See the port."""
        return [self.known.get((tenant_id, user)) for user in user_ids]

    async def names(self, tenant_id: str, ordinals: Sequence[int]) -> list[str | None]:
        """See the port."""
        users = {number: user for (tenant, user), number in self.known.items() if tenant == tenant_id}
        return [users.get(number) for number in ordinals]


class FakeDevices:
    """`DeviceSessions` in memory; `broken` makes it unavailable."""

    def __init__(self) -> None:
        self.epochs: dict[DeviceKey, int] = {}
        self.platforms: dict[DeviceKey, str] = {}
        self.marks: dict[DeviceKey, str] = {}  # device -> by whose login its session ended
        self.broken = False

    async def open(self, device: DeviceKey, now_ms: int, login: Login = DEFAULT_LOGIN) -> Opened:
        """See the port."""
        if self.broken:
            raise StoreUnavailable("device sessions are down")
        by, epoch = self.marks.get(device), self.epochs.get(device, 0)
        if login.policy != "all" and by and login.resumes is not None and login.resumes <= epoch:
            return Opened(0, ended_by=by)
        ended = {}
        for other in self.epochs:
            same = login.policy == "platform" and self.platforms[other] == login.platform
            if other[:2] == device[:2] and other != device and (login.policy == "newest" or same):
                if other not in self.marks:
                    ended[other.device_id] = self.epochs[other]
                self.marks.setdefault(other, device.device_id)
        self.marks.pop(device, None)
        self.epochs[device], self.platforms[device] = max(epoch + 1, now_ms), login.platform
        return Opened(self.epochs[device], ended)

    async def touch(self, devices: Sequence[DeviceKey], now_ms: int) -> list[Newest]:
        """See the port."""
        if self.broken:
            raise StoreUnavailable("device sessions are down")
        return [Newest(self.epochs.get(one, 0), self.marks.get(one, "")) for one in devices]


class FakeRules:
    """`RulesStore` in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, TenantRules] = {}

    async def get(self, tenant_id: str) -> TenantRules:
        """See the port."""
        return self.kept.get(tenant_id, NO_RULES)

    async def put(self, tenant_id: str, rules: TenantRules) -> None:
        """See the port."""
        self.kept[tenant_id] = rules


class FakeWriters:
    """`WriterLinks`: keeps requests; `answer` answers the oldest, `automatic` all at once."""

    def __init__(self) -> None:
        self.waiting: list[tuple[SendRequest, Callable[[SendOutcome], object]]] = []
        self.commands: list[GroupCommand] = []
        self.automatic = True
        self.count = 0

    def submit(self, request: SendRequest, timeout_s: float, reply: Callable[[SendOutcome], object]) -> None:
        """See the port."""
        self.waiting.append((request, reply))
        if self.automatic:
            asyncio.get_running_loop().call_soon(self.answer)

    def answer(self, outcome: SendOutcome | None = None) -> None:
        """Answer the oldest request; COMMITTED by default."""
        self.count += 1
        _, reply = self.waiting.pop(0)
        identity = self.count.to_bytes(16, "big")
        reply(outcome or SendOutcome(SendStatus.COMMITTED, identity, self.count, 1_000 + self.count))

    async def group(self, command: GroupCommand, timeout_s: float) -> GroupAnswer:
        """See the port."""
        self.commands.append(command)
        head = Conversation(
            command.tenant_id,
            command.conversation_id,
            "group",
            1,
            0,
            command.fields.get("name", ""),
            "members",
            "invite",
            "joined",
            500,
            1 + len(command.user_ids),
            77,
            command.actor_id or "",
            False,
        )
        return GroupAnswer(head, (Member("ann", 1, "owner", True, ((0, None),)),), None)


class FakeReader:
    """A push reader that is always there."""

    def __init__(self) -> None:
        self.is_reading = False
        self.partition = -1
        self.silent_s = 0.0

    async def start(self, partition: int) -> None:
        """See the port."""
        self.is_reading, self.partition = True, partition

    async def stop(self) -> None:
        """See the port."""
        self.is_reading = False


class PresenceRecords:
    """A `LogAppender` that keeps what was appended."""

    def __init__(self) -> None:
        self.records: list[Outgoing] = []

    async def append(self, records: Sequence[Outgoing]) -> list[int]:
        """See the port."""
        self.records += records
        return list(range(len(self.records) - len(records), len(self.records)))


class GatewayWorld:
    """Stores, gateway and mailbox stage of a small system. One shard epoch for all shards."""

    def __init__(self, **overrides: Any) -> None:
        values: dict[str, Any] = {
            "jwt_secret": JWT_SECRET,
            "cursor_secret": CURSOR_SECRET,
            "gateway_port": 0,
            "mailbox_shards": 4,
            "idle_timeout_ms": 60_000,
            "ping_interval_ms": 20_000,
        }
        self.settings: Settings = load_settings(**(values | overrides))
        self.store = HookedStore()
        self.epochs = Epochs(self.store, range(self.settings.mailbox_shards))
        self.hot, self.archive, self.past = Bodies(), Bodies(), HistoryWorld()
        self.session_world = SessionWorld(self.past, self.store)
        self.ordinals, self.devices, self.writers = FakeOrdinals(), FakeDevices(), FakeWriters()
        self.rules = FakeRules()
        self.presence_log, self.counters = PresenceRecords(), GatewayCounters()
        self.signer = CursorSigner(CURSOR_SECRET.encode())
        self.tails: dict[int, int] = {}
        self.written: dict[str, list[tuple[int, MessageRecord]]] = {}
        self.rng = random.Random(7)
        self.tls: ssl.SSLContext | None = None
        self.clock_s = 0.0  # of `unpushed`, which tests let look by hand

    # -- the gateway

    @asynccontextmanager
    async def running(self, *, shard: int | None = 0) -> AsyncIterator["GatewayWorld"]:
        """The gateway listens; it holds ConnectionShard `shard` (None: none yet)."""
        presence = PresenceLog(
            self.presence_log,
            self.devices,
            topic="qim.presence.v1",
            mailbox_shards=self.settings.mailbox_shards,
            now_ms=now_ms,
            counters=self.counters,
        )
        self.push_store, self.push_log = MemoryPushDevices(), KeptLog()
        self.push_devices = PushDevices(
            self.push_store,
            self.push_log,
            providers=("apns", "webhook"),
            mailbox_shards=self.settings.mailbox_shards,
            now_ms=now_ms,
        )
        self.registry: Registry[ClientSession] = Registry()
        self.services = Services(
            settings=self.settings,
            tokens=TokenVerifier.from_settings(self.settings),
            ordinals=self.ordinals,
            sync=SyncService(self.store, self.epochs, self.epochs, self.signer),
            pulls=PullService(self.store, self.hot, self.archive),
            histories=HistoryService(self.past.store, self.past.archive, self.session_world.deletions),
            sessions=self.session_world.frames(self.ordinals),
            devices=self.devices,
            logins=Logins(
                self.devices,
                RulesCache(self.rules, now_ms),
                self.settings.multi_login,
                self.session_world.signals,
                now_ms,
            ),
            writers=self.writers,
            presence=presence,
            push=PushDeviceFrames(self.push_devices),
            registry=self.registry,
            counters=self.counters,
            pull_slots=asyncio.Semaphore(PULLS_AT_ONCE_MAX),
            now_ms=now_ms,
            random=self.rng.random,
            new_group_id=lambda: "g.new",
        )
        self.reader = FakeReader()
        self.shard = ConnectionShard(self.registry, self.reader)
        self.server = GatewayServer(self.services, self.shard.reasons, self.tls)
        self.unpushed = Unpushed(self.services, self.store, self.shard, lambda: self.clock_s)
        self.sweeper = Sweeper(self.services, self.server)
        self.deliveries = Deliveries(self.services)
        await self.server.start()
        if shard is not None:
            self.shard.granted(Grant(f"cs:{shard}", 3))
        tasks = [asyncio.create_task(work) for work in (presence.run(), self.shard.run(), self.sweeper.run())]
        try:
            await asyncio.sleep(0)
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for socket in list(self.server.sockets):
                socket.abort()
            await self.server.close()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ws{'' if self.tls is None else 's'}://127.0.0.1:{self.server.port}/ws"

    def address(self, user: str, device: str = "phone") -> MailboxAddress:
        """Where the mailbox of a user lies."""
        number = self.ordinals.known.setdefault(
            (TENANT, user), ordinal_of(len(self.ordinals.known), lane(TENANT, user))
        )
        shard = mailbox_shard(TENANT, user, self.settings.mailbox_shards)
        return MailboxAddress(TENANT, user, device, number, shard, lane(TENANT, user))

    # -- the mailbox stage

    async def commit(self, *users: str, body: bytes = b"hi", seq: int | None = None) -> int:
        """A message for `users` of one shard becomes durable and visible; returns its mailbox_seq."""
        where = self.address(users[0])
        before = self.tails.get(where.shard, -1)
        at = before + 1 if seq is None else seq
        number = sum(len(rows) for rows in self.written.values()) + 1
        identity = number.to_bytes(16, "big")
        message = MessageRecord(
            number, 1, TENANT, "c1", identity, identity, "sam", 1, "d", f"m{number}", 1, 99, 0, 0, body
        )
        self.hot.rows[TENANT, "c1", number] = message.encode()
        entry = UserMailboxEntry(0, identity, "c1", number, "sam", RECIPIENT_FLAGS, 99, None).encode()
        ordinals = sorted(self.address(user).ordinal for user in users)
        assert len({self.address(user).shard for user in users}) == 1, "users of one shard"
        group = EntryGroup(TENANT, at, 0, entry, ordinals)
        await self.store.write_and_advance(where.shard, self.epochs.epoch, [group], before, at)
        self.tails[where.shard] = at
        for user in users:
            self.written.setdefault(user, []).append((at, message))
        return at

    def item(self, user: str, seq: int) -> PushItem:
        """The push of a committed message to every session of a user."""
        message = next(record for at, record in self.written[user] if at == seq)
        recipients = [
            Recipient(
                session.connection_id,
                session.session_epoch,
                event_id(message.message_id, user),
                RECIPIENT_FLAGS,
                0,
                None,
            )
            for session in self.registry.sessions()
            if session.address.user_id == user
        ]
        return PushItem(seq, 0, common_body(message), recipients, message.committed_at)

    async def push(self, user: str, *seqs: int, epoch: int = 1) -> None:
        """The mailbox stage pushes committed messages."""
        items = [self.item(user, seq) for seq in seqs]
        await self.deliveries.deliver([PushBatch(TENANT, self.address(user).shard, epoch, items, [])])

    async def ready(self, user: str, from_seq: int | None = None, epoch: int = 1) -> None:
        """The mailbox stage answers the presence of a user; by default all that is visible was pushed."""
        shard = self.address(user).shard
        promise = self.tails.get(shard, -1) if from_seq is None else from_seq
        ready = [
            PresenceReady(session.connection_id, session.session_epoch, promise)
            for session in self.registry.sessions()
            if session.address.user_id == user
        ]
        await self.deliveries.deliver([PushBatch(TENANT, shard, epoch, [], ready)])

    async def deliver(self, user: str, body: bytes = b"hi") -> int:
        """Commit and push."""
        seq = await self.commit(user, body=body)
        await self.push(user, seq)
        return seq

    def announced(self) -> list[tuple[str, int | None]]:
        """What the presence log says: (user, connection_id or None for a tombstone), in order."""
        said = []
        for record in self.presence_log.records:
            user = (record.key or b"").decode().split("\0")[1]
            value = record.value
            said.append((user, None if value is None else decode_presence(value).connection_id))
        return said


def _is_told(frame: Any) -> bool:
    return isinstance(frame, SessionTotals) and frame.rid is None


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def token(user: str, tenant: str = TENANT, ttl_s: int = 600) -> str:
    """A good access token."""
    return mint_token(JWT_SECRET.encode(), "qim", tenant, user, ttl_s, int(time.time()))[0]


class WireClient:
    """One socket that speaks frames."""

    def __init__(self, http: aiohttp.ClientSession, socket: Any, codec: Codec) -> None:
        self.http, self.socket, self.codec = http, socket, codec
        self.auth: AuthOk | None = None
        self.rid = 0

    @classmethod
    async def connect(
        cls, url: str, codec: Codec = MSGPACK, tls: ssl.SSLContext | None = None
    ) -> "WireClient":
        """Open a socket; `tls`: how the server is checked."""
        http = aiohttp.ClientSession()
        try:
            socket = await http.ws_connect(
                url, protocols=[codec.subprotocol], max_msg_size=4 * 1024 * 1024, ssl=tls or True
            )
        except BaseException:
            await http.close()
            raise
        return cls(http, socket, codec)

    async def __aenter__(self) -> "WireClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the socket."""
        await self.socket.close()
        await self.http.close()

    async def send(self, frame: Any) -> None:
        """Send a frame."""
        await self.send_raw(self.codec.encode(frame))

    async def send_raw(self, data: bytes) -> None:
        """Send the bytes of one message."""
        if self.codec.binary:
            await self.socket.send_bytes(data)
        else:
            await self.socket.send_str(data.decode())

    async def receive(self, timeout_s: float = 5.0) -> Any:
        """The next frame; ConnectionError with the close code when the socket ended."""
        message = await self.socket.receive(timeout=timeout_s)
        if message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            data = message.data if isinstance(message.data, bytes) else message.data.encode()
            return self.codec.decode_server(data)
        raise ConnectionError(f"closed {self.socket.close_code}")

    async def expect(self, kind: type, timeout_s: float = 5.0) -> Any:
        """The next frame, which must be of `kind`; totals that nobody asked for come when they come."""
        frame = await self.receive(timeout_s)
        while kind is not SessionTotals and _is_told(frame):
            frame = await self.receive(timeout_s)
        assert type(frame) is kind, frame
        return frame

    async def call(self, frame: Any) -> Any:
        """Send a frame and return the next one, totals after a change aside."""
        await self.send(frame)
        while _is_told(answer := await self.receive()):
            pass
        return answer

    async def closed(self) -> int:
        """Read to the end; the close code."""
        while True:
            try:
                await self.receive()
            except ConnectionError:
                return int(self.socket.close_code or 0)

    def next_rid(self) -> int:
        """A fresh request id."""
        self.rid += 1
        return self.rid

    async def sign_on(
        self, user: str, cursor: str | None = None, device: str = "phone", **fields: Any
    ) -> AuthOk:
        """AUTH; the answer must be AUTH_OK."""
        answer = await self.call(Auth(self.next_rid(), token(user), device, cursor, **fields))
        assert type(answer) is AuthOk, answer
        self.auth = answer
        return answer

    async def pull(self, after: int, up_to: int, entries: int = 1000, size: int = 192 * 1024) -> Any:
        """PULL_MAILBOX and its answer."""
        return await self.call(PullMailbox(self.next_rid(), after, up_to, entries, size))

    async def go_online(self) -> Any:
        """SYNC_COMPLETE and its answer."""
        assert self.auth is not None
        return await self.call(SyncComplete(self.next_rid(), self.auth.sync_to_seq))

    async def pushed(self, count: int) -> list[Event]:
        """Events of the next PUSH_EVENTS frames, `count` of them."""
        events: list[Event] = []
        while len(events) < count:
            events += (await self.expect(PushEvents)).events
        return events
