"""Services: what all sessions of a gateway share, put together once by the role.

Spec: §6, §7.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from qim_streams.gateway.crowd import Crowd
from qim_streams.gateway.logins import Logins
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.gateway.ports import DeviceSessions, WriterLinks
from qim_streams.gateway.presence import PresenceLog
from qim_streams.gateway.presence_watch import NoWatches, Watches
from qim_streams.gateway.push_devices import PushDeviceFrames
from qim_streams.gateway.registry import Registry
from qim_streams.gateway.room_seat import NoRooms, Rooms
from qim_streams.gateway.session_lists import SessionListFrames
from qim_streams.gateway.session_ports import FrameService
from qim_streams.gateway.tokens import TokenVerifier
from qim_streams.gateway.turns import Turns
from qim_streams.history.service import HistoryService
from qim_streams.membership.ports import OrdinalDirectory
from qim_streams.placement import mailbox_shard
from qim_streams.readiness import Readiness
from qim_streams.settings import Settings
from qim_streams.sharding.follower import Mappings
from qim_streams.spans.service import MessageSpans
from qim_streams.sync.pull import PullService
from qim_streams.sync.service import SyncService

DRAINING_MS: Final = 1_000  # until another gateway is asked
PULLS_AT_ONCE_MAX: Final = 64  # in the whole gateway: bounds the memory that bodies take
FILLS_AT_ONCE_MAX: Final = 32  # beside the pulls: who is online already must not wait behind who syncs
SYNCING_QUIET: Final = 100  # sessions that may sync at once before others are asked to wait
SYNC_DELAY_STEP_MS: Final = 10
SYNC_DELAY_MAX_MS: Final = 5_000


@dataclass(slots=True)
class Services:
    """`now_ms` is the wall clock, `random` gives numbers in [0, 1), `registry` holds the sessions."""

    settings: Settings
    tokens: TokenVerifier
    ordinals: OrdinalDirectory
    sync: SyncService
    pulls: PullService
    histories: HistoryService
    sessions: SessionListFrames
    devices: DeviceSessions
    logins: Logins
    writers: WriterLinks
    presence: PresenceLog
    push: PushDeviceFrames
    registry: Registry[Any]
    counters: GatewayCounters
    pull_slots: asyncio.Semaphore
    now_ms: Callable[[], int]
    random: Callable[[], float]
    new_group_id: Callable[[], str]
    watches: Watches = field(default_factory=NoWatches)
    rooms: Rooms = field(default_factory=NoRooms)
    mappings: Mappings | None = None  # None: shards are never split
    spans: MessageSpans | None = None  # None: nothing is traced
    draining: bool = False
    syncing: int = 0  # sessions between AUTH_OK and ONLINE_READY
    turns: Turns = field(default_factory=lambda: Turns(Crowd(time.monotonic)))
    fill_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FILLS_AT_ONCE_MAX))
    readiness: Readiness = field(default_factory=Readiness)  # what besides the pushes is in the way

    @property
    def frame_services(self) -> tuple[FrameService, ...]:
        """Who answers frames that the session itself does not."""
        return self.sessions, self.push, self.watches

    def home(self, tenant_id: str, user_id: str, ordinal: int) -> int:
        """The MailboxShard of a user, as far as this gateway has heard."""
        if self.mappings is None:
            return mailbox_shard(tenant_id, user_id, self.settings.mailbox_shards)
        return self.mappings.current.home(tenant_id, user_id, ordinal)

    def crowded_ms(self) -> int:
        """When somebody who wants to sign on now should come again; 0: now is fine."""
        return DRAINING_MS if self.draining else self.turns.crowd.again_ms()

    def sync_delay_ms(self) -> int:
        """In a storm of reconnects the pulls are spread by chance; nobody waits in quiet times."""
        surplus = self.syncing - SYNCING_QUIET
        if surplus <= 0:
            return 0
        return int(self.random() * min(surplus * SYNC_DELAY_STEP_MS, SYNC_DELAY_MAX_MS))

    def next_refresh(self, now_s: float) -> float:
        """When presence written at `now_s` is due again: after half to all of the interval, at random."""
        return now_s + self.settings.presence_refresh_s * (0.5 + self.random() / 2)
