"""OutboxRelay: appends to the Outbox what was committed in the hot tier and may not have got there.

A message that is committed and not in the Outbox is the most dangerous state of the system: it has a
sequence number and nobody will ever receive it. The commit script therefore puts every message on the
partition's pending list, and the next owner of the partition drains the list before it takes a request.

Invariants: per conversation in seq order; a message leaves the list only after its append was acknowledged;
what may be there twice is marked RELAYED.

Spec: §14.3.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NoReturn

from qim_streams import failpoints
from qim_streams.commit.ports import Confirmed, ConversationStore, Outbox, OutboxAppend, PendingMessage
from qim_streams.errors import Outcome, StoreError
from qim_streams.records import OUTBOX_RELAYED, OutboxRecord, record_key

log = logging.getLogger(__name__)

RELAY_BATCH = 500
FULL_RETRY_S = 0.02


class OutboxRelay:
    """Drains pending lists. `on_doubt` does not return: an append that fails has an unknown outcome."""

    def __init__(
        self,
        store: ConversationStore,
        outbox: Outbox,
        on_doubt: Callable[[str, BaseException | None], NoReturn],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store, self._outbox = store, outbox
        self._on_doubt, self._sleep = on_doubt, sleep

    async def drain(self, partition: int, epoch: int, skip: Collection[bytes] = ()) -> int:
        """Append and confirm all pending messages but those in `skip`; returns how many.

        FencedError, StoreUnavailable: some may be done; call again.
        """
        # An empty commit first: whatever was sent under this epoch and given up can no longer be applied,
        # so the list that is read now cannot grow behind our back.
        await self._store.commit(partition, epoch, ())
        count = 0
        while True:
            limit = RELAY_BATCH + len(skip)
            found = await self._store.pending(partition, epoch, limit)
            todo = [message for message in found if message.message_id not in skip][:RELAY_BATCH]
            failpoints.hit("relay.pending_read")
            if not todo:
                return count
            offsets = await append_all(
                self._outbox,
                [_relayed(partition, epoch, message) for message in todo],
                self._on_doubt,
                self._sleep,
            )
            failpoints.hit("relay.pending_appended")
            confirmed = Confirmed([message.message_id for message in todo], max(offsets))
            await self._store.confirm(partition, epoch, confirmed)
            count += len(todo)


async def hand_over(
    outbox: Outbox,
    records: Sequence[OutboxAppend],
    on_doubt: Callable[[str, BaseException | None], NoReturn],
    sleep: Callable[[float], Awaitable[None]],
) -> Awaitable[list[int]]:
    """Hand records over, waiting for room; what comes back is to be awaited for the acknowledgement."""
    while True:
        try:
            return outbox.append(records)
        except StoreError as error:
            if error.outcome is not Outcome.NOT_APPLIED:
                on_doubt("an Outbox append failed", error)
            log.warning("the Outbox producer is full, %d records wait", len(records))
        await sleep(FULL_RETRY_S)


async def append_all(
    outbox: Outbox,
    records: Sequence[OutboxAppend],
    on_doubt: Callable[[str, BaseException | None], NoReturn],
    sleep: Callable[[float], Awaitable[None]],
) -> list[int]:
    """Append records and wait until all are acknowledged; returns their offsets."""
    acknowledged = await hand_over(outbox, records, on_doubt, sleep)
    try:
        return await acknowledged
    except StoreError as error:
        on_doubt("an Outbox append was not acknowledged", error)


def _relayed(partition: int, epoch: int, message: PendingMessage) -> OutboxAppend:
    value = OutboxRecord(message.record, epoch, OUTBOX_RELAYED, None).encode()
    return OutboxAppend(partition, record_key(message.tenant_id, message.conversation_id), value)
