"""The ConnectionShard of this gateway: its lease, the push partition that goes with it, connection ids.

On a grant: read the partition's end, give every session a connection_id of the new epoch, announce all.
In this order nothing is pushed to an id before somebody reads. On a loss: stop reading; sessions stay
connected and can pull and send; their live streams go on after the next grant, through PresenceReady
and a fill.

A push log that does not answer for `SILENCE_S` is as good as none: this gateway is not ready then, and says
why. Its sessions go by W meanwhile (``unpushed``).

Spec: §6, §11.
"""

import asyncio
import logging
from typing import Any, Final, Protocol

from qim_streams import failpoints
from qim_streams.errors import StoreError
from qim_streams.gateway.registry import Registry
from qim_streams.gateway.session import ClientSession
from qim_streams.ownership.ports import Grant

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
ANNOUNCED_PER_TURN: Final = 500
SILENCE_S: Final = 3.0  # fetches are answered within a tenth of a second, with something or with nothing


class Reader(Protocol):
    """A reader of push partitions (`kafka_push.PushReader`)."""

    @property
    def is_reading(self) -> bool:
        """Whether a partition is being read."""

    @property
    def silent_s(self) -> float:
        """For how long the log has not answered."""

    async def start(self, partition: int) -> None:
        """Read a partition from its present end on; StoreError when that is not possible now."""

    async def stop(self) -> None:
        """Stop reading."""


class ConnectionShard:
    """Follows the lease. `granted` and `lost` are the callbacks of the lease keeper."""

    def __init__(self, registry: Registry[Any], reader: Reader) -> None:
        self._registry, self._reader = registry, reader
        self._grant: Grant | None = None
        self._serving: Grant | None = None
        self._changed = asyncio.Event()

    @property
    def is_serving(self) -> bool:
        """Whether pushes reach the sessions."""
        return not self.trouble

    @property
    def trouble(self) -> str:
        """Why pushes do not reach the sessions; empty when they do."""
        if self._serving is None:
            return "no ConnectionShard is leased, or its push partition cannot be read yet"
        if not self._reader.is_reading:
            return "the push log is not read any more"
        if self._reader.silent_s > SILENCE_S:
            return f"the push log has not answered for {self._reader.silent_s:.0f} s"
        return ""

    def reasons(self) -> list[str]:
        """`trouble` as reasons against being ready."""
        trouble = self.trouble
        return [trouble] if trouble else []

    @property
    def silent_s(self) -> float:
        """For how long the push log has not answered; 0 while none is read."""
        return self._reader.silent_s if self._reader.is_reading else 0.0

    def granted(self, grant: Grant) -> None:
        """The lease is ours."""
        self._grant = grant
        self._changed.set()

    def lost(self, resource: str) -> None:
        """The lease is not ours any more."""
        log.warning("%s is lost; live streams pause", resource)
        self._grant = None
        self._changed.set()

    async def run(self) -> None:
        """Follow the lease for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._grant == self._serving:
                continue
            try:
                await self._follow(self._grant)
            except StoreError as error:
                log.warning("the push partition cannot be read yet: %s", error)
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    def repair(self) -> None:
        """Pushes were lost: let every live stream be promised and filled anew."""
        sessions: list[ClientSession] = self._registry.sessions()
        for session in sessions:
            session.renew_presence()

    async def _follow(self, grant: Grant | None) -> None:
        self._serving = None
        self._registry.unbase()
        if grant is None:
            await self._reader.stop()
            return
        failpoints.hit("gateway.shard_granted")
        partition = int(grant.resource.removeprefix("cs:"))
        await self._reader.start(partition)
        failpoints.hit("gateway.push_log_read")
        if grant != self._grant:
            self._changed.set()
            return
        sessions: list[ClientSession] = self._registry.rebase(partition, grant.epoch)
        self._serving = grant
        for number, session in enumerate(sessions, 1):
            session.renew_presence()
            if number % ANNOUNCED_PER_TURN == 0:
                await asyncio.sleep(0)
