"""The states of a connection: every frame in every state, counts, and any order of answers (T-X3)."""

import random
import time

import pytest

from qim_streams import limits
from qim_streams.errors import InvariantViolation
from qim_streams.wire.connection import ServerConnection, State
from qim_streams.wire.examples import CLIENT_EXAMPLES
from qim_streams.wire.frames import Auth, Ping, Pong, PullHistory, PullMailbox, SendMessage, SyncComplete

AUTH = Auth(1, "t", "d")
REQUESTS_MAX = 3


def in_state(state: State) -> ServerConnection:
    """A connection brought to `state` the legal way."""
    connection = ServerConnection(REQUESTS_MAX)
    if state is State.CONNECTED:
        return connection
    assert connection.receive(AUTH) is None
    if state is State.AUTHENTICATING:
        return connection
    connection.auth_accepted()
    if state in (State.ONLINE, State.CLOSED):
        assert connection.receive(SyncComplete(2, 0)) is None
        connection.completion_accepted()
    if state is State.CLOSED:
        connection.close()
    assert connection.state is state
    return connection


@pytest.mark.parametrize("state", [s for s in State if s is not State.CLOSED])
@pytest.mark.parametrize("name", CLIENT_EXAMPLES)
def test_which_frame_is_legal_when(state: State, name: str) -> None:
    """The whole table: before AUTH_OK only AUTH (once), PING and PONG; afterwards all but AUTH."""
    frame = CLIENT_EXAMPLES[name]
    refusal = in_state(state).receive(frame)
    if isinstance(frame, Ping | Pong):
        assert refusal is None
    elif isinstance(frame, Auth):
        assert (refusal is None) == (state is State.CONNECTED)
        assert refusal is None or refusal.name == "ALREADY_AUTHENTICATED"
    elif state in (State.CONNECTED, State.AUTHENTICATING):
        assert refusal is not None
        assert (refusal.name, refusal.rid) == ("NOT_AUTHENTICATED", frame.rid)
    else:
        assert refusal is None


def test_auth_may_be_tried_again_a_few_times() -> None:
    """A refused cursor leaves the connection open; the attempts are bounded."""
    connection = ServerConnection(1)
    for _ in range(limits.AUTH_ATTEMPTS_MAX):
        assert connection.receive(AUTH) is None
        connection.auth_refused()
    refusal = connection.receive(AUTH)
    assert refusal is not None
    assert refusal.name == "AUTH_ATTEMPTS_EXCEEDED"


def test_windows() -> None:
    """Four pulls, four history pages, a number of requests, one SYNC_COMPLETE; an answer makes room."""
    connection = in_state(State.SYNCING)
    for frame, most, code in (
        (PullMailbox(1, 0, 1), limits.PULL_WINDOW, "PULL_WINDOW_EXCEEDED"),
        (PullHistory(1, "c", "newer"), limits.HISTORY_WINDOW, "TOO_MANY_IN_FLIGHT"),
        (SendMessage(1, "m", b"", "c"), REQUESTS_MAX, "TOO_MANY_IN_FLIGHT"),
        (SyncComplete(1, 0), 1, "SYNC_INCOMPLETE"),
    ):
        assert [connection.receive(frame) for _ in range(most)] == [None] * most
        refusal = connection.receive(frame)
        assert refusal is not None
        assert (refusal.name, refusal.temporary) == (code, True)
    connection.pull_answered()
    connection.history_answered()
    connection.request_answered()
    connection.completion_refused()
    assert connection.receive(PullMailbox(1, 0, 1)) is None
    assert connection.receive(PullHistory(1, "c", "older")) is None
    assert connection.receive(SendMessage(1, "m", b"", "c")) is None
    assert connection.receive(SyncComplete(1, 0)) is None


def test_an_answer_too_many_is_a_bug() -> None:
    """Counts never fall below zero in silence."""
    connection = in_state(State.SYNCING)
    with pytest.raises(InvariantViolation):
        connection.pull_answered()
    with pytest.raises(InvariantViolation):
        connection.history_answered()
    with pytest.raises(InvariantViolation):
        in_state(State.ONLINE).request_answered()
    with pytest.raises(InvariantViolation):
        in_state(State.SYNCING).auth_accepted()


def test_answers_after_the_end_change_nothing() -> None:
    """What was on its way when the socket closed finds a closed connection."""
    connection = in_state(State.CLOSED)
    connection.auth_accepted()
    connection.auth_refused()
    connection.completion_accepted()
    connection.close()
    assert connection.state is State.CLOSED
    assert not connection.authenticated


def test_a_repeated_sync_complete_is_answered_again() -> None:
    """SYNC_COMPLETE after ONLINE_READY is legal and moves nothing."""
    connection = in_state(State.ONLINE)
    assert connection.receive(SyncComplete(9, 0)) is None
    connection.completion_accepted()
    assert connection.state is State.ONLINE


def test_any_walk_keeps_the_counts() -> None:
    """Random frames and answers: counts stay in their bounds, no state is left but through close."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    frames = list(CLIENT_EXAMPLES.values())
    for _ in range(300):
        connection = ServerConnection(REQUESTS_MAX)
        for _ in range(60):
            connection.receive(rng.choice(frames))
            if connection.state is State.AUTHENTICATING and rng.random() < 0.5:
                rng.choice((connection.auth_accepted, connection.auth_refused))()
            if connection.pulls and rng.random() < 0.4:
                connection.pull_answered()
            if connection.histories and rng.random() < 0.4:
                connection.history_answered()
            if connection.requests and rng.random() < 0.4:
                connection.request_answered()
            if connection.authenticated and rng.random() < 0.1:
                rng.choice((connection.completion_accepted, connection.completion_refused))()
            assert 0 <= connection.pulls <= limits.PULL_WINDOW
            assert 0 <= connection.histories <= limits.HISTORY_WINDOW
            assert 0 <= connection.requests <= REQUESTS_MAX
            unanswered = connection.pulls + connection.histories + connection.requests
            assert not unanswered or connection.authenticated
