"""What of the mailbox was pulled, and when the next pull is due: at sync, at a gap, at a checkpoint.

Only answers to pulls carry the watermark. When nothing is known above `pulled_to`, a probe (an empty
range) asks for it. What is known above it may be old: a pull that was wanted up to the watermark goes on
to the one that its answers show.

Invariants: `pulled_to` only grows on a connection; a pull never asks beyond the known watermark; one
pull or probe runs at a time, and what becomes due meanwhile starts when it ends. Time comes in as
monotonic milliseconds; it sends nothing.

Spec: §7 (device cursors move by MAILBOX_BATCH only).
"""

from qim_streams.client.backoff import retry_ms
from qim_streams.client.pulls import Part, RangePull, Stretch
from qim_streams.wire.frames import Error, MailboxBatch

GAP_GRACE_MAX_MS = 10_000
WEAK_GRACE_MS = 3_000
RETRY_BASE_MS = 200
RETRY_CAP_MS = 10_000


class Coverage:
    """The pulls of one connection. Bounds as in ``session.SessionOptions``."""

    def __init__(self, gap_grace_ms: int, checkpoint_events: int, checkpoint_interval_ms: int) -> None:
        self.pulled_to = -1
        self.known_w = -1  # how far one may pull, as far as known
        self.progress_ms = 0  # when the current pull last got on, or may begin
        self._grace_start_ms = self._grace_ms = gap_grace_ms
        self._checkpoint_events, self._checkpoint_interval_ms = checkpoint_events, checkpoint_interval_ms
        self._pull: RangePull | None = None
        self._probe: Part | None = None
        self._again = False
        self._wanted = self._confirms = (
            False  # up to the watermark of now; whether the current pull asks for it
        )
        self._due_ms = 0
        self._failures = 0
        self._gap_due_ms = 0  # 0: no gap is being watched
        self._events = 0  # since the last pull
        self._checkpoint_due_ms = 0

    @property
    def is_pulling(self) -> bool:
        """Whether a pull or probe is under way."""
        return self._pull is not None or self._probe is not None

    def restart(self, after: int, known_w: int) -> None:
        """A connection begins: `after` and below need no pull."""
        self.pulled_to, self.known_w = after, known_w
        self.stop()

    def stop(self) -> None:
        """The connection is over, and with it what was asked on it."""
        self._pull, self._probe, self._again = None, None, False
        self._wanted = self._confirms = False
        self._gap_due_ms = self._failures = 0

    def begin(self, up_to: int, now_ms: int, delay_ms: int) -> bool:
        """Start the pull of a sync after a delay; False when there is nothing to pull."""
        if up_to <= self.pulled_to:
            return False
        self._pull = RangePull(self.pulled_to, up_to)
        self._due_ms = self.progress_ms = now_ms + delay_ms
        return True

    def requests(self, now_ms: int) -> list[Part]:
        """The parts to ask for now, (at, up_to] each."""
        if now_ms < self._due_ms:
            return []
        if self._pull is not None:
            return self._pull.requests()
        if self._probe is not None and not self._probe.open:
            self._probe.open = True
            return [self._probe]
        return []

    def answer(self, part: Part, batch: MailboxBatch, now_ms: int) -> list[Stretch]:
        """Take a batch: what it releases, in order. `is_pulling` is False after the last one."""
        self.known_w = max(self.known_w, batch.lane_watermark)
        self.progress_ms, self._failures = now_ms, 0
        if self._pull is None:
            self._probe = None
            self._again = self._again or self.known_w > self.pulled_to
            return []
        stretches = self._pull.answer(part, batch)
        if stretches:
            self.pulled_to = max(self.pulled_to, stretches[-1].covered)
        if self._pull.done:
            self._pull = None
            self._again = self._again or (self._confirms and self.known_w > self.pulled_to)
            self.reset_checkpoint(now_ms)
        return stretches

    def refused(self, part: Part, error: Error, now_ms: int, random: float) -> None:
        """A request was refused for now: it is asked again after a delay."""
        if self._pull is not None:
            self._pull.failed(part)
        part.open = False
        self._failures += 1
        self._due_ms = now_ms + retry_ms(
            self._failures, RETRY_BASE_MS, RETRY_CAP_MS, error.retry_after_ms, random
        )
        self.progress_ms = self._due_ms

    def reset_checkpoint(self, now_ms: int) -> None:
        """The cursor is as far as it can be: count from here."""
        self._events = 0
        self._checkpoint_due_ms = now_ms + self._checkpoint_interval_ms

    def heard(self, mailbox_seq: int, events: int) -> None:
        """Live events came, the last one at `mailbox_seq` (-1: unknown)."""
        self.known_w = max(self.known_w, mailbox_seq)
        self._events += events

    def want(self, now_ms: int) -> None:
        """Pull up to the watermark of now, at once or when the current pull ends."""
        self._wanted = True
        if self.is_pulling:
            self._again = True
        else:
            self._start(now_ms)

    def ended(self, has_gap: bool, now_ms: int) -> None:
        """A pull ended while online: start the next if one is due already."""
        again, self._again = self._again, False
        if again or (has_gap and self.known_w > self.pulled_to):
            self._start(now_ms)

    def watch_gap(self, has_gap: bool, weak: bool, is_full: bool, now_ms: int) -> None:
        """Note whether an event waits for another; if so a pull becomes due after a grace time.

        `weak`: only own messages wait, most likely for pushes that are on their way.
        """
        if not has_gap:
            self._gap_due_ms, self._grace_ms = 0, self._grace_start_ms
            return
        grace = 0 if is_full else max(self._grace_ms, WEAK_GRACE_MS) if weak else self._grace_ms
        due_ms = now_ms + grace
        self._gap_due_ms = min(self._gap_due_ms, due_ms) if self._gap_due_ms else due_ms

    @property
    def watches_gap(self) -> bool:
        """Whether a gap was seen and not closed."""
        return self._gap_due_ms > 0

    def tick(self, now_ms: int) -> None:
        """Start the pull that is due while online, if any."""
        if self.is_pulling:
            return
        if self._gap_due_ms and now_ms >= self._gap_due_ms:
            # A gap that outlives its pull (a message not yet MAILBOXED) is looked at less often.
            self._grace_ms = min(GAP_GRACE_MAX_MS, 2 * self._grace_ms)
            self._gap_due_ms = now_ms + self._grace_ms
            self._start(now_ms)
        elif self._checkpoint_events and self._events >= self._checkpoint_events:
            self._start(now_ms)
        elif self._checkpoint_interval_ms and now_ms >= self._checkpoint_due_ms:
            self._checkpoint_due_ms = now_ms + self._checkpoint_interval_ms
            self._start(now_ms)

    def _start(self, now_ms: int) -> None:
        self._wanted, self._confirms = False, self._wanted
        if self.known_w > self.pulled_to:
            self._pull = RangePull(self.pulled_to, self.known_w)
        else:
            self._probe = Part(self.pulled_to, self.pulled_to)
        self._due_ms = self.progress_ms = now_ms
