"""Movements: sessions whose users' shards were split, taken over to the new shard while they go on.

Once a split is settled, a session of a user who moved gets his new address: its presence is told to the new
shard's owner, its live stream holds what comes until that owner has promised it, and then fills what the old
shard had left. The client sees at most a moment of silence. A gateway that hears of it late costs its users
that long; nothing is lost, since a position means the same in both shards.

Invariants: a session's pulls, fills and cursors name one shard at a time; who signed on while the news came
is found by the looks that follow.

Spec: §6, §7, §11.
"""

import asyncio
import logging
from typing import Final

from qim_streams.errors import StoreError
from qim_streams.gateway.services import Services
from qim_streams.gateway.session import ClientSession
from qim_streams.sharding.follower import LOOK_S, LOOK_SOON_S, Mappings
from qim_streams.sharding.rules import Placement
from qim_streams.sync.ports import ShardEpochs

log = logging.getLogger(__name__)

LOOK_FOR_S: Final = 30.0  # after news: longer than a sign-on that began before may take
AT_ONCE: Final = 200  # then other work of the loop gets its turn


class Movements:
    """`run` is its task."""

    def __init__(self, services: Services, mappings: Mappings, epochs: ShardEpochs) -> None:
        self._all, self._mappings, self._epochs = services, mappings, epochs

    async def run(self) -> None:
        """Look for news for ever."""
        loop = asyncio.get_running_loop()
        told, until_s = self._mappings.current.version, 0.0
        while True:
            mapping = self._mappings.current.mapping
            await asyncio.sleep(LOOK_SOON_S if mapping.under_way is not None else LOOK_S)
            try:
                placement = await self._mappings.load()
                if placement.version != told:
                    told, until_s = placement.version, loop.time() + LOOK_FOR_S
                if loop.time() < until_s:
                    await self.look(placement)
            except StoreError as error:
                log.warning("users of split shards wait where they are: %s", error)
            except Exception:
                # The next look tries again: their sessions are late by it, nothing else.
                log.exception("users of split shards were not moved")

    async def look(self, placement: Placement) -> int:
        """Move every session that is elsewhere than its user; how many there were."""
        epochs: dict[int, int] = {}
        count = 0
        for session in self._all.registry.sessions():
            home = self._home(placement, session)
            if home is None:
                continue
            if home not in epochs:
                epochs[home] = await self._epochs.current(home)
            if not epochs[home] or self._home(placement, session) != home:
                continue  # nobody serves it yet, or the session went while we asked
            parts = placement.parts(home)
            session.move(home, epochs[home], parts[-2].through)
            count += 1
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
        if count:
            log.info("%d sessions follow their users to other shards", count)
        return count

    def _home(self, placement: Placement, session: ClientSession) -> int | None:
        """Where a session belongs, None where it is."""
        if not session.is_open:
            return None
        address = session.address
        home = placement.home(address.tenant_id, address.user_id, address.ordinal)
        return None if home == address.shard else home
