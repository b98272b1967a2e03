"""A server as one device sees it, without sockets: conversations, one mailbox, history, cursors, trim.

It answers frames at once and keeps what it pushes in order; the machine decides what becomes of the
frames on their way. Rules that exist as pure code (`SyncSession`, `PageWalk`) are used, not copied.

Spec: §3 (5), §7, §8.
"""

from collections import defaultdict

from qim_streams.errors import ProtocolError, SyncVerdict
from qim_streams.history.rules import HistoryPage, PageQuery, PageWalk, Scope
from qim_streams.ids import event_id
from qim_streams.records import RECIPIENT_FLAGS, SENDER_FLAGS
from qim_streams.sync.session import SyncSession
from qim_streams.wire.answers import error, error_for
from qim_streams.wire.frames import (
    Auth,
    AuthOk,
    ClientFrame,
    Event,
    LiveLost,
    MailboxBatch,
    Message,
    OnlineReady,
    PullMailbox,
    PushEvents,
    SendAck,
    SendMessage,
    ServerFrame,
    SyncComplete,
)

ME = "me"
BATCH = 3


class ModelServer:
    """`wire` holds the frames on their way to the device. `epoch` rises with each takeover."""

    def __init__(self) -> None:
        self.wire: list[ServerFrame] = []
        self.said: dict[str, list[tuple[Message, bool]]] = defaultdict(list)  # (message, is for me)
        self.log: list[Event] = []
        self.watermark = self.trim = -1
        self.epoch = 1
        self.sync: SyncSession | None = None
        self.online = False
        self._acks: dict[str, SendAck] = {}

    # -- what happens

    def say(self, conversation: str, sender: str, for_me: bool, skip: int, own: str | None = None) -> Message:
        """A message is committed and MAILBOXED; `skip` mailbox numbers are other users'."""
        seq = len(self.said[conversation]) + 1
        message_id = f"{conversation}#{seq}".encode().ljust(16, b".")
        body = f"{conversation}{seq}".encode()
        message = Message(message_id, conversation, seq, sender, 0, 0, 1, body)
        self.said[conversation].append((message, for_me))
        self.watermark += 1 + skip
        if for_me:
            flags = SENDER_FLAGS if sender == ME else RECIPIENT_FLAGS
            event = Event(self.watermark, 0, event_id(message_id, ME), flags, 0, message, own)
            self.log.append(event)
            if self.online and own is None:
                self.wire.append(PushEvents([event]))
        return message

    def cut(self) -> None:
        """The connection ends; what was on its way is lost."""
        self.wire.clear()
        self.sync, self.online = None, False

    def visible(self, conversation: str) -> list[int]:
        """The seqs of a conversation that are for this user."""
        return [message.conversation_seq for message, for_me in self.said[conversation] if for_me]

    def history(self, conversation: str, anchor: int, limit: int) -> tuple[list[Message], HistoryPage]:
        """A page of history, newer than `anchor`."""
        said = self.said[conversation]
        ranges = tuple((seq - 1, seq) for seq in self.visible(conversation))
        if not ranges:
            return [], HistoryPage([], [], False, anchor, 0, 0)
        walk = PageWalk(Scope(ranges, len(said), len(said)), PageQuery(True, anchor, limit, 1 << 20))
        while (span := walk.next_span(2)) is not None:
            walk.take(span, {seq: str(seq).encode() for seq in range(span.low, span.high + 1)}, ())
        page = walk.page()
        return [said[int(body) - 1][0] for body in page.messages], page

    # -- the protocol

    def handle(self, frame: ClientFrame) -> None:
        """Answer one frame; what is not needed here (PING) has no answer."""
        if isinstance(frame, Auth):
            self._auth(frame)
        elif isinstance(frame, PullMailbox):
            self._pull(frame)
        elif isinstance(frame, SyncComplete):
            self._complete(frame)
        elif isinstance(frame, SendMessage):
            self._send(frame)

    def cursor(self, position: int) -> str:
        """A cursor of the present epoch."""
        return f"{self.epoch}.{position}"

    def position(self, cursor: str) -> int:
        """What a cursor claims."""
        return int(cursor.partition(".")[2])

    def lose(self) -> None:
        """The live stream says that it has a gap."""
        if self.online:
            self.wire.append(LiveLost("slow_reader", self.watermark))

    def _auth(self, frame: Auth) -> None:
        last = self.position(frame.mailbox_cursor) if frame.mailbox_cursor else None
        if last is not None and last < self.trim:
            self.wire.append(error("CURSOR_EXPIRED", "trimmed", frame.rid, rebuild_required=True))
            return
        if frame.mailbox_cursor and not frame.mailbox_cursor.startswith(f"{self.epoch}."):
            assert last is not None
            back = max(self.trim, last - 2)  # a boundary below the position: entries come again
            refusal = error(
                "CURSOR_REBASED", "", frame.rid, new_cursor=self.cursor(back), replay_from_seq=back + 1
            )
            self.wire.append(refusal)
            return
        after = self.watermark if last is None else last
        self.sync = SyncSession(last, self.watermark, self.trim)
        self.wire.append(self._auth_ok(frame, after))

    def _auth_ok(self, frame: Auth, after: int) -> AuthOk:
        return AuthOk(
            rid=frame.rid,
            user_id=ME,
            tenant_id="t",
            device_id=frame.device_id,
            session_epoch=1,
            connection_id="1",
            shard_epoch=self.epoch,
            lane_id=0,
            lane_watermark=self.watermark,
            trim_watermark=self.trim,
            after_seq=after,
            sync_to_seq=self.watermark,
            has_offline=False,
            pending_entry_count_hint=0,
            pending_bytes_hint=0,
            total_unread=0,
            total_mention=0,
            muted_unread=0,
            projection_complete=False,
            sync_delay_hint_ms=0,
            next_ping_interval_ms=86_400_000,
        )

    def _pull(self, frame: PullMailbox) -> None:
        if self.sync is None:
            return
        try:
            self.sync.check_pull(frame.after_seq, frame.up_to_seq, self.watermark)
            if frame.after_seq < self.trim:
                raise SyncVerdict("CURSOR_EXPIRED", "trimmed", rebuild_required=True)
        except (ProtocolError, SyncVerdict) as failure:
            self.wire.append(error_for(failure, frame.rid))
            return
        found = [one for one in self.log if frame.after_seq < one.mailbox_seq <= frame.up_to_seq]
        more = len(found) > BATCH
        covered = found[BATCH - 1].mailbox_seq if more else frame.up_to_seq
        position = self.sync.cover(frame.after_seq, covered)
        cursor = None if position is None else self.cursor(position)
        self.wire.append(MailboxBatch(frame.rid, found[:BATCH], covered, self.watermark, more, cursor))

    def _complete(self, frame: SyncComplete) -> None:
        if self.sync is None:
            return
        try:
            self.sync.check_complete(frame.sync_to_seq)
        except SyncVerdict as failure:
            self.wire.append(error_for(failure, frame.rid))
            return
        self.online = True
        self.wire.append(OnlineReady(frame.rid, self.cursor(self.sync.complete())))
        late = [one for one in self.log if one.mailbox_seq > self.sync.sync_to_seq]
        self.wire.extend(PushEvents([one]) for one in late)

    def _send(self, frame: SendMessage) -> None:
        ack = self._acks.get(frame.client_message_id)
        if ack is None:
            assert frame.conversation_id is not None
            message = self.say(frame.conversation_id, ME, True, 0, frame.client_message_id)
            ack = self._acks[frame.client_message_id] = SendAck(
                0,
                frame.client_message_id,
                frame.conversation_id,
                message.message_id,
                message.conversation_seq,
                1,
            )
        self.wire.append(ack._replace(rid=frame.rid))
