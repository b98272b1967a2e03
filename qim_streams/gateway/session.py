"""ClientSession: one client connection from AUTH to close, without knowing what carries its bytes.

`receive` takes the bytes of one WebSocket message and never waits: answers that need a store come from
tasks, answers of writers from callbacks, so a slow store never stops the socket from being read. The
owner stops reading while `outbound` is full, which bounds what a client can make the server hold.

Login barrier: the position of the mailbox is read, the device gets its session_epoch, the session is
registered and announced, AUTH_OK goes out. From then on the live stream (`live`) holds what is pushed
until SYNC_COMPLETE was checked.

Invariants: every request gets exactly one answer or the connection ends; a cursor is signed only for
what `SyncSession` says; nothing of a token or body is logged.

Spec: §3, §6, §7.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from qim_streams import failpoints, limits
from qim_streams.errors import ProtocolError, SyncVerdict
from qim_streams.gateway.asking import WriterRequests, answering
from qim_streams.gateway.auth_ok import auth_ok
from qim_streams.gateway.feed import LiveFeed
from qim_streams.gateway.history import history_page
from qim_streams.gateway.live import LiveStream
from qim_streams.gateway.logins import CHECK_S, CODE, MARK, ended_by, reason
from qim_streams.gateway.metrics import PULL_SECONDS
from qim_streams.gateway.outbound import Outbound
from qim_streams.gateway.ports import DeviceKey
from qim_streams.gateway.presence import Notice, Said
from qim_streams.gateway.room_seat import NoSeat, RoomSeat
from qim_streams.gateway.services import Services
from qim_streams.placement import lane_of_ordinal
from qim_streams.sessions.group_changes import NOTE
from qim_streams.sessions.ports import user_of
from qim_streams.sync.ports import MailboxAddress
from qim_streams.sync.pull import PullResult
from qim_streams.sync.session import SyncSession
from qim_streams.wire import MSGPACK
from qim_streams.wire.answers import error, error_for
from qim_streams.wire.codec import Codec
from qim_streams.wire.codes import code_of
from qim_streams.wire.connection import ServerConnection, State
from qim_streams.wire.frames import (
    Auth,
    ClientFrame,
    Error,
    Goodbye,
    OnlineReady,
    Ping,
    Pong,
    PullHistory,
    PullMailbox,
    SendMessage,
    ServerFrame,
    SyncComplete,
)
from qim_streams.wire.frames_changes import EditMessage, RecallMessage
from qim_streams.wire.frames_rooms import ControlRoom, CreateRoom, JoinRoom, LeaveRoom, SendRoom

log = logging.getLogger(__name__)

HELD_BYTES_MAX: Final = 256 * 1024


class ClientSession:
    """See the module text. `hang_up(ws_close_code)` closes the socket soon. There are many, and most are
    idle: nothing is made before it is needed."""

    def __init__(
        self, services: Services, codec: Codec, outbound: Outbound, hang_up: Callable[[int], object]
    ) -> None:
        self._all, self._codec, self.outbound, self._hang_up = services, codec, outbound, hang_up
        self._loop = asyncio.get_running_loop()
        self.connection = ServerConnection(services.settings.inflight_sends_max)
        self.heard_at = self.opened_at = self._loop.time()
        self.announced_at = self.refresh_at = 0.0  # presence: when it was written, when it is due again
        self.ready_tries, self.endable = 0, False
        self.connection_id = 0
        self.session_epoch = 0
        self._shard_epoch = 0  # the newest seen: cursors carry it
        self.feed: LiveFeed | None = None
        self.place = ("", -1)  # tenant and MailboxShard, once authenticated
        self._address: MailboxAddress | None = None
        self._sync: SyncSession | None = None
        self._seat: RoomSeat | NoSeat | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._counted_syncing = False
        self._requests = WriterRequests(services, self)

    # -- what the owner and the push side use

    @property
    def address(self) -> MailboxAddress:
        """Whose mailbox. Only after AUTH."""
        assert self._address is not None
        return self._address

    @property
    def device(self) -> DeviceKey:
        """Which device. Only after AUTH."""
        return DeviceKey(*self.address[:3])

    @property
    def is_open(self) -> bool:
        """Whether frames are still taken."""
        return self.connection.state is not State.CLOSED

    def receive(self, data: bytes) -> None:
        """One message of the socket. Check `is_open` and `outbound.is_full` afterwards."""
        self.heard_at = self._loop.time()
        try:
            frame = self._codec.decode_client(data, self._all.settings.frame_bytes_max)
        except ProtocolError as failure:
            self.refuse(error_for(failure))
            return
        refusal = self.connection.receive(frame)
        if refusal is not None:
            self.refuse(refusal)
            return
        self._handle(frame)

    def fail(self, name: str, detail: str) -> None:
        """Send an ERROR of the table without a request; closes if its row says so."""
        self.refuse(error(name, detail))

    def say_goodbye(self, retry_after_ms: int, endpoint: str | None = None) -> None:
        """GOODBYE: the gateway is about to close this connection on purpose; `endpoint`: where to go."""
        if self.is_open:
            self.send(Goodbye("shutting_down", retry_after_ms, endpoint))

    def announce(self, *, anew: bool = False) -> None:
        """Say that this device can be pushed to; without a leased ConnectionShard, later."""
        registry = self._all.registry
        if not registry.has_shard:
            return
        self.announced_at = self._loop.time()
        said = Said.ANEW if anew else Said.ONLINE
        self._all.presence.say(self.device, self._notice(said))

    def renew_presence(self) -> None:
        """Pushes may have been lost: hold the live stream until it is promised anew, and ask for that."""
        if self.feed is not None and self.is_open:
            self.feed.stream.interrupted()
            self.announce(anew=True)

    def end(self, ws_close_code: int) -> None:
        """Write what waits if the socket takes it, then close: nothing follows a close frame."""
        self.connection.close()
        self.outbound.flush()
        self.outbound.close()
        self._hang_up(ws_close_code)

    def close(self) -> None:
        """The socket is gone: forget the session and say so. Safe to repeat."""
        self.connection.close()
        self.outbound.close()
        self._set_syncing(False)
        for task in self._tasks:
            task.cancel()
        if self.feed is not None:
            self.feed.close()
        if self._seat is not None:
            self._seat.close()
        if self._address is not None:
            self._all.sessions.bus.unlisten(user_of(self._address), self.signalled)
            self._all.watches.left(self)
            if self._all.registry.remove(self):
                self._all.presence.say(self.device, self._notice(Said.GONE))

    def move(self, shard: int, shard_epoch: int, through_seq: int) -> None:
        """The user's shard was split: from now on he is in `shard`; the old one has nothing of his above
        `through_seq`. The client notices nothing: positions go on, and what is pushed meanwhile is held."""
        self._all.presence.say(self.device, self._notice(Said.GONE))
        self._address, self._shard_epoch = self.address._replace(shard=shard), shard_epoch
        self.place = (self.address.tenant_id, shard)
        if self.feed is not None:
            self.feed.stream.moved(through_seq)
        self.announce()

    def _notice(self, said: Said) -> Notice:
        target, address = self._all.registry.connection_shard, self.address
        return Notice(said, self.session_epoch, address.ordinal, target, self.connection_id, address.shard)

    # -- sign-on

    def _on_auth(self, frame: Auth) -> None:
        self.spawn(partial(self._authenticate, frame), frame.rid, self._auth_refused)

    def _auth_refused(self) -> None:
        self._all.counters.auths_refused += 1
        self.connection.auth_refused()

    async def _authenticate(self, frame: Auth) -> None:
        if self._all.draining:
            raise SyncVerdict("SHUTTING_DOWN", "this gateway is about to stop")
        self._all.turns.refuse_crowd()
        claims = await self._all.tokens.admit(frame.access_token)
        async with self._all.turns.turn():
            await self._sign_on(frame, claims.tenant_id, claims.user_id)

    async def _sign_on(self, frame: Auth, tenant_id: str, user_id: str) -> None:
        (ordinal,) = await self._all.ordinals.assign(tenant_id, [user_id])
        shard = self._all.home(tenant_id, user_id, ordinal)
        address = MailboxAddress(
            tenant_id, user_id, frame.device_id, ordinal, shard, lane_of_ordinal(ordinal)
        )
        opening, totals, dead_token = await asyncio.gather(
            self._all.sync.open(address, frame.mailbox_cursor),
            self._all.sessions.totals.at_sign_on(address),
            self._all.push.dead_token(address),
        )
        epoch, self.endable = await self._all.logins.open(
            user_of(address), frame.device_id, frame.platform, frame.resumes
        )
        if not self.is_open:
            return
        self._address, self._sync, self.session_epoch = address, opening.session, epoch
        self._shard_epoch, self.place = opening.here.shard_epoch, (tenant_id, shard)
        now_s = self._loop.time()
        self.refresh_at = now_s + CHECK_S if self.endable else self._all.next_refresh(now_s)
        replaced = self._all.registry.add(self)
        if replaced is not None:
            self._all.counters.sessions_replaced += 1
            replaced.fail("SESSION_REPLACED", "this device has connected again")
        if replaced is self:
            return
        self.feed = LiveFeed(
            LiveStream(opening.sync_to_seq, HELD_BYTES_MAX),
            self._codec,
            self.outbound,
            self._fill,
            self._all.counters,
        )
        self.connection.auth_accepted()
        self._set_syncing(True)
        self._all.counters.auths += 1
        answer = auth_ok(self._all, self, frame.rid, opening, totals)
        self.send(answer._replace(push_token_dead=dead_token))
        failpoints.hit("gateway.auth_ok_sent")
        self.announce()
        self._all.sessions.bus.listen(user_of(address), self.signalled)

    def _set_syncing(self, syncing: bool) -> None:
        if syncing != self._counted_syncing:
            self._counted_syncing = syncing
            self._all.syncing += 1 if syncing else -1

    # -- sync

    def _on_pull(self, frame: PullMailbox) -> None:
        self.spawn(partial(self._pull, frame), frame.rid, self.connection.pull_answered)

    async def _pull(self, frame: PullMailbox) -> None:
        session = self._sync
        assert session is not None
        assert self.feed is not None
        started = self._loop.time()
        shard = self.address.shard
        # Once online the bound is W, which the service checks against what it reads.
        session.check_pull(frame.after_seq, frame.up_to_seq, max(frame.up_to_seq, session.sync_to_seq))
        result = await self._read(
            self._all.pull_slots, frame.after_seq, frame.up_to_seq, frame.limit_entries, frame.limit_bytes
        )
        if not self.is_open:
            return
        failpoints.hit("gateway.mailbox_batch_partial")
        if shard == self.address.shard:  # else the user was moved meanwhile, and the epoch is another shard's
            self._shard_epoch = max(self._shard_epoch, result.shard_epoch)
        position = session.cover(frame.after_seq, result.covered_through_seq)
        cursor = None if position is None else self._cursor(position)
        encode = self._codec.encode_event
        events = [encode(*event) for event in result.events]
        self.outbound.put(
            self._codec.encode_batch(
                frame.rid, events, result.covered_through_seq, result.lane_watermark, result.has_more, cursor
            )
        )
        self.connection.pull_answered()
        self._all.counters.pulls += 1
        self._all.counters.pulled_events += len(events)
        PULL_SECONDS.observe(self._loop.time() - started)
        self.feed.pulled(frame.after_seq, result.covered_through_seq)

    async def _fill(self, after: int, up_to: int) -> PullResult:
        most = limits.PULL_ENTRIES_MAX, limits.PULL_BYTES_MAX
        return await self._read(self._all.fill_slots, after, up_to, *most)

    async def _read(
        self, slots: asyncio.Semaphore, after: int, up_to: int, entries: int, size: int
    ) -> PullResult:
        assert self._sync is not None
        told = self._sync.sync_to_seq
        async with slots:
            return await self._all.pulls.pull(self.address, after, up_to, entries, size, told)

    def _on_sync_complete(self, frame: SyncComplete) -> None:
        session = self._sync
        assert session is not None
        assert self.feed is not None
        try:
            session.check_complete(frame.sync_to_seq)
        except SyncVerdict as verdict:
            self.connection.completion_refused()
            self.refuse(error_for(verdict, frame.rid))
            return
        failpoints.hit("gateway.sync_complete_checked")
        position = session.complete()
        self.connection.completion_accepted()
        self._set_syncing(False)
        self.send(OnlineReady(frame.rid, self._cursor(position)))
        self.feed.online()

    def _cursor(self, position: int) -> str:
        return self._all.sync.cursor(self.address, self._shard_epoch, position)

    def _on_history(self, frame: PullHistory) -> None:
        self.spawn(partial(self._history, frame), frame.rid, self.connection.history_answered)

    async def _history(self, frame: PullHistory) -> None:
        data = await history_page(self._all.histories, self._codec, self.address, frame)
        self.connection.history_answered()
        self.outbound.put(data)

    # -- the rest

    def _handle(self, frame: ClientFrame) -> None:
        handler = _HANDLERS.get(type(frame))
        if handler is not None:
            handler(self, frame)
        elif not any(one.handle(self, frame) for one in self._all.frame_services):
            self._requests.on_group(frame)  # type: ignore[arg-type]  # what is left are the group frames

    def _on_room(self, frame: Any) -> None:
        if self._seat is None:
            self._seat = self._all.rooms.seat(self, self._codec, self.outbound)
        self._seat.handle(frame)

    def signalled(self, but_device: str, data: bytes) -> None:
        """Pass on what the user's devices are told, unless it is not for this one or the reader is slow."""
        if data.startswith(NOTE):
            self._all.sessions.changes.heard(self.address, data, self._hint)
        elif data.startswith(MARK):
            by = ended_by(data, self.address.device_id, self.session_epoch)
            if by is not None:
                self.end_login(by)
        elif self.is_open and but_device != self.address.device_id and not self.outbound.is_full:
            self.outbound.put(data if self._codec.binary else self._codec.encode(MSGPACK.decode_server(data)))

    def _hint(self, frame: ServerFrame) -> None:
        """What may be lost, unless the reader is slow."""
        if not self.outbound.is_full:
            self.send(frame)

    def end_login(self, by: str) -> None:
        """The login of another device of the user has ended this session."""
        if self.is_open:
            self._all.counters.sessions_ended += 1
            self.fail(CODE, reason(by))

    def send(self, frame: ServerFrame) -> None:
        """Queue a frame, unless the session has ended."""
        if self.is_open:
            self.outbound.put(self._codec.encode(frame))

    def send_encoded(self, encode: Callable[[Codec], bytes]) -> None:
        """Queue a frame that the caller encodes, unless the session has ended."""
        if self.is_open:
            self.outbound.put(encode(self._codec))

    def refuse(self, answer: Error) -> None:
        """Queue an ERROR, and close if its row says so."""
        if not self.is_open:
            return
        self.send(answer)
        row = code_of(answer.name)
        if row.closes:
            self.end(row.ws_close_code)

    def spawn(self, work: Callable[[], Awaitable[None]], rid: int, answered: Callable[[], None]) -> None:
        """Run `work`, which answers; if it raises, `answered` is called and the answer is an ERROR."""
        task = self._loop.create_task(answering(self, work, rid, answered))
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)


_HANDLERS: Final[dict[type, Callable[[ClientSession, Any], None]]] = {
    Auth: ClientSession._on_auth,
    PullMailbox: ClientSession._on_pull,
    PullHistory: ClientSession._on_history,
    SyncComplete: ClientSession._on_sync_complete,
    **dict.fromkeys((SendMessage, EditMessage, RecallMessage), lambda me, frame: me._requests.on_send(frame)),
    **dict.fromkeys((JoinRoom, LeaveRoom, SendRoom, CreateRoom, ControlRoom), ClientSession._on_room),
    Ping: lambda me, frame: me.send(Pong(frame.rid, me._all.settings.ping_interval_ms)),
    Pong: lambda me, frame: None,
}
