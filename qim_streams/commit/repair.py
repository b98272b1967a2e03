"""OutboxRepair: puts back into the hot tier what it may have lost and the Outbox still has.

A store that restarts after a power loss may have forgotten its last second: sequence numbers that are used,
messages that were acknowledged. The Outbox has all of them, because nothing is acknowledged before it is
there. So the owner of a partition reads the Outbox from behind the last offset that the store knows, and
restores every message, before it numbers a new one: a used number is never issued again.

After an ordinary restart there is little behind that offset: what was acknowledged and not yet confirmed.

Where the Outbox begins behind what the store knows, the archive has to prove the numbers (`lost_range`).

The owner's barrier is in the Outbox before it is read (`owned_outbox`), so nothing that an earlier owner
still has on its way will count, and what lies behind an earlier barrier under an older epoch is left out here
as it is everywhere (`log_fence`).

Edits and recalls are applied to their targets again, also to those that only the archive has.

Invariants: numbers only go up; a message that is there is left alone, but for the edits and recalls of it;
the store's knowledge of the Outbox is complete up to the log's end when `run` returns.

What it does not do: restore changes of members (the change log has them).

Spec: §14.4.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from qim_streams.archive.tiers import Records
from qim_streams.commit.lost_range import LostRange
from qim_streams.commit.ports import NOTHING_COVERED, ConversationStore, Covered, OutboxReader
from qim_streams.commit.rules import ConversationKey
from qim_streams.errors import RecordError, StoreError, StoreUnavailable
from qim_streams.operations.rules import OPERATIONS, operation_of, readable, revision_of
from qim_streams.ownership.log_fence import NO_FENCE, barrier_epoch
from qim_streams.records import MessageRecord, decode_message, decode_outbox

log = logging.getLogger(__name__)

RESTORE_MAX = 500  # messages in one call of the store
PROGRESS_EVERY = 50_000
NOT_IN_LOG = -1  # no barrier: whoever only repairs appends none


@dataclass(slots=True)
class Repaired:
    """`missing`: how many messages the hot tier had lost. `versions`: the highest membership version that a
    message behind the known offset was sent under, per (tenant, conversation). `fence`: the epoch of the last
    barrier in the log; above the owner's own, nothing of the owner will count."""

    missing: int = 0
    versions: dict[ConversationKey, int] = field(default_factory=dict)
    fence: int = NO_FENCE

    def note(self, messages: Sequence[MessageRecord]) -> None:
        """Take these messages' versions into account."""
        for message in messages:
            key = (message.tenant_id, message.conversation_id)
            self.versions[key] = max(message.membership_version, self.versions.get(key, 0))


class OutboxRepair:
    """Repairs partitions at their grant."""

    def __init__(
        self,
        store: ConversationStore,
        outbox: OutboxReader,
        archive: Records,
        lost_range: LostRange | None = None,
    ) -> None:
        """Without `lost_range` an Outbox that lost records is refused (by its reader)."""
        self._store, self._outbox, self._archive = store, outbox, archive
        self._lost_range = lost_range

    async def run(self, partition: int, epoch: int, barrier: int = NOT_IN_LOG) -> Repaired:
        """Restore what is missing; returns what was. `barrier`: the offset of the owner's own.

        FencedError, StoreUnavailable: call again. InvariantViolation: the Outbox no longer has what the store
        may lack.
        """
        # An empty commit first: whatever was sent under this epoch and given up can no longer be applied.
        await self._store.commit(partition, epoch, ())
        known, fence = await self._store.covered(partition, epoch)
        done, begin = Repaired(fence=fence), await self._outbox.begin(partition)
        if barrier == known + 1 >= begin:  # nothing was appended since: nothing to read
            done.fence = max(fence, epoch)
            await self._store.restore(partition, epoch, (), Covered(barrier, done.fence))
            return done
        if begin > known + 1 and self._lost_range is not None:
            await self._lost_range.bridge(partition, epoch, known, begin)
        else:
            begin = known + 1
        await self._restore_from(partition, epoch, begin, done)
        if done.missing:
            log.error(
                "ob:%d: the hot tier had lost %d messages behind offset %d; restored from the Outbox",
                partition, done.missing, known,
            )  # fmt: skip
        return done

    async def _restore_from(self, partition: int, epoch: int, start: int, done: Repaired) -> None:
        """Restore everything from an offset on, under the fence of `done`."""
        last, told = start - 1, start
        async for batch in self._outbox.read(partition, start):
            for first in range(0, len(batch), RESTORE_MAX):
                part = batch[first : first + RESTORE_MAX]
                messages, done.fence = _messages(partition, done.fence, part)
                # Not covered before the targets are back: a kill in between must find these records again.
                done.missing += await self._store.restore(partition, epoch, messages, NOTHING_COVERED)
                await self._restore_targets(partition, epoch, messages)
                await self._store.restore(partition, epoch, (), Covered(part[-1][0], done.fence))
                done.note(messages)
            last = batch[-1][0]
            if last - told >= PROGRESS_EVERY:
                told = last
                log.info("ob:%d: the hot tier is held against the Outbox, at offset %d", partition, last)

    async def _restore_targets(self, partition: int, epoch: int, messages: Sequence[MessageRecord]) -> None:
        """Bring back targets of edits and recalls that only the archive has, and change them again.

        The archive may not have come to these operations yet, and the next one needs their outcome.
        """
        wanted: dict[tuple[str, str, int], int] = {}
        for one in messages:
            operation = operation_of(one)
            if operation is not None:
                at = (one.tenant_id, one.conversation_id, operation.target_seq)
                wanted[at] = max(operation.revision, wanted.get(at, 0))
        hot = await self._store.records(list(wanted)) if wanted else []
        cold = [at for at, row in zip(wanted, hot, strict=True) if row is None]
        if not cold:
            return
        try:
            rows = await self._archive.records(cold)
        except StoreError as error:
            raise StoreUnavailable(f"targets of {len(cold)} edits or recalls: {error}") from error
        found = [target for row in rows if row is not None and (target := readable(row)) is not None]
        if len(found) < len(cold):
            log.error("ob:%d: %d targets of edits or recalls are nowhere", partition, len(cold) - len(found))
        behind = [
            one
            for one in found
            if revision_of(one) < wanted[one.tenant_id, one.conversation_id, one.conversation_seq]
        ]
        if behind:
            operations = [one for one in messages if one.kind in OPERATIONS]
            await self._store.restore(partition, epoch, [*behind, *operations], NOTHING_COVERED)


def _messages(
    partition: int, fence: int, records: Sequence[tuple[int, bytes, bytes]]
) -> tuple[list[MessageRecord], int]:
    """The messages that count, and the fence behind them."""
    messages = []
    for offset, key, value in records:
        try:
            epoch = barrier_epoch(key, value)
            if epoch is not None:
                fence = max(fence, epoch)
                continue
            outbox = decode_outbox(value)
            message = decode_message(outbox.message)
            operation_of(message)  # one that is malformed is not ours either
            if outbox.fencing_epoch >= fence:
                messages.append(message)
            else:
                log.warning("ob:%d: record %d is an old owner's and does not count", partition, offset)
        except RecordError as error:
            # Not ours: nothing that a writer appended. The fan-out stage reports it.
            log.error("Outbox record %d cannot be read: %s", offset, error)
    return messages, fence
