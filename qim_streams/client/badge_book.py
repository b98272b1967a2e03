"""BadgeBook: what is unread in all, as a device knows it.

The first value of a connection is that of AUTH_OK, if it was whole. A SESSION_TOTALS is applied only if
(projection_mailbox_seq, version) is greater than that of the last one on this connection, else it is dropped
whole: late and repeated frames change nothing (Spec: §9).

Invariants: every value is absolute; no I/O, no clock.
"""

from typing import NamedTuple

from qim_streams.wire.frames import AuthOk
from qim_streams.wire.frames_sessions import SessionTotals

NOTHING = (-1, -1)


class Badge(NamedTuple):
    """`unread` is without muted conversations, `muted_unread` theirs. Not `exact`: there may be more."""

    unread: int
    mentions: int
    muted_unread: int
    exact: bool


class BadgeBook:
    """The newest value. `dropped` counts frames that came late or twice."""

    def __init__(self) -> None:
        self.value: Badge | None = None
        self.applied = NOTHING
        self.dropped = 0

    def begin(self, frame: AuthOk) -> bool:
        """A connection begins; whether the value is another one now."""
        self.applied = NOTHING
        if not frame.projection_complete:
            return False  # what was known is better than what could not be counted
        unread = frame.total_unread - frame.muted_unread
        return self._set(Badge(unread, frame.total_mention, frame.muted_unread, True))

    def take(self, frame: SessionTotals, asked_at: tuple[int, int] | None = None) -> bool:
        """A frame; whether the value is another one now.

        `asked_at` is what was `applied` when an answer was asked for: the count began after that, so the
        answer is newer, whatever its order, unless something else was applied since.
        """
        order = (frame.projection_mailbox_seq, frame.version)
        if order <= self.applied and self.applied != asked_at:
            self.dropped += 1
            return False
        self.applied = max(self.applied, order)
        return self._set(Badge(frame.badge, frame.total_mention, frame.muted_unread, frame.complete))

    def _set(self, value: Badge) -> bool:
        changed = value != self.value
        self.value = value
        return changed
