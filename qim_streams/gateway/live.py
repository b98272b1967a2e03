"""The live stream of one connection: what is pushed, when it is held, and how gaps are closed.

Events come from the push log; a *fill* reads a stretch of the mailbox and sends it as push. The promise:
**above sync_to_seq every event is sent once, in order, or the client is told LIVE_LOST.**

::

    HOLDING --online and ready--> FILLING --filled--> FLOWING
       ^                             ^                   |
       +---- another owner pushes ---+------ ready ------+
    FLOWING, FILLING --slow reader--> LOST --pulled past the loss--> FILLING

Why nothing is missing. `position` is the place up to which everything was sent, by pull (sync_to_seq at
the start) or by push. PresenceReady{from_seq} says that its sender, the owner of the user's MailboxShard,
pushes every entry above from_seq. So (position, from_seq] is filled from the store, and what is above
comes by push. What arrives before the fill is done is held; if that is more than `held_bytes_max`, it is
dropped and the fill goes further, up to the last event that was dropped (`owed`): push follows W, so the
event is in the store. An owner with a newer epoch starts this anew: its pushes are held until its own
PresenceReady, and the fill from `position` closes whatever gap its predecessor left.

Where the push log does not tell (it cannot be read, nobody promises), somebody who sees W in the store says
`behind`: the stretch up to W is filled, and the stream goes back to what it was. What the log brings of it
afterwards is at or below `position`.

Why nothing comes twice. What is at or below `position` is dropped: it was pulled, filled or pushed.
A fill finds only what was not pushed before, because PresenceReady lies in the same log behind all
earlier pushes of its sender, and older owners are ignored once a newer one was heard.

Pure: no I/O, no clock. The owner of the stream runs the fill and calls back.

Spec: §6, §7.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from qim_streams.sync.pull import PulledEvent
from qim_streams.sync.session import SyncSession

EVENT_OVERHEAD: Final = 200  # bytes that a held event costs besides its common body
_SEQ_END: Final = 1 << 32  # an event_ordinal above all others


class Phase(Enum):
    """What happens to an event that is pushed."""

    HOLDING = "holding"
    FILLING = "filling"
    FLOWING = "flowing"
    LOST = "lost"


class Fill(NamedTuple):
    """Send (after_seq, up_to_seq] of the mailbox (nothing, if empty) and call `LiveStream.filled`."""

    after_seq: int
    up_to_seq: int


class LiveStream:
    """See the module text."""

    __slots__ = (
        "_epoch",
        "_held",
        "_max",
        "_online",
        "_place",
        "_pulls",
        "_repair",
        "held_bytes",
        "is_ready",
        "owed",
        "phase",
    )

    def __init__(self, sync_to_seq: int, held_bytes_max: int) -> None:
        self.phase = Phase.HOLDING
        self.owed = -1  # the largest seq that a fill has to reach
        self.is_ready = False  # whether the PresenceReady of the present owner has come
        self.held_bytes = 0
        self._epoch = -1
        self._online = False
        self._place = (sync_to_seq, _SEQ_END)
        self._max = held_bytes_max
        self._held: list[PulledEvent] = []
        self._pulls = SyncSession(sync_to_seq, sync_to_seq, -1)  # what pulls alone have covered
        self._repair: SyncSession | None = None

    @property
    def position(self) -> int:
        """Everything below this seq was sent, and at it everything that was pushed so far."""
        return self._place[0]

    def push(self, epoch: int, events: Sequence[PulledEvent]) -> Sequence[PulledEvent]:
        """Events of the shard owner `epoch`, in the order of the push log; returns those to send now."""
        if not self._heard(epoch):
            return ()
        if self.phase is Phase.FLOWING:
            return self._in_order(events)
        fresh = [event for event in events if _place(event) > self._place]
        if not fresh:
            return ()
        if self.phase is Phase.LOST:
            self.owed = max(self.owed, fresh[-1].mailbox_seq)
            return ()
        self._held += fresh
        self.held_bytes += sum(len(event.common_body) + EVENT_OVERHEAD for event in fresh)
        if self.held_bytes > self._max:
            self._drop_held()
        return ()

    def ready(self, epoch: int, from_seq: int) -> Fill | None:
        """PresenceReady of the shard owner `epoch` has come."""
        if not self._heard(epoch):
            return None
        self.is_ready = True
        self.owed = max(self.owed, from_seq)
        return self._start() if self.phase in (Phase.HOLDING, Phase.FLOWING) else None

    def online(self) -> Fill | None:
        """ONLINE_READY was sent."""
        self._online = True
        return self._start() if self.phase is Phase.HOLDING else None

    def filled(self, through_seq: int) -> Fill | Sequence[PulledEvent]:
        """The fill has sent everything up to `through_seq`: what is still to fill, or the events that
        were held and are to be sent now. Only in phase FILLING."""
        self._place = max(self._place, (through_seq, _SEQ_END))
        if self.owed > self._place[0]:
            return Fill(self._place[0], self.owed)
        # An owner that was heard meanwhile has not promised anything yet: go on holding.
        if not self.is_ready:
            self.phase = Phase.HOLDING
            return ()
        self.phase = Phase.FLOWING
        held, self._held, self.held_bytes = self._held, [], 0
        return self._in_order(held)

    def lose(self, up_to_seq: int) -> int:
        """The client reads too slowly, or a fill failed: nothing is sent until it has pulled.

        `up_to_seq`: the last event that is known to be lost. Returns the lane_watermark for LIVE_LOST:
        the client has to pull at least up to there.
        """
        self._drop_held()
        self.phase = Phase.LOST
        self._place = max(self._place, (self._pulls.prefix, _SEQ_END))
        self.owed = max(self.owed, up_to_seq, self._place[0])
        self._repair = SyncSession(self._place[0], self.owed, -1)
        return self.owed

    def pulled(self, after_seq: int, through_seq: int) -> Fill | None:
        """A MAILBOX_BATCH was sent. A lost stream goes on once pulls have covered what was lost: from the
        push position on, or without a gap since the login, whatever was pushed in between."""
        self._pulls.cover(after_seq, through_seq)
        if self.phase is not Phase.LOST or self._repair is None:
            return None
        self._repair.cover(after_seq, through_seq)
        covered = max(self._repair.prefix, self._pulls.prefix)
        if covered < self._repair.sync_to_seq:
            return None
        self._place = max(self._place, (covered, _SEQ_END))
        self._repair = None
        self.phase = Phase.HOLDING
        return self._start()

    @property
    def may_fill(self) -> bool:
        """Whether it is online and nothing is under way: what `behind` needs."""
        return self._online and self.phase in (Phase.HOLDING, Phase.FLOWING)

    def behind(self, watermark: int) -> Fill | None:
        """W of the user's lane was seen at `watermark`, and the push log may not tell: fill up to there."""
        if not self.may_fill or watermark <= self._place[0]:
            return None
        self.owed = max(self.owed, watermark)
        self.phase = Phase.FILLING
        return Fill(self._place[0], self.owed)

    def nothing_until(self, through_seq: int) -> None:
        """The mailbox was seen to have nothing from `position` up to `through_seq`, which W covers."""
        if self.may_fill:
            self._place = max(self._place, (through_seq, _SEQ_END))

    def interrupted(self) -> None:
        """The connection got another connection_id: hold what comes until PresenceReady names it."""
        self.is_ready = False
        if self.phase is Phase.FLOWING:
            self.phase = Phase.HOLDING

    def moved(self, through_seq: int) -> None:
        """The user has another shard: what the old one has up to `through_seq` is filled, and what comes
        above is held until the new one's owner has promised it. Epochs of the two do not compare."""
        self.interrupted()
        self._epoch = -1
        self.owed = max(self.owed, through_seq)

    def _heard(self, epoch: int) -> bool:
        """Whether the sender is the newest owner heard of; a newer one has to promise anew."""
        if epoch > self._epoch:
            if self._epoch >= 0:
                self.interrupted()
            self._epoch = epoch
        return epoch == self._epoch

    def _start(self) -> Fill | None:
        if not (self._online and self.is_ready):
            return None
        self.phase = Phase.FILLING
        return Fill(self._place[0], max(self.owed, self._place[0]))

    def _in_order(self, events: Sequence[PulledEvent]) -> list[PulledEvent]:
        """Those of `events` above `position`, which moves behind them."""
        kept, last = [], self._place
        for event in events:
            place = _place(event)
            if place > last:
                last = place
                kept.append(event)
        self._place = last
        return kept

    def _drop_held(self) -> None:
        for event in self._held:
            self.owed = max(self.owed, event.mailbox_seq)
        self._held, self.held_bytes = [], 0


def _place(event: PulledEvent) -> tuple[int, int]:
    return event.mailbox_seq, event.event_ordinal
