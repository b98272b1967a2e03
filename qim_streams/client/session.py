"""The client's side of a connection as a state machine that never touches a socket.

::

    OFFLINE --open--> AUTHENTICATING --AUTH_OK--> SYNCING --all pulled--> COMPLETING --ONLINE_READY--> ONLINE
                        ^        |
                        +--------+ CURSOR_REBASED (new cursor), CURSOR_EXPIRED or CURSOR_INVALID (none)

Frames go in by `receive`, time by `tick`; what to send collects in `frames`, what to show in `shown`,
and `cursor` is what to store. `closed` ends a connection; the next `open` goes on where it stood.

Invariants: the cursor changes only with MAILBOX_BATCH, ONLINE_READY or a verdict on AUTH, and only after
the events that it covers are in `shown`; PUSH_EVENTS never move it. A gap in the live stream ends in a
pull. An ERROR that the table calls terminal for the connection sets `ended`, and nothing is tried again.
After CURSOR_EXPIRED or CURSOR_INVALID every conversation waits for its history (`rebuild`).

Spec: §6, §7, §8 (0) (3) (6) (7). Scenarios A1 A4 A5 A7 A16 C14 I13.
"""

from collections.abc import Callable, Sequence
from typing import Any

from qim_streams.client.backoff import spread_ms
from qim_streams.client.coverage import Coverage
from qim_streams.client.deliveries import Delivery, Gap, Rebased, RebuildRequired, SyncFinished, SyncStarted
from qim_streams.client.heartbeat import Heartbeat
from qim_streams.client.inbox import Inbox
from qim_streams.client.local_events import history_event, own_event
from qim_streams.client.options import SessionOptions
from qim_streams.client.phases import Answered, Broken, Phase, ended_here
from qim_streams.client.pulls import Part
from qim_streams.client.sends import SendQueue
from qim_streams.client.store import LocalState, Rebuild
from qim_streams.ids import event_id
from qim_streams.wire.codes import BY_CODE
from qim_streams.wire.frames import (
    Auth,
    AuthOk,
    ClientFrame,
    Error,
    Goodbye,
    LiveLost,
    MailboxBatch,
    Message,
    OnlineReady,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    SendAck,
    ServerFrame,
    SyncComplete,
)


class Session:
    """One device across its connections. `random` gives numbers in [0, 1) for jitter.

    `state` is what the device kept. `owner` says whose state this is: a sign-on as somebody else ends it.
    """

    def __init__(
        self,
        device_id: str,
        options: SessionOptions,
        random: Callable[[], float],
        state: LocalState | None = None,
    ) -> None:
        kept = state or LocalState()
        self.device_id, self.options = device_id, options
        self.cursor, self.owner, self.rebuild = kept.cursor, kept.owner, kept.rebuild
        self.inbox = Inbox(kept.positions, history=kept.history)
        self.inbox.reads_unknown = kept.rebuild is not Rebuild.NONE
        self.gaps: list[Gap] = []  # marked since the store last took them
        self.sends = SendQueue(
            options.inflight_max, options.per_conversation_inflight, options.waiting_max, options.answer_ms
        )
        self.phase = Phase.OFFLINE
        self.auth: AuthOk | None = None
        self.frames: list[ClientFrame] = []
        self.shown: list[Delivery] = []
        self.ended: Error | None = None
        self.broken: Broken | None = None
        self.goodbye: Goodbye | None = None
        self.coverage = Coverage(
            options.gap_grace_ms, options.checkpoint_events, options.checkpoint_interval_ms
        )
        self._random = random
        self._token = ""
        self._resumes: int | None = None  # the session_epoch that this device had last
        self._rid = self._control_rid = 0  # the latter: of AUTH, then of SYNC_COMPLETE
        self._parts: dict[int, Part] = {}
        self._calls: dict[int, Answered] = {}
        self._backfill: tuple[int, int] | None = None  # (shard_epoch, pulled_to) of a first sync cut short
        self._now_ms = self._control_ms = 0
        self._heartbeat = Heartbeat()
        self._paused = self._lost_early = False
        self.handlers: dict[type, Callable[[Any], None]] = {
            PushEvents: self._on_push,
            SendAck: self._on_ack,
            MailboxBatch: self._on_batch,
            AuthOk: self._on_auth_ok,
            OnlineReady: self._on_online,
            LiveLost: self._on_live_lost,
            Error: self._on_error,
            Ping: lambda frame: self.frames.append(Pong(frame.rid)),
            Pong: self._on_pong,
            Goodbye: self._on_goodbye,
        }

    # -- what the owner calls

    def open(self, access_token: str, now_ms: int) -> None:
        """A socket is connected: queue AUTH."""
        self._now_ms = now_ms
        self._heartbeat.restart(now_ms)
        self.broken = self.goodbye = None
        self._token = access_token
        self._authenticate()

    def receive(self, frame: ServerFrame, now_ms: int) -> None:
        """Take a frame. ProtocolError: the server broke the protocol, close the connection."""
        self._now_ms = now_ms
        self._heartbeat.heard(now_ms)
        self.inbox.counters.frames += 1
        self.handlers.get(type(frame), self.answered)(frame)

    def tick(self, now_ms: int) -> None:
        """Do what is due: pings, repeats, pulls. Call it a few times a second."""
        self._now_ms = now_ms
        if self.phase is Phase.OFFLINE:
            return
        if self._paused:
            self._control_ms = self.coverage.progress_ms = now_ms
            self._heartbeat.heard(now_ms)
        if self._heartbeat.is_dead(now_ms):
            self.broken = Broken("nothing came from the server for too long", 0)
            return
        if self._heartbeat.is_due(now_ms):
            self.frames.append(Ping(self.next_rid()))
        if self._is_stuck():
            self.broken = Broken(f"no answer while {self.phase.value}", 0)
            return
        if self.auth is not None:
            self.sends.overdue(now_ms)
            self.pump()
        if self.phase is Phase.ONLINE:
            self.coverage.tick(now_ms)
        self._ask()

    def _is_stuck(self) -> bool:
        late_ms = self._now_ms - self.options.answer_ms
        if self.phase in (Phase.AUTHENTICATING, Phase.COMPLETING):
            return self._control_ms < late_ms
        return self.coverage.is_pulling and self.coverage.progress_ms < late_ms

    def closed(self) -> None:
        """The connection is over: calls fail, messages in flight go back to be sent again."""
        if self.auth and self.cursor is None and self.phase in (Phase.SYNCING, Phase.COMPLETING):
            self._backfill = (self.auth.shard_epoch, self.coverage.pulled_to)
        self.phase, self.auth, self._rid = Phase.OFFLINE, None, 0
        self.frames, self._parts = [], {}
        self.coverage.stop()
        self.inbox.disconnected()
        self.sends.disconnected()
        calls, self._calls = self._calls, {}
        for answered in calls.values():
            answered(None)

    def call(self, make: Callable[[int], ClientFrame], answered: Answered) -> int:
        """Queue a request; its answer, or the ERROR in its place, goes to `answered`."""
        rid = self.next_rid()
        self._calls[rid] = answered
        self.frames.append(make(rid))
        return rid

    def forget_call(self, rid: int) -> None:
        """The caller no longer waits for the answer of a `call`."""
        self._calls.pop(rid, None)

    def pump(self) -> None:
        """Queue the sends that may go now."""
        if self.auth is not None:
            self.frames.extend(self.sends.frames(self._now_ms, self.next_rid))

    def checkpoint(self) -> None:
        """Pull up to the watermark now (when online), so that the cursor moves."""
        if self.phase is Phase.ONLINE:
            self.coverage.want(self._now_ms)
            self._ask()

    def pause(self, paused: bool) -> None:
        """The owner does not read the socket for a while: silence says nothing about the server."""
        self._paused = paused

    def next_rid(self) -> int:
        """A request id that is free on this connection."""
        self._rid = self._rid % (2**32 - 1) + 1
        return self._rid

    # -- history

    def take_history(self, conversation_id: str, messages: Sequence[Message], through: int) -> None:
        """The next stretch of a conversation's history, complete up to the seq `through`."""
        user_id = self.user_id
        events = [history_event(message, user_id) for message in messages]
        self.shown.extend(self.inbox.read(conversation_id, events, through))

    def close_history(self, conversation_id: str, reason: str | None) -> Gap | None:
        """The history of a conversation ends here: for good, or (with a `reason`) with a gap."""
        shown, gap = self.inbox.close_history(conversation_id, reason)
        self.shown.extend(shown)
        if gap is not None:
            self.gaps.append(gap)
        self._watch_gap()
        return gap

    @property
    def user_id(self) -> str:
        """The user of the latest AUTH_OK or of the kept state; empty before either."""
        return self.owner.split("/")[1] if self.owner else ""

    # -- sign-on and sync

    def _authenticate(self) -> None:
        self.phase, self._control_ms, self._control_rid = Phase.AUTHENTICATING, self._now_ms, self.next_rid()
        auth = Auth(self._control_rid, self._token, self.device_id, self.cursor)
        self.frames.append(auth._replace(platform=self.options.platform or None, resumes=self._resumes))

    def _on_auth_ok(self, frame: AuthOk) -> None:
        owner = f"{frame.tenant_id}/{frame.user_id}/{self.device_id}"
        if self.owner not in (None, owner):
            detail = f"the store is of {self.owner}, the token of {owner}: use another store"
            self.ended = ended_here("WRONG_STORE", detail)
            return
        self.owner, self.auth, self.phase, self._resumes = owner, frame, Phase.SYNCING, frame.session_epoch
        self._heartbeat.set_interval(frame.next_ping_interval_ms, self._now_ms)
        after = frame.after_seq
        first = self.cursor is None and self.rebuild is Rebuild.NONE
        if first and self.options.first_sync == "mailbox":
            after = min(self._backfill_start(frame), frame.sync_to_seq)
        self.coverage.restart(after, frame.lane_watermark)
        self.inbox.restart_at(after)
        self.shown.append(SyncStarted(after, frame.sync_to_seq, frame.pending_entry_count_hint))
        delay_ms = spread_ms(frame.sync_delay_hint_ms, self._random())
        if self.coverage.begin(frame.sync_to_seq, self._now_ms, delay_ms):
            self._ask()
        else:
            self._complete()
        self.pump()

    def _backfill_start(self, frame: AuthOk) -> int:
        if self._backfill is not None and self._backfill[0] == frame.shard_epoch:
            return max(frame.trim_watermark, self._backfill[1])
        return frame.trim_watermark

    def _complete(self) -> None:
        assert self.auth is not None
        self.phase, self._control_ms, self._control_rid = Phase.COMPLETING, self._now_ms, self.next_rid()
        self.frames.append(SyncComplete(self._control_rid, self.auth.sync_to_seq))

    def _on_online(self, frame: OnlineReady) -> None:
        assert self.auth is not None
        if self.phase is not Phase.COMPLETING:
            return
        self.phase, self.cursor, self._backfill = Phase.ONLINE, frame.cursor, None
        self.coverage.reset_checkpoint(self._now_ms)
        self.shown.append(SyncFinished(self.auth.sync_to_seq))
        if self._lost_early:
            self._lost_early = False
            self.checkpoint()

    def _on_auth_error(self, frame: Error) -> None:
        if frame.name == "CURSOR_REBASED" and frame.new_cursor:
            self.cursor = frame.new_cursor
            self.shown.append(Rebased(-1 if frame.replay_from_seq is None else frame.replay_from_seq))
            self._authenticate()
        elif frame.name in ("CURSOR_EXPIRED", "CURSOR_INVALID") and self.cursor is not None:
            self._rebuild(frame.name)
            self._authenticate()
        else:
            self._end(frame)

    def _rebuild(self, reason: str) -> None:
        """From here on every conversation waits for its history; who reads it is the owner's business."""
        self.cursor = self._backfill = None
        self.rebuild, self.inbox.reads_unknown = Rebuild.REQUIRED, True
        self.inbox.open_all()
        self.shown.append(RebuildRequired(reason))

    # -- pulls

    def _ask(self) -> None:
        entries, size = self.options.pull_entries, self.options.pull_bytes
        for part in self.coverage.requests(self._now_ms):
            rid = self.next_rid()
            self._parts[rid] = part
            self.frames.append(PullMailbox(rid, part.at, part.up_to, entries, size))

    def _on_batch(self, frame: MailboxBatch) -> None:
        part = self._parts.pop(frame.rid, None)
        if part is None:
            self.answered(frame)
            return
        for stretch in self.coverage.answer(part, frame, self._now_ms):
            self.shown.extend(self.inbox.pulled(stretch.events, stretch.covered))
        if frame.cursor is not None:
            self.cursor = frame.cursor
        if not self.coverage.is_pulling:
            if self.phase is Phase.SYNCING:
                self._complete()
            else:
                self._watch_gap()
                self.coverage.ended(self.inbox.has_gap, self._now_ms)
        self._ask()

    def _on_pull_error(self, part: Part, frame: Error) -> None:
        if frame.name in ("CURSOR_EXPIRED", "CURSOR_INVALID"):
            self._rebuild(frame.name)
            self.broken = Broken(frame.name, 0)
        elif frame.temporary:
            self.coverage.refused(part, frame, self._now_ms, self._random())
        else:
            self.broken = Broken(f"{frame.name}: {frame.detail}", 0)

    # -- live

    def _on_push(self, frame: PushEvents) -> None:
        events = frame.events
        self.shown.extend(self.inbox.pushed(events))
        if events:
            self.coverage.heard(events[-1].mailbox_seq, len(events))
        self._watch_gap()

    def _on_live_lost(self, frame: LiveLost) -> None:
        self.coverage.heard(frame.lane_watermark, 0)
        self._lost_early = self.phase is not Phase.ONLINE
        self.checkpoint()

    def _watch_gap(self) -> None:
        inbox = self.inbox
        if inbox.held or self.coverage.watches_gap:
            self.coverage.watch_gap(inbox.has_gap, not inbox.held_pushed, inbox.is_full, self._now_ms)

    # -- sends, calls, errors

    def _on_ack(self, frame: SendAck) -> None:
        message = self.sends.acked(frame)
        if message is None:
            return
        assert self.auth is not None
        if message.settled is not None:
            message.settled(message, frame)
        user_id = self.auth.user_id
        own_id, event = event_id(frame.message_id, user_id, message.kind), None
        if self.options.echo_own:
            event = own_event(frame, user_id, message.body, message.kind, message.target_seq)
        self.shown.extend(self.inbox.own(frame.conversation_id, frame.conversation_seq, own_id, event))
        self.coverage.heard(-1, 1)
        self._watch_gap()
        self.pump()

    def answered(self, frame: ServerFrame) -> None:
        """A frame that is the answer to a `call`, if anybody still waits for it."""
        answered = self._calls.pop(getattr(frame, "rid", -1), None)
        if answered is not None:
            answered(frame)

    def _on_error(self, frame: Error) -> None:
        row = BY_CODE.get(frame.code)
        control = frame.rid == self._control_rid
        if self.phase is Phase.AUTHENTICATING and (control or frame.rid is None):
            self._on_auth_error(frame)
        elif row is not None and row.closes:
            self._end(frame)
        elif frame.rid in self._parts:
            self._on_pull_error(self._parts.pop(frame.rid), frame)
        elif frame.rid in self._calls:
            self.answered(frame)
        elif self.phase is Phase.COMPLETING and control:
            self.broken = Broken(f"{frame.name}: {frame.detail}", frame.retry_after_ms or 0)
        else:
            message = self.sends.refused(frame, self._now_ms, self._random())
            if message is not None and message.settled is not None:
                message.settled(message, frame)
            self.pump()

    def _end(self, frame: Error) -> None:
        if frame.temporary:
            self.broken = Broken(f"{frame.name}: {frame.detail}", frame.retry_after_ms or 0)
        else:
            self.ended = frame

    def _on_pong(self, frame: Pong) -> None:
        if frame.next_ping_interval_ms is not None:
            self._heartbeat.set_interval(frame.next_ping_interval_ms, self._now_ms)

    def _on_goodbye(self, frame: Goodbye) -> None:
        self.goodbye = frame
        self.broken = Broken(frame.reason, frame.retry_after_ms)
