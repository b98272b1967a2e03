"""Signs of life on one connection: when to send PING, and when the other side counts as gone.

Pure; times are monotonic milliseconds, so a wall clock that jumps changes nothing.

Spec: §7 (next_ping_interval_ms). Scenario A13: a socket that swallows writes is no connection.
"""

PING_INTERVAL_MIN_MS = 1_000
PING_INTERVAL_DEFAULT_MS = 30_000
PEER_DEAD_MS = 15_000  # silence beyond the ping interval


class Heartbeat:
    """The interval survives a connection; the rest starts with `restart`."""

    def __init__(self) -> None:
        self._interval_ms = PING_INTERVAL_DEFAULT_MS
        self._heard_ms = self._due_ms = 0

    def restart(self, now_ms: int) -> None:
        """A connection begins."""
        self._heard_ms, self._due_ms = now_ms, now_ms + self._interval_ms

    def heard(self, now_ms: int) -> None:
        """Something came, or nobody listens: silence counts from here."""
        self._heard_ms = now_ms

    def set_interval(self, interval_ms: int, now_ms: int) -> None:
        """The server wants a PING at least this often."""
        self._interval_ms = max(PING_INTERVAL_MIN_MS, interval_ms)
        self._due_ms = min(self._due_ms, now_ms + self._interval_ms)

    def is_dead(self, now_ms: int) -> bool:
        """Whether nothing came for too long."""
        return now_ms - self._heard_ms > self._interval_ms + PEER_DEAD_MS

    def is_due(self, now_ms: int) -> bool:
        """Whether a PING is due; if so the next one is an interval later."""
        if now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + self._interval_ms
        return True
