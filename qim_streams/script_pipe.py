"""Script calls of one process through few round trips: what is called in the meantime goes together.

A call made while none is under way is sent in the same turn of the event loop; calls made during a round
trip wait for its end and then go as one pipeline. So a quiet process has the latency of one round trip and
a busy one pays per batch. Measured (client CPU per call with 700 bytes, redis-py on hiredis, uvloop): alone
79 µs, in fours 39 µs, in sixteens 19 µs; through the driver's pipeline 91, 50 and 27 µs.

Invariants: calls are sent in the order in which they were made, on one connection at a time; each call
gets its own answer or error. It repeats nothing, except a call that the server refused because it does
not know the script (then nothing was applied).

What it does not do: bound the number of callers; each caller waits for its own answer.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis import exceptions as redis_errors

from qim_streams.redis_tier import RedisClient, Script, exchange, type_args
from qim_streams.round_trips import RoundTrips

PIPELINE_MAX = 128


class _Call(NamedTuple):
    script: Script
    keys: Sequence[str | bytes]
    args: Sequence[type_args]
    answer: "asyncio.Future[Any]"


class ScriptPipe:
    """Batches the script calls of one event loop. Driver errors pass through untranslated."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._trips: RoundTrips[_Call] = RoundTrips(lambda waiting: PIPELINE_MAX, self._carry)

    async def call(self, script: Script, keys: Sequence[str | bytes], args: Sequence[type_args]) -> Any:
        """The script's answer; raises the driver's error. A cancelled call may still be applied."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._trips.add(_Call(script, keys, args, answer))
        return await answer

    async def _carry(self, batch: list[_Call]) -> None:
        for call, result in zip(batch, await self._send(batch), strict=True):
            if call.answer.done():  # its caller was cancelled
                continue
            if isinstance(result, BaseException):
                call.answer.set_exception(result)
            else:
                call.answer.set_result(result)

    async def _send(self, batch: list[_Call]) -> list[Any]:
        try:
            return await self._results(batch)
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            # One connection carried all of them: what is known of one is known of each.
            return [error] * len(batch)

    async def _results(self, batch: list[_Call]) -> list[Any]:
        results = await exchange(
            self._client,
            [("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args) for call in batch],
        )
        for index, call in enumerate(batch):
            if isinstance(results[index], redis_errors.NoScriptError):
                results[index] = await self._again(call)
        return results

    async def _again(self, call: _Call) -> Any:
        try:
            return await self._client.eval(call.script.source, len(call.keys), *call.keys, *call.args)
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            return error
