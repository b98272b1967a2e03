"""A gateway of a few lines for client tests: real WebSockets, one mailbox log, and faults on demand.

It keeps the parts of the contract that a client can see: one SEND_ACK per client_message_id, mailbox
entries with increasing mailbox_seq, cursors, the login barrier. What it should do wrong is set on
`faults` before. The token is the user's id.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from qim_streams.errors import ProtocolError, SyncVerdict
from qim_streams.history.rules import PageQuery, PageWalk, Scope
from qim_streams.ids import direct_conversation_id, event_id
from qim_streams.sync.session import SyncSession
from qim_streams.wire import CODECS, SUBPROTOCOLS
from qim_streams.wire.answers import error, error_for
from qim_streams.wire.connection import ServerConnection
from qim_streams.wire.frames import (
    Auth,
    AuthOk,
    Event,
    Frame,
    Goodbye,
    HistoryBreak,
    HistoryPage,
    LiveLost,
    MailboxBatch,
    Message,
    OnlineReady,
    Ping,
    Pong,
    PullHistory,
    PullMailbox,
    PushEvents,
    SendAck,
    SendMessage,
    SyncComplete,
)
from qim_streams.wire.frames_changes import EditMessage, RecallMessage
from qim_streams.wire.frames_group import (
    GroupAdd,
    GroupCreate,
    GroupFrame,
    GroupGet,
    GroupLeave,
    GroupRemove,
    GroupState,
    MemberRow,
)


@dataclass
class Faults:
    """What goes wrong next; counts go down as they are used."""

    drop_acks: int = 0
    drop_pushes: int = 0
    repeat_pushes: int = 1  # times each push is sent
    reverse_pushes: bool = False
    cut_after_batches: int = 0  # close the socket after so many MAILBOX_BATCH
    rebase: bool = False
    expire: bool = False
    refuse_sends: list[tuple[str, int | None]] = field(default_factory=list)  # (error name, retry_after_ms)
    refuse_auth: str = ""
    auth_delay_s: float = 0.0
    refuse_pulls: list[tuple[str, int | None]] = field(default_factory=list)  # as refuse_sends, then cut
    ignore_pings: bool = False
    batch_entries: int = 1_000
    sync_delay_ms: int = 0
    drop_group_answers: int = 0
    refuse_history: dict[str, str] = field(default_factory=dict)  # conversation -> error name, for ever
    history_page: int = 1_000
    cut_after_pages: int = 0  # close the socket instead of the answer after so many HISTORY_PAGE
    lose: str = ""  # the message with this client_message_id reaches all but the last member


@dataclass(eq=False)
class Connection:
    """One socket."""

    socket: web.WebSocketResponse
    codec: object
    user: str = ""
    device: str = ""
    online: bool = False
    sync: SyncSession = field(default_factory=lambda: SyncSession(None, -1, -1))
    batches: int = 0
    state: ServerConnection = field(default_factory=lambda: ServerConnection(256))

    async def send(self, frame: Frame) -> None:
        data = self.codec.encode(frame)  # type: ignore[attr-defined]
        if self.codec.binary:  # type: ignore[attr-defined]
            await self.socket.send_bytes(data)
        else:
            await self.socket.send_str(data.decode())


_KINDS = {SendMessage: 0, EditMessage: 1, RecallMessage: 2}


class ScriptedServer:
    """`await start()`, then `url`. `received` holds every client frame in order."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.received: list[Frame] = []
        self.connections: list[Connection] = []
        self.accepted = 0
        self.sends: dict[tuple[str, str], tuple[SendAck, bytes]] = {}
        self.log: dict[str, list[Event]] = defaultdict(list)  # user -> mailbox
        self.members: dict[str, list[str]] = {}
        self.history: dict[str, list[Message]] = defaultdict(list)  # conversation -> all messages
        self.ranges: dict[str, tuple[tuple[int, int | None], ...]] = {}  # what may be read; default: all
        self.before_page: Callable[[PullHistory], object] | None = None
        self.trim = -1
        self.watermark = -1
        self.before_batch: Callable[[Connection], object] | None = None
        self._seqs: dict[str, int] = defaultdict(int)
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/ws", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"ws://127.0.0.1:{port}/ws"

    async def stop(self) -> None:
        for one in list(self.connections):
            await one.socket.close()
        assert self._runner is not None
        await self._runner.cleanup()

    # -- what tests do to it

    def store(
        self,
        conversation: str,
        sender: str,
        body: bytes,
        members: list[str],
        own: str = "",
        change: tuple[int, int] | None = None,
    ) -> Event:
        """Put a message into the members' mailboxes without pushing it; `change`: kind and target of an edit
        or recall, whose outcome history shows from then on."""
        self._seqs[conversation] += 1
        seq = self._seqs[conversation]
        self.watermark += 1
        message_id = (self.watermark + 1).to_bytes(16, "big")
        kind, target = change or (0, None)
        at = 1_000 + self.watermark
        message = Message(message_id, conversation, seq, sender, kind, kind, at, body, target)
        rows = self.history[conversation]
        for index, one in enumerate(rows):
            is_edit_of_it = one.kind == 1 and one.target_seq == target
            if target is not None and (one.conversation_seq == target or is_edit_of_it):
                rows[index] = one._replace(state=kind, body=body)
        rows.append(message)
        if own and own == self.faults.lose:
            members = members[:-1]
        for user in members:
            event = Event(
                self.watermark,
                0,
                event_id(message_id, user, kind),
                0 if change else 2 if user == sender else 3,
                0,
                message,
                own if user == sender and own else None,
            )
            self.log[user].append(event)
        return event

    async def publish(self, conversation: str, sender: str, body: bytes, members: list[str]) -> None:
        """Store a message and push it to every online device of its members."""
        self.store(conversation, sender, body, members)
        await self._push_last(members, None)

    async def cut(self) -> None:
        """Close every socket without a word."""
        for one in list(self.connections):
            one.socket._writer.transport.abort()  # type: ignore[union-attr]

    async def say(self, frame: Frame) -> None:
        """Send a frame to everybody."""
        for one in self.connections:
            await one.send(frame)

    def frames(self, cls: type) -> list[Frame]:
        return [frame for frame in self.received if type(frame) is cls]

    # -- the protocol

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=SUBPROTOCOLS)
        await socket.prepare(request)
        one = Connection(socket, CODECS[socket.ws_protocol or SUBPROTOCOLS[0]])
        self.connections.append(one)
        self.accepted += 1
        try:
            async for message in socket:
                if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                    break
                data = message.data if isinstance(message.data, bytes) else message.data.encode()
                frame = one.codec.decode_client(data)  # type: ignore[attr-defined]
                self.received.append(frame)
                await self._handle(one, frame)
        except ConnectionError:
            pass
        finally:
            self.connections.remove(one)
        return socket

    async def _handle(self, one: Connection, frame: Frame) -> None:
        handlers = {
            Auth: self._auth,
            PullMailbox: self._pull,
            PullHistory: self._history,
            SyncComplete: self._complete,
            SendMessage: self._send,
            EditMessage: self._send,
            RecallMessage: self._send,
            Ping: self._ping,
            GroupCreate: self._group,
            GroupGet: self._group,
            GroupAdd: self._group,
            GroupRemove: self._group,
            GroupLeave: self._group,
        }
        refusal = one.state.receive(frame)
        if refusal is not None:
            await self._fail(one, refusal.name, refusal.rid or 0)
            return
        handler = handlers.get(type(frame))
        if handler is not None:
            await handler(one, frame)
        if type(frame) is PullMailbox:
            one.state.pull_answered()
        elif type(frame) is PullHistory:
            one.state.history_answered()
        elif type(frame) not in (Auth, SyncComplete, Ping, Pong):
            one.state.request_answered()

    async def _auth(self, one: Connection, frame: Auth) -> None:
        await asyncio.sleep(self.faults.auth_delay_s)
        await self._sign_on(one, frame)
        if one.user:
            one.state.auth_accepted()
        else:
            one.state.auth_refused()

    async def _sign_on(self, one: Connection, frame: Auth) -> None:
        faults = self.faults
        if faults.refuse_auth:
            await self._fail(one, faults.refuse_auth, frame.rid)
            return
        last = int(frame.mailbox_cursor.split(".")[1]) if frame.mailbox_cursor else None
        if last is not None and (faults.expire or last < self.trim):
            await one.send(error("CURSOR_EXPIRED", "trimmed", frame.rid, rebuild_required=True))
            faults.expire = False
            return
        if faults.rebase and last is not None:
            faults.rebase = False
            cursor = f"c.{max(-1, last - 1)}"
            await one.send(
                error("CURSOR_REBASED", "moved", frame.rid, new_cursor=cursor, replay_from_seq=last)
            )
            return
        one.user, one.device = frame.access_token, frame.device_id
        after = self.watermark if last is None else last
        one.sync = SyncSession(last, self.watermark, self.trim)
        pending = sum(1 for event in self.log[one.user] if event.mailbox_seq > after)
        await one.send(
            AuthOk(
                rid=frame.rid,
                user_id=one.user,
                tenant_id="t",
                device_id=frame.device_id,
                session_epoch=1,
                connection_id="1",
                shard_epoch=1,
                lane_id=0,
                lane_watermark=self.watermark,
                trim_watermark=self.trim,
                after_seq=after,
                sync_to_seq=one.sync.sync_to_seq,
                has_offline=pending > 0,
                pending_entry_count_hint=pending,
                pending_bytes_hint=0,
                total_unread=0,
                total_mention=0,
                muted_unread=0,
                projection_complete=False,
                sync_delay_hint_ms=faults.sync_delay_ms,
                next_ping_interval_ms=1_000,
            )
        )

    async def _pull(self, one: Connection, frame: PullMailbox) -> None:
        if self.before_batch is not None:
            result = self.before_batch(one)
            if asyncio.iscoroutine(result):
                await result
        if self.faults.refuse_pulls:
            name, delay = self.faults.refuse_pulls.pop(0)
            await one.send(error(name, "no", frame.rid, retry_after_ms=delay))
            await one.socket.close()
            return
        try:
            one.sync.check_pull(frame.after_seq, frame.up_to_seq, self.watermark)
        except ProtocolError as failure:
            await one.send(error_for(failure, frame.rid))
            return
        found = [
            event
            for event in self.log[one.user]
            if frame.after_seq < event.mailbox_seq <= frame.up_to_seq and event.mailbox_seq > self.trim
        ]
        limit = min(frame.limit_entries, self.faults.batch_entries)
        entries = found[:limit]
        more = len(found) > limit
        covered = entries[-1].mailbox_seq if more else frame.up_to_seq
        position = one.sync.cover(frame.after_seq, covered)
        cursor = None if position is None else f"c.{position}"
        await one.send(MailboxBatch(frame.rid, entries, covered, self.watermark, more, cursor))
        one.batches += 1
        if self.faults.cut_after_batches and one.batches >= self.faults.cut_after_batches:
            self.faults.cut_after_batches = 0
            one.socket._writer.transport.abort()  # type: ignore[union-attr]

    async def _history(self, one: Connection, frame: PullHistory) -> None:
        if self.before_page is not None:
            result = self.before_page(frame)
            if asyncio.iscoroutine(result):
                await result
        name = self.faults.refuse_history.get(frame.conversation_id)
        if name is not None:
            await one.send(error(name, "scripted", frame.rid))
            return
        if self.faults.cut_after_pages and len(self.frames(PullHistory)) > self.faults.cut_after_pages:
            self.faults.cut_after_pages = 0
            one.socket._writer.transport.abort()  # type: ignore[union-attr]
            return
        messages = {one.conversation_seq: one for one in self.history[frame.conversation_id]}
        last = max(messages, default=0)
        limit = min(frame.limit, self.faults.history_page)
        walk = PageWalk(
            Scope(self.ranges.get(frame.conversation_id, ((0, None),)), last, last),
            PageQuery(frame.direction == "newer", frame.anchor, limit, 1 << 20),
        )
        while (span := walk.next_span(1_000)) is not None:
            walk.take(span, {seq: b"%d" % seq for seq in messages}, ())
        page = walk.page()
        await one.send(
            HistoryPage(
                frame.rid,
                frame.conversation_id,
                [messages[int(body)] for body in page.messages],
                [HistoryBreak(*part) for part in page.breaks],
                page.has_more,
                page.next_anchor,
                page.oldest_visible_seq,
                page.latest_seq,
            )
        )

    async def _complete(self, one: Connection, frame: SyncComplete) -> None:
        try:
            one.sync.check_complete(frame.sync_to_seq)
        except SyncVerdict as failure:
            one.state.completion_refused()
            await one.send(error_for(failure, frame.rid))
            return
        one.state.completion_accepted()
        one.online = True
        await one.send(OnlineReady(frame.rid, f"c.{one.sync.complete()}"))
        late = [event for event in self.log[one.user] if event.mailbox_seq > one.sync.sync_to_seq]
        if late:
            await one.send(PushEvents(late))

    async def _send(self, one: Connection, frame: SendMessage | EditMessage | RecallMessage) -> None:
        if self.faults.refuse_sends:
            name, delay = self.faults.refuse_sends.pop(0)
            await one.send(
                error(name, "no", frame.rid, retry_after_ms=delay, client_message_id=frame.client_message_id)
            )
            return
        key = (one.user, frame.client_message_id)
        known, body = self.sends.get(key), getattr(frame, "body", b"")
        if known is not None and known[1] != body:
            await one.send(error("CLIENT_MESSAGE_ID_CONFLICT", "other body", frame.rid))
            return
        fresh = known is None
        if known is None:
            peer = getattr(frame, "to_user_id", None)
            conversation = frame.conversation_id or direct_conversation_id("t", one.user, peer or "")
            members = self.members.setdefault(conversation, sorted({one.user, peer or one.user}))
            kind = _KINDS[type(frame)]
            change = (kind, frame.conversation_seq) if not isinstance(frame, SendMessage) else None
            event = self.store(conversation, one.user, body, members, frame.client_message_id, change)
            message = event.message
            ack = SendAck(
                0,
                frame.client_message_id,
                conversation,
                message.message_id,
                message.conversation_seq,
                message.committed_at,
            )
            known = self.sends[key] = (ack, body)
        if self.faults.drop_acks:
            self.faults.drop_acks -= 1
        else:
            await one.send(known[0]._replace(rid=frame.rid))
        if fresh:
            await self._push_last(self.members[known[0].conversation_id], one)

    async def _push_last(self, members: list[str], sender: Connection | None) -> None:
        if self.faults.drop_pushes:
            self.faults.drop_pushes -= 1
            return
        for one in list(self.connections):
            if one.online and one is not sender and one.user in members:
                events = self.log[one.user][-1:]
                if self.faults.reverse_pushes:
                    events = self.log[one.user][:-3:-1]
                for _ in range(self.faults.repeat_pushes):
                    await one.send(PushEvents(events))

    async def _ping(self, one: Connection, frame: Ping) -> None:
        if not self.faults.ignore_pings:
            await one.send(Pong(frame.rid, 1_000))

    async def _group(self, one: Connection, frame: GroupFrame) -> None:
        conversation = frame.conversation_id or "g"
        if isinstance(frame, GroupCreate):
            if conversation in self.members:
                await one.send(error("CONVERSATION_EXISTS", "there", frame.rid))
                return
            self.members[conversation] = [one.user, *frame.members]
        elif isinstance(frame, GroupAdd):
            self.members[conversation] += frame.user_ids
        elif isinstance(frame, GroupRemove | GroupLeave):
            gone = frame.user_ids if isinstance(frame, GroupRemove) else [one.user]
            self.members[conversation] = [who for who in self.members[conversation] if who not in gone]
        if self.faults.drop_group_answers:
            self.faults.drop_group_answers -= 1
            one.socket._writer.transport.abort()  # type: ignore[union-attr]
            return
        members = self.members.get(conversation, [])
        rows = [MemberRow(user, "member") for user in members]
        await one.send(
            GroupState(
                frame.rid,
                conversation,
                "group",
                "",
                1,
                "members",
                "invite",
                "joined",
                len(members),
                rows,
            )
        )

    async def _fail(self, one: Connection, name: str, rid: int) -> None:
        answer = error(name, "scripted", rid)
        await one.send(answer)
        await one.socket.close(code=4_000 + answer.code)


__all__ = ["Goodbye", "LiveLost", "ScriptedServer"]
