"""Sessions that the push log does not tell anything go by W: nobody waits for a log that is away.

A gateway that is cut off from the broker still reaches the store, and so does the worker that moves W. So
while pushes do not reach this gateway, and for single sessions that nobody has promised anything for too long
(their presence could not be written), W of their shards is read once a second; whoever may have something
new gets it from the mailbox, as a fill (`live`). What the log brings later of the same is dropped there.

Closing these connections instead would help only where another gateway is better off: when the broker itself
is away, all would move for nothing. Readiness tells a load balancer where not to send newcomers.

Cost, of a gateway all of whose sessions are unpushed: a round trip for W of all shards, and per session whose
W moved two commands in a pipeline. A W that stands still costs nothing more.

Invariants: a position moves only over what was read from the store and found empty, or filled; a store that
does not answer changes nothing.

Spec: §6, §7.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from qim_streams.errors import StoreError
from qim_streams.gateway.services import Services
from qim_streams.gateway.session import ClientSession
from qim_streams.mailbox.ports import Stretch, WatermarkState
from qim_streams.sharding.ports import MailboxReader

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
UNPROMISED_S: Final = 5.0  # a presence is answered within a fraction of that
SESSIONS_PER_TRIP_MAX: Final = 500


class PushState(Protocol):
    """Whether pushes reach this gateway (`shard.ConnectionShard`)."""

    @property
    def trouble(self) -> str:
        """Why they do not; empty when they do."""

    @property
    def silent_s(self) -> float:
        """For how long the push log has not answered."""


class Unpushed:
    """`run` is its task. `now_s` is a monotonic clock."""

    def __init__(
        self, services: Services, mailboxes: MailboxReader, pushes: PushState, now_s: Callable[[], float]
    ) -> None:
        self._all, self._mailboxes, self._pushes, self._now_s = services, mailboxes, pushes, now_s
        self._unpromised: dict[ClientSession, float] = {}  # since when, by our clock
        self._said = ""
        self._states: dict[int, WatermarkState] = {}

    async def run(self) -> None:
        """Look after them for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except StoreError as error:
                log.warning("W could not be read, unpushed sessions wait: %s", error)
            except Exception:
                # The next look tries again: they are late by it, nothing else.
                log.exception("unpushed sessions were not looked after")

    async def look(self) -> None:
        """Let every unpushed session have what its mailbox has."""
        trouble = self._pushes.trouble
        counters = self._all.counters
        counters.ready, counters.push_silent_seconds = int(not trouble), self._pushes.silent_s
        if bool(trouble) != bool(self._said):
            log.warning("pushes: %s", trouble or "they reach this gateway again")
        self._said = trouble
        sessions = self._waiting(everybody=bool(trouble))
        counters.unpushed_sessions = len(sessions)
        if sessions:
            await self._serve(sessions)

    def _waiting(self, *, everybody: bool) -> list[ClientSession]:
        now_s, before = self._now_s(), self._unpromised
        self._unpromised, found = {}, []
        for session in self._all.registry.sessions():
            if session.feed is None or not session.is_open:
                continue
            stream = session.feed.stream
            if not stream.is_ready:
                since = self._unpromised[session] = before.get(session, now_s)
                if not everybody and now_s - since < UNPROMISED_S:
                    continue
            elif not everybody:
                continue
            if stream.may_fill:
                found.append(session)
        return found

    async def _serve(self, sessions: Sequence[ClientSession]) -> None:
        shards = list({session.address.shard for session in sessions})
        states = self._states = dict(zip(shards, await self._mailboxes.watermarks(shards), strict=True))
        behind: list[tuple[ClientSession, Stretch]] = []
        for session in sessions:
            assert session.feed is not None
            address = session.address
            watermark = states[address.shard].lanes[address.lane]
            position = session.feed.stream.position
            if watermark > position:
                where = address.shard, address.tenant_id, address.ordinal
                behind.append((session, Stretch(*where, position, watermark)))
        for start in range(0, len(behind), SESSIONS_PER_TRIP_MAX):
            await self._fill(behind[start : start + SESSIONS_PER_TRIP_MAX])

    async def _fill(self, behind: Sequence[tuple[ClientSession, Stretch]]) -> None:
        found = await self._mailboxes.anything([stretch for _, stretch in behind])
        if not all(found):
            found = await self._proved(behind, found)
        for (session, stretch), has_news in zip(behind, found, strict=True):
            if session.feed is None or not session.is_open:
                continue
            if has_news:
                self._all.counters.watermark_fills += session.feed.stream.may_fill
                session.feed.behind(stretch.up_to_seq)
            else:
                session.feed.stream.nothing_until(stretch.up_to_seq)

    async def _proved(
        self, behind: Sequence[tuple[ClientSession, Stretch]], found: Sequence[bool]
    ) -> list[bool]:
        """`found`, but nothing is taken for empty that a store may have lost since W was read."""
        shards = list({stretch.shard for _, stretch in behind})
        now = dict(zip(shards, await self._mailboxes.watermarks(shards), strict=True))
        same = {
            shard for shard in shards
            if now[shard].epoch == self._states[shard].epoch
            and min(now[shard].lanes) >= min(self._states[shard].lanes)
        }  # fmt: skip
        return [has or stretch.shard not in same for has, (_, stretch) in zip(found, behind, strict=True)]
