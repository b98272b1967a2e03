"""Connections of the admin API: how many, and how long one may take for what costs us a socket only.

The HTTP server bounds neither how long a client takes to say what it wants nor how long it takes to read the
answer: some dozens of connections that do nothing would keep everybody else out. `Watch.look`, called a few
times a second, ends those that take too long, and of too many those that have waited for longest without
having asked for anything: so strangers who hold connections push out each other.

Invariants: a request that is being worked on is never ended here (its time is the route's business), unless
its client does not read; pure but for what it remembers of each connection; the clock comes in.

Spec: reliability P16, P17.
"""

from collections.abc import Collection
from typing import Any, Final, NamedTuple, Protocol

HEAD_SECONDS_MAX: Final = 10.0  # from connecting, or from the answer before, to a whole request head
UNREAD_SECONDS_MAX: Final = 20.0  # an answer that nobody takes off the socket
LOOK_S: Final = 0.25


class Transport(Protocol):
    """What is asked of a connection's socket."""

    def is_closing(self) -> bool:
        """Whether it was closed and only what is unsent keeps it."""

    def get_write_buffer_size(self) -> int:
        """Bytes that were written and not taken yet."""

    def abort(self) -> None:
        """Close it now, unsent bytes or not."""


class Connection(Protocol):
    """A connection as the HTTP server has it; `cycle` is the last request, None before the first."""

    transport: Any
    cycle: Any


class _Seen(NamedTuple):
    """How a connection was when it became so: the request, whether it is answered, how much is unsent."""

    cycle: object  # itself, not its id: that may be the next one's
    answered: bool
    unsent: int
    since_s: float


class Watch:
    """Looks at the connections of one server, at most `connections_max` of which may stay."""

    def __init__(self, connections_max: int) -> None:
        self._most = connections_max
        self._seen: dict[Connection, _Seen] = {}

    def look(self, connections: Collection[Connection], now_s: float) -> int:
        """End what takes too long and what is too much; how many were ended."""
        self._seen = {one: self._now(one, now_s) for one in connections if one.transport is not None}
        late = [one for one, seen in self._seen.items() if _is_late(seen, now_s)]
        idle = [one for one, seen in self._seen.items() if seen.answered and one not in late]
        idle.sort(key=lambda one: self._seen[one].since_s)
        crowd = idle[: max(0, len(self._seen) - len(late) - self._most)]
        for one in (*late, *crowd):
            one.transport.abort()
            del self._seen[one]
        return len(late) + len(crowd)

    def _now(self, one: Connection, now_s: float) -> _Seen:
        transport: Transport = one.transport
        cycle = one.cycle
        answered = cycle is None or cycle.response_complete or transport.is_closing()
        seen = _Seen(cycle, answered, transport.get_write_buffer_size(), now_s)
        before = self._seen.get(one)
        if before is not None and before.cycle is cycle and before[1:3] == seen[1:3]:
            return before
        return seen


def _is_late(seen: _Seen, now_s: float) -> bool:
    waited_s = now_s - seen.since_s
    if seen.unsent:
        return waited_s > UNREAD_SECONDS_MAX
    return seen.answered and waited_s > HEAD_SECONDS_MAX
