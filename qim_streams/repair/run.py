"""Brings partitions back: by their owners where there are some, else under leases of our own.

A partition is repaired by whoever owns it, before it is served. So while writers live there is nothing to do
but to wait and to show how far they are. Without writers the repair takes the leases itself, one partition
after the other, does exactly what a writer does at a grant, and gives them back. A writer that starts
meanwhile waits for the lease or, where it has taken one over, fences what is still under way here.

Mailboxes are written again by the mailbox workers; they are only waited for.

Invariants: safe to kill and to repeat at any moment: every step is one that a writer would repeat.

Spec: §11, §14.4.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from qim_streams.errors import ConfigError, FencedError, StoreError, StoreUnavailable
from qim_streams.ownership.ports import Grant, LeaseStore
from qim_streams.repair.rules import OutboxStanding, RepairStatus, Standing

Recover = Callable[[int, int], Awaitable[tuple[int, int]]]  # (partition, epoch) -> messages, versions
Tell = Callable[[str], object]
POLL_S = 1.0
RENEWALS_PER_TTL = 4


@dataclass(frozen=True, slots=True)
class RepairTerms:
    """Who we are to the lease store, and how long to wait for what others do."""

    node: str
    ttl_ms: int
    wait_s: float
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic


class RepairRun:
    """One ``qim repair run``. `read` gives the status, `recover` does a partition, `tell` shows progress."""

    def __init__(
        self,
        read: Callable[[], Awaitable[RepairStatus]],
        leases: LeaseStore,
        recover: Recover,
        terms: RepairTerms,
        tell: Tell,
    ) -> None:
        self._read, self._leases, self._recover = read, leases, recover
        self._terms, self._tell = terms, tell

    async def run(self) -> RepairStatus:
        """Repair and wait; the status at the end, whole or not."""
        status = await self._read()
        refuse_lost(status.outbox)
        until_s = self._terms.monotonic() + self._terms.wait_s
        told: set[str] = set()
        while not status.is_whole:
            open_partitions = [one for one in status.outbox if one.standing is not Standing.WHOLE]
            if open_partitions and not status.writers:
                for one in open_partitions:
                    await self._partition(one)
            else:
                self._tell_once(told, waiting_for(status))
                if self._terms.monotonic() >= until_s:
                    return status
                await self._terms.sleep(POLL_S)
            status = await self._read()
        return status

    def _tell_once(self, told: set[str], lines: Sequence[str]) -> None:
        for line in lines:
            if line not in told:
                told.add(line)
                self._tell(line)

    async def _partition(self, one: OutboxStanding) -> None:
        """Repair one partition under a lease of our own."""
        resource, terms = f"ob:{one.partition}", self._terms
        answer = await self._leases.acquire(resource, terms.node, 1, "", terms.ttl_ms)
        if not isinstance(answer, Grant):
            self._tell(f"{resource}: {answer.node} holds the lease for {answer.remaining_ms} ms more")
            await terms.sleep(min(POLL_S, max(0.05, answer.remaining_ms / 1_000)))
            return
        records, rows = one.records_behind, one.changes_behind
        self._tell(f"{resource}: {records} Outbox records and {rows} rows of members to compare")
        renewing = asyncio.create_task(self._renew(answer))
        try:
            messages, versions = await self._recover(one.partition, answer.epoch)
            self._tell(
                f"{resource}: whole; {messages} messages and {versions} membership versions were missing"
            )
        except FencedError:
            self._tell(f"{resource}: a writer has taken it over and repairs it")
        except StoreUnavailable as error:
            self._tell(f"{resource}: waits: {error}")
            await terms.sleep(POLL_S)
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
            with contextlib.suppress(StoreError):  # it runs out by itself
                await self._leases.release([answer], terms.node, 1)

    async def _renew(self, grant: Grant) -> None:
        while True:
            await asyncio.sleep(self._terms.ttl_ms / 1_000 / RENEWALS_PER_TTL)
            with contextlib.suppress(StoreError):  # a lease that ran out fences the next write
                await self._leases.renew([grant], self._terms.node, 1, self._terms.ttl_ms)


def refuse_lost(outbox: Sequence[OutboxStanding]) -> None:
    """ConfigError that names what cannot be proved, and what accepting that costs."""
    lost = [one for one in outbox if one.standing is Standing.LOST]
    if lost:
        raise ConfigError("; ".join(cost_of(one) for one in lost))


def cost_of(one: OutboxStanding) -> str:
    """What accepting the loss of a partition costs."""
    first, count = max(one.tail, one.archived) + 1, one.lost_records
    return (
        f"ob:{one.partition}: Outbox records {first} to {one.begin - 1} are in no log and no archive. "
        f"Restore Redis, the topic or the archive from a copy, or repeat with --accept ob:{one.partition}: "
        f"up to {count} messages are lost to history, and each conversation of the partition leaves {count} "
        "numbers out"
    )


def waiting_for(status: RepairStatus) -> list[str]:
    """What others still have to do, one line each."""
    lines = [
        f"ob:{one.partition}: {one.standing.value}, its writer is at offset {one.tail} of {one.end - 1}"
        for one in status.outbox
        if one.standing is not Standing.WHOLE
    ]
    return lines + [
        f"s:{one.shard}: mailboxes at {one.watermark} of {one.goal}"
        + ("" if one.owned else ", no mailbox worker owns it: start one")
        for one in status.shards
        if one.standing is not Standing.WHOLE
    ]
