"""LostRange: what a hot tier lacks and the Outbox has no more, because retention took it.

The numbers that were used in there are proved by the archive: its watermark says that it holds every message
up to an offset, and it names the last number of each conversation. The conversations themselves are named by
the membership change log, which is compacted and never loses one. So the newest archived message of each
goes back into the hot tier, and numbering goes on behind it.

Where the archive has not come that far, nobody knows which numbers were used, and the partition is not
served until an operator says that the loss is accepted. Then each conversation leaves out as many numbers as
records are missing, which is more than it can have used.

Invariants: a number that was used is not issued again, whatever is accepted.

What it does not do: read what the Outbox still has (`repair` does).

Spec: §14.4, §14.8.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from qim_streams.commit.ports import NOTHING_COVERED, ConversationStore
from qim_streams.commit.rules import ConversationKey
from qim_streams.errors import InvariantViolation, Outcome, RecordError, StoreError, StoreUnavailable
from qim_streams.membership.ports import ChangeLogReader
from qim_streams.membership.rows import decode_log_row
from qim_streams.records import MessageRecord, decode_message

log = logging.getLogger(__name__)

NOTHING = -1
CONVERSATIONS_PER_CALL = 200


class ArchivedNumbers(Protocol):
    """The part of the archive that proves numbers."""

    async def watermark(self, partition: int) -> int:
        """The last Outbox offset up to which everything is archived, -1 for none."""

    async def latest(self, tenant_id: str, conversation_id: str) -> int:
        """The largest archived seq of a conversation, 0 for none."""

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where the archive has none."""


class Acceptance(Protocol):
    """What an operator accepted to lose (`qim repair run --accept`)."""

    async def accepted(self, partition: int) -> int:
        """Everything below this Outbox offset may be lost; -1: nothing may."""


class NothingAccepted:
    """An `Acceptance` without an operator."""

    async def accepted(self, partition: int) -> int:
        """Nothing."""
        return NOTHING


class LostRange:
    """Bridges the gap between a hot tier and the beginning of the Outbox."""

    def __init__(
        self,
        store: ConversationStore,
        change_log: ChangeLogReader,
        archive: ArchivedNumbers,
        acceptance: Acceptance | None = None,
    ) -> None:
        self._store, self._log, self._archive = store, change_log, archive
        self._acceptance = acceptance or NothingAccepted()

    async def bridge(self, partition: int, epoch: int, known: int, begin: int) -> int:
        """Prove the numbers used at the offsets `known` + 1 to `begin` - 1; how many conversations there are.

        StoreUnavailable also when nobody can, until an operator has accepted the loss: call again.
        FencedError: another owner.
        """
        archived = await self._watermark(partition)
        missing = begin - 1 - max(known, archived)
        if missing > 0 and await self._acceptance.accepted(partition) < begin:
            raise StoreUnavailable(unproved(partition, known, archived, begin), Outcome.NOT_APPLIED)
        conversations = await self._conversations(partition)
        log.error(
            "ob:%d: the hot tier knows the Outbox up to %d and it begins at %d: the last numbers of %d "
            "conversations come from the archive%s",
            partition, known, begin, len(conversations),
            f", {missing} numbers of each are left out" if missing > 0 else "",
        )  # fmt: skip
        for start in range(0, len(conversations), CONVERSATIONS_PER_CALL):
            part = conversations[start : start + CONVERSATIONS_PER_CALL]
            await self._some(partition, epoch, part, max(0, missing))
        return len(conversations)

    async def _some(self, partition: int, epoch: int, part: Sequence[ConversationKey], gap: int) -> None:
        try:
            last = [(*key, await self._archive.latest(*key)) for key in part]
            wanted = [one for one in last if one[2]]
            rows = await self._archive.records(wanted)
        except StoreError as error:
            raise StoreUnavailable(f"ob:{partition}: the archive has to prove numbers: {error}") from error
        await self._store.restore(
            partition, epoch, [_message(*one) for one in zip(wanted, rows, strict=True)], NOTHING_COVERED
        )
        if gap:
            await self._store.leave_out(
                partition, epoch, [(tenant, chat, seq + gap) for tenant, chat, seq in last]
            )

    async def _watermark(self, partition: int) -> int:
        try:
            return await self._archive.watermark(partition)
        except StoreError as error:
            raise StoreUnavailable(f"ob:{partition}: the archive has to prove numbers: {error}") from error

    async def _conversations(self, partition: int) -> list[ConversationKey]:
        """Every conversation that the change log names."""
        found: dict[ConversationKey, None] = {}
        async for batch in self._log.read(partition, 0):
            for offset, key, value in batch:
                try:
                    decode_log_row(key, value)
                except RecordError as error:
                    log.error("change log row %d cannot be read: %s", offset, error)
                    continue
                tenant, chat, _ = key.decode().split("\0")
                found[tenant, chat] = None
        return list(found)


def unproved(partition: int, known: int, archived: int, begin: int) -> str:
    """What an operator is told: what is missing, what to do, what it costs."""
    first, last = max(known, archived) + 1, begin - 1
    count = last - first + 1
    return (
        f"P1 ob:{partition}: the hot tier lost its numbers, and the records {first} to {last} of "
        f"qim.outbox.v1 are gone by retention before they were archived (archive watermark {archived}). "
        "Restore Redis, the topic or the archive from a copy; or give up the messages in there with "
        f"`qim repair run --accept ob:{partition}`: up to {count} messages are lost to history and rebuilds, "
        f"and each conversation of the partition leaves {count} numbers out, so that none is used twice"
    )


def _message(address: tuple[str, str, int], row: bytes | None) -> MessageRecord:
    tenant, chat, seq = address
    if row is None:
        raise InvariantViolation(
            f"the archive names {seq} as the last number of {tenant}/{chat} and lacks it"
        )
    try:
        return decode_message(row)
    except RecordError as error:
        raise InvariantViolation(
            f"the last archived message of {tenant}/{chat} cannot be read: {error}"
        ) from error
