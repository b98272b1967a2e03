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

Spec: §6, §7, §8 (step 0). Scenarios A1 A4 A5 A7 C14 I13.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from qim_streams.client.coverage import Coverage
from qim_streams.client.deliveries import Delivery, RebuildRequired, SyncFinished, SyncStarted
from qim_streams.client.inbox import Inbox
from qim_streams.client.options import SessionOptions
from qim_streams.client.pulls import Part
from qim_streams.client.sends import Outgoing, SendQueue
from qim_streams.ids import event_id
from qim_streams.records import KIND_MESSAGE, SENDER_FLAGS, STATE_NORMAL
from qim_streams.wire.codes import BY_CODE
from qim_streams.wire.frames import (
    Auth,
    AuthOk,
    ClientFrame,
    Error,
    Event,
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
from qim_streams.wire.frames_group import GroupFrame, GroupState

PING_INTERVAL_MIN_MS = 1_000
PING_INTERVAL_DEFAULT_MS = 30_000
PEER_DEAD_MS = 15_000  # silence beyond the ping interval


class Phase(Enum):
    """Where a connection is."""

    OFFLINE = "offline"
    AUTHENTICATING = "authenticating"
    SYNCING = "syncing"
    COMPLETING = "completing"
    ONLINE = "online"


@dataclass(frozen=True, slots=True)
class Broken:
    """Why the connection should be closed now; another one is tried after `retry_after_ms`."""

    reason: str
    retry_after_ms: int


class Session:
    """One device across its connections. `random` gives numbers in [0, 1) for jitter."""

    def __init__(
        self,
        device_id: str,
        options: SessionOptions,
        random: Callable[[], float],
        cursor: str | None = None,
        positions: dict[str, int] | None = None,
    ) -> None:
        self.device_id, self.options, self.cursor = device_id, options, cursor
        self.inbox = Inbox(positions)
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
        self._rid = self._control_rid = 0  # the latter: of AUTH, then of SYNC_COMPLETE
        self._parts: dict[int, Part] = {}
        self._calls: dict[int, Callable[[GroupState | Error | None], None]] = {}
        self._backfill: tuple[int, int] | None = None  # (shard_epoch, pulled_to) of a first sync cut short
        self._now_ms = self._heard_ms = self._ping_due_ms = self._control_ms = 0
        self._ping_interval_ms = PING_INTERVAL_DEFAULT_MS
        self._paused = self._lost_early = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            PushEvents: self._on_push,
            SendAck: self._on_ack,
            MailboxBatch: self._on_batch,
            AuthOk: self._on_auth_ok,
            OnlineReady: self._on_online,
            LiveLost: self._on_live_lost,
            GroupState: self._on_group_state,
            Error: self._on_error,
            Ping: lambda frame: self.frames.append(Pong(frame.rid)),
            Pong: self._on_pong,
            Goodbye: self._on_goodbye,
        }

    # -- what the owner calls

    def open(self, access_token: str, now_ms: int) -> None:
        """A socket is connected: queue AUTH."""
        self._now_ms = self._heard_ms = now_ms
        self._ping_due_ms = now_ms + self._ping_interval_ms
        self.broken = self.goodbye = None
        self._token = access_token
        self._authenticate()

    def receive(self, frame: ServerFrame, now_ms: int) -> None:
        """Take a frame. ProtocolError: the server broke the protocol, close the connection."""
        self._now_ms = self._heard_ms = now_ms
        self.inbox.counters.frames += 1
        self._handlers[type(frame)](frame)

    def tick(self, now_ms: int) -> None:
        """Do what is due: pings, repeats, pulls. Call it a few times a second."""
        self._now_ms = now_ms
        if self.phase is Phase.OFFLINE:
            return
        if self._paused:
            self._heard_ms = self._control_ms = self.coverage.progress_ms = now_ms
        if now_ms - self._heard_ms > self._ping_interval_ms + PEER_DEAD_MS:
            self.broken = Broken("nothing came from the server for too long", 0)
            return
        if now_ms >= self._ping_due_ms:
            self._ping_due_ms = now_ms + self._ping_interval_ms
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
        if self.phase in (Phase.AUTHENTICATING, Phase.COMPLETING):
            return self._now_ms - self._control_ms > self.options.answer_ms
        return self.coverage.is_pulling and self._now_ms - self.coverage.progress_ms > self.options.answer_ms

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

    def send(self, message: Outgoing) -> None:
        """Take a message to send; AdmissionRefused when too many wait."""
        self.sends.add(message)
        self.pump()

    def call(
        self, make: Callable[[int], GroupFrame], answered: Callable[[GroupState | Error | None], None]
    ) -> int:
        """Queue a group frame; `answered` gets the answer, or None when the connection ends first."""
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

    # -- sign-on and sync

    def _authenticate(self) -> None:
        self.phase, self._control_ms, self._control_rid = Phase.AUTHENTICATING, self._now_ms, self.next_rid()
        self.frames.append(Auth(self._control_rid, self._token, self.device_id, self.cursor))

    def _on_auth_ok(self, frame: AuthOk) -> None:
        self.auth, self.phase = frame, Phase.SYNCING
        self._set_ping_interval(frame.next_ping_interval_ms)
        after = frame.after_seq
        if self.cursor is None and self.options.first_sync == "mailbox":
            after = min(self._backfill_start(frame), frame.sync_to_seq)
        self.coverage.restart(after, frame.lane_watermark)
        self.inbox.restart_at(after)
        self.shown.append(SyncStarted(after, frame.sync_to_seq, frame.pending_entry_count_hint))
        if self.coverage.begin(frame.sync_to_seq, self._now_ms, frame.sync_delay_hint_ms):
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
            self._authenticate()
        elif frame.name in ("CURSOR_EXPIRED", "CURSOR_INVALID") and self.cursor is not None:
            self._rebuild(frame.name)
            self._authenticate()
        else:
            self._end(frame)

    def _rebuild(self, reason: str) -> None:
        self.cursor = self._backfill = None
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
        own_id = event_id(frame.message_id, self.auth.user_id)
        event = self._own_event(frame, message, own_id) if self.options.echo_own else None
        self.shown.extend(self.inbox.own(frame.conversation_id, frame.conversation_seq, own_id, event))
        self.coverage.heard(-1, 1)
        self._watch_gap()
        if message.settled is not None:
            message.settled(message, frame)
        self.pump()

    def _own_event(self, ack: SendAck, message: Outgoing, own_id: bytes) -> Event:
        assert self.auth is not None
        body = Message(
            ack.message_id,
            ack.conversation_id,
            ack.conversation_seq,
            self.auth.user_id,
            KIND_MESSAGE,
            STATE_NORMAL,
            ack.committed_at,
            message.body,
        )
        return Event(-1, 0, own_id, SENDER_FLAGS, 0, body, message.client_message_id)

    def _on_group_state(self, frame: GroupState) -> None:
        answered = self._calls.pop(frame.rid, None)
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
            self._calls.pop(frame.rid)(frame)
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
            self._set_ping_interval(frame.next_ping_interval_ms)

    def _set_ping_interval(self, interval_ms: int) -> None:
        self._ping_interval_ms = max(PING_INTERVAL_MIN_MS, interval_ms)
        self._ping_due_ms = min(self._ping_due_ms, self._now_ms + self._ping_interval_ms)

    def _on_goodbye(self, frame: Goodbye) -> None:
        self.goodbye = frame
        self.broken = Broken(frame.reason, frame.retry_after_ms)
