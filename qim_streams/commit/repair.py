"""OutboxRepair: puts back into the hot tier what it may have lost and the Outbox still has.

A store that restarts after a power loss may have forgotten its last second: sequence numbers that are used,
messages that were acknowledged. The Outbox has all of them, because nothing is acknowledged before it is
there. So the owner of a partition reads the Outbox from behind the last offset that the store knows, and
restores every message, before it numbers a new one: a used number is never issued again.

After an ordinary restart there is little behind that offset: what was acknowledged and not yet confirmed.

Where the Outbox begins behind what the store knows, the archive has to prove the numbers (`lost_range`). A
store that knows nothing at all of an Outbox that has records was emptied: then an owner that nobody remembers
may still have records on their way, so the log is read again until nothing came for `settle_s`.

Edits and recalls are applied to their targets again, also to those that only the archive has.

Invariants: numbers only go up; a message that is there is left alone, but for the edits and recalls of it;
the store's knowledge of the Outbox is complete up to the log's end when `run` returns.

What it does not do: restore changes of members (the change log has them).

Spec: §14.4.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from qim_streams.archive.tiers import Records
from qim_streams.commit.lost_range import LostRange
from qim_streams.commit.ports import ConversationStore, OutboxReader
from qim_streams.commit.rules import ConversationKey
from qim_streams.errors import RecordError, StoreError, StoreUnavailable
from qim_streams.operations.rules import OPERATIONS, operation_of, readable, revision_of
from qim_streams.records import MessageRecord, decode_message, decode_outbox

log = logging.getLogger(__name__)

RESTORE_MAX = 500  # messages in one call of the store
PROGRESS_EVERY = 50_000
NOTHING = -1


@dataclass(slots=True)
class Repaired:
    """`missing`: how many messages the hot tier had lost. `versions`: the highest membership version that a
    message behind the known offset was sent under, per (tenant, conversation)."""

    missing: int = 0
    versions: dict[ConversationKey, int] = field(default_factory=dict)

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
        *,
        settle_s: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Without `lost_range` an Outbox that lost records is refused (by its reader)."""
        self._store, self._outbox, self._archive = store, outbox, archive
        self._lost_range, self._settle_s, self._sleep = lost_range, settle_s, sleep

    async def run(self, partition: int, epoch: int) -> Repaired:
        """Restore what is missing; returns what was.

        FencedError, StoreUnavailable: call again. InvariantViolation: the Outbox no longer has what the store
        may lack.
        """
        # An empty commit first: whatever was sent under this epoch and given up can no longer be applied.
        await self._store.commit(partition, epoch, ())
        known = await self._store.covered(partition, epoch)
        done, begin = Repaired(), await self._outbox.begin(partition)
        if begin > known + 1 and self._lost_range is not None:
            await self._lost_range.bridge(partition, epoch, known, begin)
        else:
            begin = known + 1
        last = await self._restore_from(partition, epoch, begin, done)
        while known == NOTHING and last >= begin and self._settle_s:
            log.warning("ob:%d: emptied; what is still on its way gets %.1f s", partition, self._settle_s)
            await self._sleep(self._settle_s)
            begin, last = last + 1, await self._restore_from(partition, epoch, last + 1, done)
        if done.missing:
            log.error(
                "ob:%d: the hot tier had lost %d messages behind offset %d; restored from the Outbox",
                partition, done.missing, known,
            )  # fmt: skip
        return done

    async def _restore_from(self, partition: int, epoch: int, start: int, done: Repaired) -> int:
        """Restore everything from an offset on; the last offset, `start` - 1 when there was nothing."""
        last, told = start - 1, start
        async for batch in self._outbox.read(partition, start):
            for first in range(0, len(batch), RESTORE_MAX):
                part = batch[first : first + RESTORE_MAX]
                messages = _messages(part)
                # Not covered before the targets are back: a kill in between must find these records again.
                done.missing += await self._store.restore(partition, epoch, messages, NOTHING)
                await self._restore_targets(partition, epoch, messages)
                await self._store.restore(partition, epoch, (), part[-1][0])
                done.note(messages)
            last = batch[-1][0]
            if last - told >= PROGRESS_EVERY:
                told = last
                log.info("ob:%d: the hot tier is held against the Outbox, at offset %d", partition, last)
        return last

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
            await self._store.restore(partition, epoch, [*behind, *operations], NOTHING)


def _messages(records: Sequence[tuple[int, bytes, bytes]]) -> list[MessageRecord]:
    messages = []
    for offset, _, value in records:
        try:
            message = decode_message(decode_outbox(value).message)
            operation_of(message)  # one that is malformed is not ours either
            messages.append(message)
        except RecordError as error:
            # Not ours: nothing that a writer appended. The fan-out stage reports it.
            log.error("Outbox record %d cannot be read: %s", offset, error)
    return messages
