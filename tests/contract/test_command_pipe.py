"""Reads of many callers through few round trips: order, errors, cancellation, a server that is away."""

import asyncio

import pytest
from redis import exceptions as redis_errors

from qim_streams import command_pipe
from qim_streams.command_pipe import COMMANDS_MAX, CommandPipe
from qim_streams.redis_tier import RedisClient


class Trips:
    """Counts the round trips of a pipe."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        exchange = command_pipe.exchange

        async def counted(client: RedisClient, commands: list[object]) -> list[object]:
            self.sizes.append(len(commands))
            return await exchange(client, commands)  # type: ignore[arg-type]

        monkeypatch.setattr(command_pipe, "exchange", counted)


async def test_everybody_gets_his_own_answers(
    hot_client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand questions of one turn are a handful of trips; a caller's commands stay together."""
    pipe, trips = CommandPipe(hot_client), Trips(monkeypatch)
    await pipe.run(*[("SET", f"k{number}", number) for number in range(1_000)])
    assert trips.sizes == [1_000], "what one caller asks at once goes at once"
    trips.sizes.clear()
    asked = [pipe.run(("GET", f"k{number}"), ("STRLEN", f"k{number}")) for number in range(1_000)]
    answers = await asyncio.gather(*asked)
    assert answers == [[str(number).encode(), len(str(number))] for number in range(1_000)]
    assert len(trips.sizes) <= 2_000 / COMMANDS_MAX + 2
    assert max(trips.sizes) <= COMMANDS_MAX
    assert await pipe.run() == []


async def test_an_error_is_its_own_callers(hot_client: RedisClient) -> None:
    pipe = CommandPipe(hot_client)
    await pipe.run(("SET", "text", "x"))
    good, bad = await asyncio.gather(
        pipe.run(("GET", "text")), pipe.run(("GET", "text"), ("LLEN", "text")), return_exceptions=True
    )
    assert good == [b"x"]
    assert isinstance(bad, redis_errors.ResponseError)


async def test_a_caller_who_left_is_no_hindrance(hot_client: RedisClient) -> None:
    pipe = CommandPipe(hot_client)
    leaving = asyncio.create_task(pipe.run(("SET", "a", 1)))
    staying = asyncio.create_task(pipe.run(("GET", "a")))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying in ([b"1"], [None])
    assert await pipe.run(("PING",)) in ([b"PONG"], ["PONG"])


async def test_a_server_that_is_away_fails_everybody_and_the_next_try_works(
    hot_client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, exchange = CommandPipe(hot_client), command_pipe.exchange

    async def broken(*_: object) -> list[object]:
        raise redis_errors.ConnectionError("away")

    monkeypatch.setattr(command_pipe, "exchange", broken)
    found = await asyncio.gather(pipe.run(("PING",)), pipe.run(("PING",)), return_exceptions=True)
    assert [type(one) for one in found] == [redis_errors.ConnectionError] * 2
    monkeypatch.setattr(command_pipe, "exchange", exchange)
    assert len(await pipe.run(("PING",))) == 1
