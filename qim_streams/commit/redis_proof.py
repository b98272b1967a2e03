"""`Proof` on Redis: ``{ob:p}:whole``, the run of the server for which the partition is whole.

Invariants: before a partition is marked for a new run of the server, what is known of ordinals is back in the
store, what this process knows and what the presence log does: numbers that were given just before a restart
may be in use and be forgotten there, also where nothing else was lost and the owner lived through it.

Spec: §14.4.
"""

from typing import Protocol

from qim_streams.commit import keys
from qim_streams.commit.calls import PartitionCalls
from qim_streams.errors import Outcome, StoreUnavailable


class ServerRun(Protocol):
    """Which run of the server this is."""

    async def run(self) -> str:
        """Its id. StoreUnavailable when it does not answer."""


class KnownOrdinals(Protocol):
    """What this process remembers of the ordinal directory."""

    async def reassert(self) -> None:
        """Write it back where it is missing."""


class Seats(Protocol):
    """Ordinals of users who are online."""

    async def run(self, partition: int) -> int:
        """Put back what may be missing of a partition's share; how many. StoreUnavailable: again."""


class RedisProof:
    """`Proof` on Redis, for all partitions of a process."""

    def __init__(
        self, calls: PartitionCalls, server: ServerRun, ordinals: KnownOrdinals, seats: Seats
    ) -> None:
        self._calls, self._server, self._ordinals, self._seats = calls, server, ordinals, seats
        self._script = keys.fenced_script("qim_streams.commit", "whole.lua")
        self._run = ""  # the run for which everything known is in the store

    async def prove(self, partition: int, epoch: int) -> None:
        """See the port."""
        run = await self._server.run()
        if run != self._run:
            await self._ordinals.reassert()
            self._run = run
        await self._seats.run(partition)  # it knows for which run it has read already
        if not await self._calls.numbered(self._script, partition, epoch, "whole", (run,)):
            raise StoreUnavailable(f"ob:{partition}: the server was started anew", Outcome.NOT_APPLIED)
