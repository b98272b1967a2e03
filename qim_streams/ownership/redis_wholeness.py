"""`Wholeness` on Redis: the mark ``{ob:p}:whole`` of each partition, held against the run of the server.

Invariants: mark and run are read on one connection, so they belong to one server: a restart in between
breaks the connection.

What it does not do: set marks (``whole.lua`` of the commit stage does, for the owner).

Spec: §14.4.
"""

import re
from collections.abc import Collection

from qim_streams.errors import Outcome, StoreError, StoreUnavailable
from qim_streams.redis_tier import RedisClient, exchange, translated

SHOWN_MAX = 8
_RUN = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class RedisWholeness:
    """One round trip per question; nothing is remembered, because a loss announces itself nowhere.

    `partitions`: how many Outbox partitions there are, for `require_whole`.
    """

    def __init__(self, client: RedisClient, partitions: int = 0) -> None:
        self._client, self._partitions = client, partitions

    async def doubtful(self, partitions: Collection[int]) -> set[int]:
        """See the port."""
        return (await self._ask(partitions))[0]

    async def run(self) -> str:
        """The run of the server. StoreUnavailable when it does not answer."""
        async with translated("hot tier"):
            server = await self._client.info("server")
        return str(server["run_id"])

    async def require_whole(self) -> str:
        """The run of the server for which every partition is proved; StoreUnavailable if one is not."""
        doubtful, run = await self._ask(range(self._partitions))
        if doubtful:
            shown = ", ".join(f"ob:{partition}" for partition in sorted(doubtful)[:SHOWN_MAX])
            raise StoreUnavailable(f"the hot tier is held against the logs: {shown}", Outcome.NOT_APPLIED)
        return run

    async def _ask(self, partitions: Collection[int]) -> tuple[set[int], str]:
        wanted = sorted(set(partitions))
        if not wanted:
            return set(), ""
        gets = [("GET", f"{{ob:{partition}}}:whole") for partition in wanted]
        async with translated("hot tier"):
            *marks, server = await exchange(self._client, [*gets, ("INFO", "server")])
            for answer in (*marks, server):
                if isinstance(answer, BaseException):
                    raise answer
        run = _run_of(server)
        return {one for one, mark in zip(wanted, marks, strict=True) if mark != run}, run.decode()


def _run_of(server: bytes) -> bytes:
    """The run in an answer to INFO; StoreError when there is none."""
    found = _RUN.search(server)
    if found is None:
        raise StoreError("hot tier: the server does not say which run it is")
    return found[1]
