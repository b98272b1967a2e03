"""Plain Redis commands of one process through few round trips: what is asked meanwhile goes together.

The sibling of ``script_pipe`` for reads: commands asked for while none is under way leave in the same turn
of the event loop, what comes during a round trip goes in the next. A sign-on or a pull asks a handful of
questions; a thousand of them side by side ask each kind a thousand times, and the driver's own pipeline
costs as much per question as the question itself.

Invariants: commands are sent in the order in which they were asked, on one connection at a time; each
caller gets its own answers. Nothing is repeated: for reads, and for writes whose unknown outcome the caller
resolves.

What it does not do: bound the number of callers; each caller waits for its own answers.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis import exceptions as redis_errors

from qim_streams.redis_tier import RedisClient, exchange, type_args
from qim_streams.round_trips import RoundTrips

COMMANDS_MAX = 512  # in one round trip; a caller's commands stay together

Command = Sequence[type_args]


class _Ask(NamedTuple):
    commands: Sequence[Command]
    answer: "asyncio.Future[list[Any]]"


class CommandPipe:
    """Batches the commands of one event loop. Driver errors pass through untranslated."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._trips: RoundTrips[_Ask] = RoundTrips(_fitting, self._carry)

    async def run(self, *commands: Command) -> list[Any]:
        """The answers of `commands`; raises the first error that is one. None: nothing is asked."""
        if not commands:
            return []
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._trips.add(_Ask(commands, answer))
        answers = await answer
        for one in answers:
            if isinstance(one, BaseException):
                raise one
        return answers

    async def _carry(self, batch: list[_Ask]) -> None:
        answers = await self._send([command for one in batch for command in one.commands])
        at = 0
        for one in batch:
            end = at + len(one.commands)
            if not one.answer.done():  # else its caller was cancelled
                one.answer.set_result(answers[at:end])
            at = end

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        try:
            return await exchange(self._client, commands)
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            # One connection carried all of them: what is known of one is known of each.
            return [error] * len(commands)


def _fitting(waiting: list[_Ask]) -> int:
    """How many of those at the front have `COMMANDS_MAX` commands together; one at least."""
    size = count = 0
    for one in waiting:
        size += len(one.commands)
        if count and size > COMMANDS_MAX:
            break
        count += 1
    return count
