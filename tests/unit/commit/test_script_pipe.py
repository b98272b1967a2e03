"""ScriptPipe: calls made meanwhile go together; each gets its own answer or error."""

import asyncio
from typing import Any

import hiredis
import pytest
from redis import exceptions as redis_errors

from qim_streams.errors import FencedError, Outcome, StoreError, StoreUnavailable
from qim_streams.redis_tier import Script, translate
from qim_streams.script_pipe import PIPELINE_MAX, ScriptPipe

SCRIPT = Script("return ARGV[1]")


class FakeConnection:
    """A connection of the driver."""

    socket_timeout: float | None = 10.0

    def __init__(self, client: "FakeClient") -> None:
        self._client, self._answers = client, list[Any]()

    async def send_packed_command(self, packed: list[bytes]) -> None:
        """Answers, the last argument of each command, are there at once, or when the gate opens."""
        reader = hiredis.Reader(encoding="utf-8")
        reader.feed(b"".join(packed))
        calls = []
        while command := reader.gets():
            calls.append(int(command[-1]))
        self._answers = await self._client.answer(calls)

    async def read_response(self, timeout: float) -> Any:
        """The next answer."""
        found = self._answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def disconnect(self, nowait: bool) -> None:
        """Counted."""
        self._client.disconnects += 1


class FakePool:
    """Lends one connection at a time."""

    def __init__(self, client: "FakeClient") -> None:
        self._free: list[FakeConnection] = [FakeConnection(client)]

    async def get_connection(self) -> FakeConnection:
        """Fails when the last one was not given back."""
        return self._free.pop()

    async def release(self, connection: FakeConnection) -> None:
        """As the next user needs it."""
        assert connection.socket_timeout == 10.0
        self._free.append(connection)


class FakeClient:
    """Answers with the argument; `gate` holds answers back; `trouble` replaces them."""

    def __init__(self) -> None:
        self.round_trips: list[list[Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.trouble: dict[Any, Exception] = {}
        self.down = False
        self.disconnects = 0
        self.connection_pool = FakePool(self)

    async def answer(self, calls: list[Any]) -> list[Any]:
        self.round_trips.append(list(calls))
        await self.gate.wait()
        if self.down:
            raise redis_errors.ConnectionError("gone")
        return [self.trouble.pop(call, call) for call in calls]

    async def eval(self, source: str, count: int, *rest: Any) -> Any:
        return f"loaded {rest[count]}"


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def call(pipe: ScriptPipe, value: Any) -> "asyncio.Task[Any]":
    return asyncio.ensure_future(pipe.call(SCRIPT, ["k"], [value]))


async def test_calls_of_one_turn_go_together_and_later_ones_after(client: FakeClient) -> None:
    pipe = ScriptPipe(client)  # type: ignore[arg-type]
    client.gate.clear()
    first = [call(pipe, n) for n in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [call(pipe, n) for n in range(3, 8)]
    await asyncio.sleep(0)
    client.gate.set()
    assert await asyncio.gather(*first, *later) == list(range(8))
    assert client.round_trips == [[0, 1, 2], [3, 4, 5, 6, 7]]


async def test_a_pipeline_is_bounded(client: FakeClient) -> None:
    pipe = ScriptPipe(client)  # type: ignore[arg-type]
    await asyncio.gather(*(call(pipe, n) for n in range(PIPELINE_MAX + 5)))
    assert [len(trip) for trip in client.round_trips] == [PIPELINE_MAX, 5]


async def test_each_call_has_its_own_error(client: FakeClient) -> None:
    pipe = ScriptPipe(client)  # type: ignore[arg-type]
    client.trouble = {1: redis_errors.ResponseError("FENCED 7"), 2: redis_errors.NoScriptError("no")}
    found = await asyncio.gather(*(call(pipe, n) for n in range(4)), return_exceptions=True)
    assert (found[0], found[2], found[3]) == (0, "loaded 2", 3)
    assert isinstance(found[1], redis_errors.ResponseError)


async def test_a_lost_connection_is_everybodys_unknown_outcome(client: FakeClient) -> None:
    pipe = ScriptPipe(client)  # type: ignore[arg-type]
    client.down = True
    found = await asyncio.gather(*(call(pipe, n) for n in range(3)), return_exceptions=True)
    assert [type(error) for error in found] == [redis_errors.ConnectionError] * 3
    assert client.disconnects == 1
    client.down = False
    assert await call(pipe, 9) == 9


async def test_a_caller_that_goes_away_takes_nobody_with_it(client: FakeClient) -> None:
    pipe = ScriptPipe(client)  # type: ignore[arg-type]
    client.gate.clear()
    gone, stays = call(pipe, 1), call(pipe, 2)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    client.gate.set()
    assert await stays == 2


@pytest.mark.parametrize(
    ("error", "cls", "outcome"),
    [
        (
            redis_errors.ConnectionError("Error 111 connecting to x:1. refused."),
            StoreUnavailable,
            "not_applied",
        ),
        (redis_errors.TimeoutError("Timeout connecting to server"), StoreUnavailable, "not_applied"),
        (redis_errors.ConnectionError("Connection closed by server."), StoreUnavailable, "unknown"),
        (redis_errors.TimeoutError("Timeout reading from x:1"), StoreUnavailable, "unknown"),
        (redis_errors.BusyLoadingError("loading"), StoreUnavailable, "not_applied"),
        (redis_errors.ReadOnlyError("You can't write"), StoreUnavailable, "not_applied"),
        (redis_errors.OutOfMemoryError("command not allowed"), StoreUnavailable, "not_applied"),
        (redis_errors.ResponseError("BUSY Redis is busy"), StoreUnavailable, "not_applied"),
        (
            redis_errors.ResponseError("Error running script (call to f_1): @user_script: 3: -OOM command"),
            StoreUnavailable,
            "not_applied",
        ),
        (redis_errors.ResponseError("Error running script (call to f_1): nil value"), StoreError, "unknown"),
        (redis_errors.ResponseError("WRONGTYPE Operation"), StoreError, "not_applied"),
        (OSError("broken pipe"), StoreUnavailable, "unknown"),
    ],
)
def test_what_is_known_after_an_error_of_the_driver(error: Exception, cls: type, outcome: str) -> None:
    found = translate(error, "ob:1", 5)
    assert type(found) is cls
    assert isinstance(found, StoreError)
    assert found.outcome is Outcome(outcome)


def test_fenced_names_both_epochs() -> None:
    found = translate(redis_errors.ResponseError("FENCED 9"), "ob:1", 5)
    assert isinstance(found, FencedError)
    assert (found.resource, found.epoch, found.current) == ("ob:1", 5, 9)
