"""A whole writer in memory: the real services of the commit and membership stages on verified fakes.

`WriterRig` is one writer process on a `MemoryHotTier` and an Outbox log that it may share with others. It
gives a test what it needs to be a client, a broker and a clock, and to kill the writer at any point.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.tiers import Records
from qim_streams.commit.admission import Admission, AdmissionLimits
from qim_streams.commit.archived_targets import ArchivedTargets
from qim_streams.commit.clock_bound import ReservedClock
from qim_streams.commit.lane_services import LaneLimits, LaneServices
from qim_streams.commit.outcome import SendRequest
from qim_streams.commit.owned_outbox import OwnedOutbox
from qim_streams.commit.ports import ConversationStore, OutboxAppend
from qim_streams.commit.proof import Proof
from qim_streams.commit.relay import OutboxRelay
from qim_streams.commit.repair import OutboxRepair
from qim_streams.commit.requests import Windows
from qim_streams.commit.snapshots import MemberSnapshots
from qim_streams.commit.writer import ConversationWriter, WriterLimits, resource_of
from qim_streams.ids import direct_conversation_id
from qim_streams.membership.changes import ChangeWriter, GroupLimits, Surroundings
from qim_streams.membership.direct import DirectChatMaker
from qim_streams.membership.ports import (
    MembershipReader,
    MembershipStore,
    OrdinalDirectory,
)
from qim_streams.membership.replay import MembershipReplay
from qim_streams.membership.service import GroupService
from qim_streams.ownership.ports import Grant, LeaseStore
from qim_streams.quotas.buckets import TenantQuotas
from qim_streams.spans.service import MessageSpans
from qim_streams.testing.memory_membership import MemoryMembershipStore, MemoryOrdinalDirectory
from qim_streams.testing.memory_outbox import MemoryMembershipLog, MemoryOutbox, MemoryOutboxReader
from qim_streams.testing.memory_tier import (
    MemoryCalls,
    MemoryConversationStore,
    MemoryHotTier,
    MemoryLeaseStore,
)

LEASE_TTL_MS = 15_000


class Died(BaseException):
    """The writer stopped on doubt. Not an Exception: nothing may handle it."""


class MemoryClockBound:
    """`ClockBound` in memory; share it between the boots of one writer."""

    def __init__(self) -> None:
        self.bound_ms = 0

    def load(self) -> int:
        """See the port."""
        return self.bound_ms

    def store(self, bound_ms: int) -> None:
        """See the port."""
        self.bound_ms = bound_ms


class StoreProof:
    """`commit.proof.Proof` by an empty commit, which marks nothing."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def prove(self, partition: int, epoch: int) -> None:
        """See the port."""
        await self._store.commit(partition, epoch, ())


class NobodyOnline:
    """`commit.lane_services.Seats` where nobody is."""

    async def run(self, partition: int) -> int:
        """Nothing was missing."""
        return 0


class WriterRig:
    """One boot of one writer. Stores default to fakes on `tier`."""

    def __init__(
        self,
        tier: MemoryHotTier,
        log: list[OutboxAppend],
        *,
        node: str = "w1",
        boot: int = 1,
        now_ms: Callable[[], int] = lambda: 1_000_000,
        bound: MemoryClockBound | None = None,
        admission: AdmissionLimits | None = None,
        quotas: TenantQuotas | None = None,
        queue_max: int = 10_000,
        lane: LaneLimits | None = None,
        change_log: MemoryMembershipLog | None = None,
        conversations: ConversationStore | None = None,
        membership: MembershipStore | None = None,
        reader: MembershipReader | None = None,
        directory: OrdinalDirectory | None = None,
        leases: LeaseStore | None = None,
        members_max: int = 1_000,
        mailbox_shards: int = 16,
        archive: Records | None = None,
        windows: Windows | None = None,
        proof: Proof | None = None,
        spans: MessageSpans | None = None,
    ) -> None:
        self.tier, self.node, self.boot, self.now_ms = tier, node, boot, now_ms
        self.deaths, self.outbox = list[str](), MemoryOutbox(log)
        self.change_log, self._tokens = change_log or MemoryMembershipLog(), 0
        fake = MemoryMembershipStore(tier, calls := MemoryCalls(tier))
        self.conversations = conversations or MemoryConversationStore(tier, calls)
        self.proof: Proof = proof or StoreProof(self.conversations)
        self.membership: MembershipStore = membership or fake
        self.directory: OrdinalDirectory = directory or MemoryOrdinalDirectory(tier)
        self.leases: LeaseStore = leases or MemoryLeaseStore(tier)
        self.reader: MembershipReader = reader or fake
        self.snapshots = MemberSnapshots(self.reader)
        self.clock = ReservedClock(bound or MemoryClockBound(), boot, now_ms, _at_once)
        limits = GroupLimits(mailbox_shards, members_max, 1_000_000)
        around = Surroundings(now_ms, self._token, self.die, self._no_sleep)
        self.changes = ChangeWriter(self.membership, self.reader, self.change_log, limits, around)
        self.groups = GroupService(self.membership, self.directory, self.changes)
        self.direct_chats = DirectChatMaker(self.changes, self.directory, self.snapshots.put)
        cold, outbox_log = archive or MemoryArchive(), MemoryOutboxReader(log)
        owned = OwnedOutbox(self.outbox, outbox_log, self.die, self._no_sleep)
        services = LaneServices(
            store=self.conversations,
            outbox=owned,
            repair=OutboxRepair(self.conversations, outbox_log, cold),
            replay=MembershipReplay(
                self.membership, self.reader, self.change_log, self.directory, mailbox_shards, now_ms
            ),
            seats=NobodyOnline(),
            proof=self.proof,
            relay=OutboxRelay(self.conversations, owned, self.die, self._no_sleep),
            clock=self.clock,
            direct=self.direct_chats,
            snapshots=self.snapshots,
            admission=Admission(admission or AdmissionLimits(65_536, 500, 0), quotas),
            now_ms=now_ms,
            on_doubt=self.die,
            targets=ArchivedTargets(cold),
            windows=windows or Windows(),
            raise_epoch=self._raise_epoch,
            sleep=self._no_sleep,
            spans=spans,
        )
        self.writer = ConversationWriter(
            services, WriterLimits(queue_max, lane=lane or LaneLimits(confirm_idle_s=0)), tier.partition_of
        )

    async def take(self, *partitions: int) -> None:
        """Take the leases of partitions, as the role does, and wait until they are served."""
        for partition in partitions:
            grant = await self.leases.acquire(
                resource_of(partition), self.node, self.boot, f"{self.node}:1", LEASE_TTL_MS
            )
            assert isinstance(grant, Grant), f"{resource_of(partition)} is held by {grant}"
            await self.writer.grant(grant).ready.wait()

    async def request(
        self, chat: str, sender: str, client_message_id: str, body: bytes = b"hi"
    ) -> SendRequest:
        """A send to a group, with the sender's ordinal as a gateway knows it."""
        (ordinal,) = await self.directory.assign("t", [sender])
        return SendRequest("t", chat, sender, ordinal, "phone", client_message_id, body)

    async def direct(
        self, sender: str, peer: str, client_message_id: str, body: bytes = b"hi"
    ) -> SendRequest:
        """A send to a user."""
        chat = direct_conversation_id("t", sender, peer)
        return (await self.request(chat, sender, client_message_id, body))._replace(to_user_id=peer)

    def kill(self) -> None:
        """End the process: no task of it runs again, nothing of it reaches the log."""
        self.outbox.dead = True
        for task in self.writer.tasks:
            task.cancel()

    async def _raise_epoch(self, partition: int, epoch: int, above: int) -> None:
        await self.leases.raise_epoch(Grant(resource_of(partition), epoch), self.node, self.boot, above)

    def _token(self) -> bytes:
        self._tokens += 1
        return self.boot.to_bytes(8, "big") + self._tokens.to_bytes(8, "big")

    def die(self, why: str, error: BaseException | None = None) -> NoReturn:
        """The way out on doubt: remembers why, kills the writer, raises Died."""
        self.deaths.append(f"{why}: {error}")
        self.kill()
        raise Died(why) from error

    async def _no_sleep(self, _seconds: float) -> None:
        await asyncio.sleep(0)


async def _at_once(store: Callable[[int], None], bound_ms: int) -> None:
    store(bound_ms)
