"""Messages per second of a conversation (L2): one number per conversation that spoke a moment ago.

The rule is a leaky bucket in its virtual-time form: a conversation owes the time that its messages take at
the allowed rate, and is refused while it owes more than the burst.

Invariants: exact for a conversation, because one process at a time owns its partition; what owes nothing
is forgotten, so memory is bounded by what was said within two bursts; a clock set back locks nobody out.

Spec: §3.2 L2.
"""

from collections.abc import Hashable
from typing import Final

CLOCK_BACK_MS: Final = 60_000.0


class ConversationRates:
    """Time comes in as milliseconds of any clock."""

    def __init__(self, per_s: float, burst_ms: int) -> None:
        """`per_s` above 0; a burst of `burst_ms` may be said at once, never less than one message."""
        self._step_ms = 1_000.0 / per_s
        self._allowed_ms = max(0.0, burst_ms - self._step_ms)
        self._keep_ms = self._allowed_ms + self._step_ms
        self._young: dict[Hashable, float] = {}
        self._old: dict[Hashable, float] = {}
        self._turned_ms = 0.0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def take(self, conversation: Hashable, now_ms: float) -> int:
        """Count a message: 0, or how many milliseconds must pass before it may be said (not counted)."""
        if not 0 <= now_ms - self._turned_ms < self._keep_ms:
            self._turn(now_ms)
        until = self._young.get(conversation)
        if until is None:
            until = self._old.get(conversation, now_ms)
        ahead = until - now_ms
        if ahead <= 0.0:
            until = now_ms
        elif ahead > self._allowed_ms:
            if ahead <= self._keep_ms + CLOCK_BACK_MS:
                return int(ahead - self._allowed_ms) + 1
            until = now_ms
        self._young[conversation] = until + self._step_ms
        return 0

    def give_back(self, conversation: Hashable) -> None:
        """A message that was counted is none: a repeat, or refused for another reason."""
        until = self._young.get(conversation)
        if until is None:
            until = self._old.get(conversation)
            if until is None:
                return  # it owes nothing any more
        self._young[conversation] = until - self._step_ms

    def _turn(self, now_ms: float) -> None:
        """What was not spoken in for a whole burst owes nothing."""
        fresh = 0 <= now_ms - self._turned_ms < 2 * self._keep_ms
        self._old = self._young if fresh else {}
        self._young = {}
        self._turned_ms = now_ms
