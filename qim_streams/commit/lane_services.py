"""What lanes are made of: jobs, and the services that all lanes of a process share."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from qim_streams.commit.admission import Admission, Ticket
from qim_streams.commit.clock_bound import ReservedClock
from qim_streams.commit.outcome import SendOutcome, SendRequest
from qim_streams.commit.owned_outbox import OwnedOutbox
from qim_streams.commit.ports import ConversationStore, DirectChats, Replay
from qim_streams.commit.proof import Proof
from qim_streams.commit.relay import OutboxRelay
from qim_streams.commit.repair import OutboxRepair
from qim_streams.commit.requests import Windows
from qim_streams.commit.snapshots import MemberSnapshots
from qim_streams.spans.service import MessageSpans


class Seats(Protocol):
    """Puts lost ordinals of users back who are in no change log, at the grant of a partition."""

    async def run(self, partition: int) -> int:
        """How many were missing. StoreUnavailable: call again."""


class SendJob:
    """A request on its way through a lane. `reply` is called exactly once."""

    __slots__ = ("archived", "deadline_s", "on_done", "reply", "request", "ticket")

    def __init__(
        self, request: SendRequest, reply: Callable[[SendOutcome], object], deadline_s: float
    ) -> None:
        """`deadline_s` (monotonic clock): from then on it is refused rather than committed."""
        self.request, self.reply, self.deadline_s = request, reply, deadline_s
        self.ticket: Ticket = 0  # what admission says to a new message
        self.archived = b""  # of an edit or recall: the target's record, when it was read in the archive
        self.on_done: Callable[[SendJob], object] | None = None

    def answer(self, outcome: SendOutcome) -> None:
        """Give the answer."""
        if self.on_done is not None:
            self.on_done(self)
        self.reply(outcome)


class Targets(Protocol):
    """Reads what edits and recalls name and the hot tier no longer has (`archived_targets`)."""

    def fetch(self, job: SendJob, found: Callable[[SendJob], None]) -> None:
        """Read the target of `job`; then `found` is called with it, or it is answered. Returns at once."""


RaiseEpoch = Callable[[int, int, int], Awaitable[object]]  # (partition, epoch, an epoch to get above)


@dataclass(frozen=True, slots=True)
class LaneServices:
    """What lanes of one process share. `on_doubt` does not return.

    `raise_epoch`: a log that knows a higher epoch than the lease store gave us; StoreUnavailable: call again.
    `spans`: None while nothing is traced.
    """

    store: ConversationStore
    outbox: OwnedOutbox
    repair: OutboxRepair
    replay: Replay
    seats: Seats
    proof: Proof
    relay: OutboxRelay
    clock: ReservedClock
    direct: DirectChats
    snapshots: MemberSnapshots
    admission: Admission
    now_ms: Callable[[], int]
    on_doubt: Callable[[str, BaseException | None], NoReturn]
    targets: Targets
    windows: Windows
    raise_epoch: RaiseEpoch
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    spans: MessageSpans | None = None


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """`confirm_idle_s`: how long an acknowledged message may wait for a commit call that confirms it."""

    group_max: int = 512
    group_bytes_max: int = 1024 * 1024
    confirm_idle_s: float = 0.05
