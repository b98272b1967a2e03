"""Mappings: what a process knows of the mapping, and how it learns more.

Stages ask when they meet a version that they do not know; since a marker lies in a log only after the log of
mappings had the version, the answer is there. Gateways look regularly: what they have not heard of yet costs
their users a moment, never an entry.

Invariants: what is known only grows; nothing is taken for known that the log of mappings does not hold.

Spec: §11.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.sharding.mapping_log import fold
from qim_streams.sharding.ports import MappingLog
from qim_streams.sharding.rules import Placement, ShardMapping

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
LOOK_SOON_S: Final = 0.05  # while a split is under way
START_S: Final = 60.0  # a broker that has just made the topic has no leader for it yet
START_RETRY_S: Final = 0.1


class Mappings:
    """Of a deployment that began with `groups` MailboxShards. `mapping_log` None: it is never split."""

    def __init__(self, groups: int, mapping_log: MappingLog | None = None) -> None:
        self._log = mapping_log
        self.current = Placement(ShardMapping(groups))
        self._next = 0
        self._turn = asyncio.Lock()
        self.on_change: list[Callable[[Placement], object]] = []  # told each other placement, in this loop

    async def load(self) -> Placement:
        """Read what is new and return what stands. StoreUnavailable; ConfigError for other groups."""
        if self._log is None:
            return self.current
        async with self._turn:
            values, following = await self._log.read(self._next)
            before = self.current.mapping
            mapping = fold(before, values)
            self._next = following
            if mapping != before:
                self.current = Placement(mapping)
                log.info("mapping revision %d: %d shards for readers", mapping.revision, self.current.shards)
                for tell in self.on_change:
                    tell(self.current)
        return self.current

    async def load_at_start(self) -> Placement:
        """As `load`, for a process that starts: a broker that is not ready yet is asked again for a while."""
        loop = asyncio.get_running_loop()
        deadline, delay_s = loop.time() + START_S, START_RETRY_S
        while True:
            try:
                return await self.load()
            except StoreUnavailable as error:
                if loop.time() + delay_s > deadline:
                    raise
                log.warning("mappings are asked for again in %.2f s: %s", delay_s, error)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, 2.0)

    async def at_least(self, version: int) -> Placement:
        """A placement that knows `version`. StoreUnavailable: it cannot be read yet, call again."""
        if self.current.known < version:
            await self.load()
        if self.current.known < version:
            raise StoreUnavailable(
                f"mapping version {version} is not in the log of mappings yet", Outcome.NOT_APPLIED
            )
        return self.current
