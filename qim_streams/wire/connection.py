"""The states of a client connection as the server sees them: which frame is legal when.

::

    CONNECTED --AUTH--> AUTHENTICATING --accepted--> SYNCING --SYNC_COMPLETE--> ONLINE
        ^                     |                         |                         |
        +------refused--------+                         +------------+------------+
                                                                  CLOSED

`receive` is asked once per frame and answers None (handle it) or the ERROR to send instead; the caller
closes after an error whose row says so. Reads and sends run beside each other, so the machine also
counts what is unanswered: at most 4 pulls, 4 history pages, a bound of sends and changes, one AUTH and
one SYNC_COMPLETE.

Invariants: no I/O, clock or randomness; nothing but AUTH, PING and PONG before AUTH_OK; no frame after
CLOSED; a count never falls below zero.

Not here: ranges and cursors (see ``sync.session``).

Spec: §7.
"""

from enum import Enum
from typing import Final

from qim_streams import limits
from qim_streams.errors import InvariantViolation
from qim_streams.wire.answers import error
from qim_streams.wire.frames import (
    Auth,
    ClientFrame,
    Error,
    Ping,
    Pong,
    PullHistory,
    PullMailbox,
    SyncComplete,
)
from qim_streams.wire.frames_sessions import Typing


class State(Enum):
    """Where a connection is."""

    CONNECTED = "connected"
    AUTHENTICATING = "authenticating"
    SYNCING = "syncing"
    ONLINE = "online"
    CLOSED = "closed"


_ALLOWED: Final[dict[State, frozenset[State]]] = {
    State.CONNECTED: frozenset({State.AUTHENTICATING, State.CLOSED}),
    State.AUTHENTICATING: frozenset({State.CONNECTED, State.SYNCING, State.CLOSED}),
    State.SYNCING: frozenset({State.ONLINE, State.CLOSED}),
    State.ONLINE: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}


class ServerConnection:
    """One connection's state and counts of unanswered requests."""

    __slots__ = ("_attempts", "_completing", "_requests_max", "histories", "pulls", "requests", "state")

    def __init__(self, requests_max: int) -> None:
        self.state = State.CONNECTED
        self.pulls = 0
        self.histories = 0
        self.requests = 0
        self._requests_max = requests_max
        self._attempts = 0
        self._completing = False

    @property
    def authenticated(self) -> bool:
        """Whether AUTH_OK was sent and the connection is open."""
        return self.state is State.SYNCING or self.state is State.ONLINE

    def receive(self, frame: ClientFrame) -> Error | None:
        """None: the frame is legal now and counted as unanswered; else the answer to send instead.

        A counted frame is released by `auth_*`, `pull_answered`, `history_answered`, `completion_*` or
        `request_answered`.
        """
        kind = type(frame)
        if kind is Ping or kind is Pong:
            return None
        if kind is Auth:
            return self._receive_auth(frame.rid)
        if not self.authenticated:
            return error("NOT_AUTHENTICATED", "wait for AUTH_OK", frame.rid)
        if kind is PullMailbox:
            return self._receive_pull(frame.rid)
        if kind is PullHistory:
            return self._receive_history(frame.rid)
        if kind is SyncComplete:
            return self._receive_completion(frame.rid)
        if kind is Typing:
            return None  # nobody answers it
        if self.requests >= self._requests_max:
            return error("TOO_MANY_IN_FLIGHT", f"{self.requests} requests are unanswered", frame.rid)
        self.requests += 1
        return None

    def auth_accepted(self) -> None:
        """AUTH_OK is being sent."""
        self._move(State.SYNCING)

    def auth_refused(self) -> None:
        """AUTH was answered with an error that does not close; the client may try again."""
        self._move(State.CONNECTED)

    def pull_answered(self) -> None:
        """A PULL_MAILBOX was answered, one way or the other."""
        self.pulls -= 1
        if self.pulls < 0:
            raise InvariantViolation("a pull was answered twice")

    def history_answered(self) -> None:
        """A PULL_HISTORY was answered, one way or the other."""
        self.histories -= 1
        if self.histories < 0:
            raise InvariantViolation("a history page was answered twice")

    def request_answered(self) -> None:
        """A send or group change was answered, one way or the other."""
        self.requests -= 1
        if self.requests < 0:
            raise InvariantViolation("a request was answered twice")

    def completion_accepted(self) -> None:
        """ONLINE_READY is being sent. A repeated SYNC_COMPLETE is answered again and changes nothing."""
        self._completing = False
        if self.state is State.SYNCING:
            self._move(State.ONLINE)

    def completion_refused(self) -> None:
        """SYNC_COMPLETE was answered with an error."""
        self._completing = False

    def close(self) -> None:
        """The connection is over. Safe to repeat."""
        self._move(State.CLOSED)

    def _receive_auth(self, rid: int) -> Error | None:
        if self.state is not State.CONNECTED:
            return error("ALREADY_AUTHENTICATED", "one AUTH per connection", rid)
        if self._attempts >= limits.AUTH_ATTEMPTS_MAX:
            return error("AUTH_ATTEMPTS_EXCEEDED", f"{self._attempts} were refused", rid)
        self._attempts += 1
        self._move(State.AUTHENTICATING)
        return None

    def _receive_pull(self, rid: int) -> Error | None:
        if self.pulls >= limits.PULL_WINDOW:
            return error("PULL_WINDOW_EXCEEDED", f"{self.pulls} pulls are unanswered", rid)
        self.pulls += 1
        return None

    def _receive_history(self, rid: int) -> Error | None:
        if self.histories >= limits.HISTORY_WINDOW:
            return error("TOO_MANY_IN_FLIGHT", f"{self.histories} history pages are unanswered", rid)
        self.histories += 1
        return None

    def _receive_completion(self, rid: int) -> Error | None:
        if self._completing:
            return error("SYNC_INCOMPLETE", "an earlier SYNC_COMPLETE is unanswered", rid)
        self._completing = True
        return None

    def _move(self, to: State) -> None:
        if self.state is State.CLOSED:
            return  # an answer that was on its way when the connection ended
        if to not in _ALLOWED[self.state]:
            raise InvariantViolation(f"connection: {self.state.value} -> {to.value}")
        self.state = to
