"""Member counts over all gateways, in one exchange every few seconds however many join.

Invariants: a join costs no request; a store that does not answer costs fresh counts and nothing else; a
gateway that dies is forgotten within the time to live of its counts.

Spec: §10.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from qim_streams.errors import StoreError
from qim_streams.gateway.local_room import RoomName
from qim_streams.gateway.rooms import RoomHall
from qim_streams.rooms.ports import RoomCounts

log = logging.getLogger(__name__)

EVERY_S: Final = 5.0
JITTER_S: Final = 1.0


class CountExchange:
    """`run` is its task; `gateway` names this process, `random` gives numbers in [0, 1)."""

    def __init__(
        self,
        hall: RoomHall,
        counts: RoomCounts,
        gateway: str,
        now_ms: Callable[[], int],
        random: Callable[[], float],
    ) -> None:
        self._hall, self._counts, self._gateway = hall, counts, gateway
        self._now_ms, self._random = now_ms, random
        self._said: set[RoomName] = set()

    async def run(self) -> None:
        """Exchange for ever."""
        while True:
            await asyncio.sleep(EVERY_S + JITTER_S * self._random())
            await self.exchange()

    async def exchange(self) -> None:
        """Say how many are here, and tell rooms how many there are."""
        here = self._hall.counts()
        gone = self._said - here.keys()
        if not here and not gone:
            return
        try:
            totals = await self._counts.exchange(self._gateway, here | dict.fromkeys(gone, 0), self._now_ms())
        except StoreError as error:
            log.warning("member counts of %d rooms: %s", len(here), error)
            return
        self._said = set(here)
        await self._hall.counted(totals)
