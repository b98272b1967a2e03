"""The newest messages of conversations as a list needs them, out of both tiers.

The hot tier is asked first and the archive about what it lacks, as in `history.blocks`: nothing is trimmed
that is not archived, so what neither has was never a message.

What it does not do: keep anything. States of messages change (edits, recalls), so every answer is read anew.

Spec: §9, §14.8.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from qim_streams import limits
from qim_streams.errors import RecordError
from qim_streams.history.ports import ArchiveRanges, HistoryStore
from qim_streams.history.rules import Span
from qim_streams.records import STATE_RECALLED, MessageRecord, decode_message
from qim_streams.sessions.rules import TailMessage

log = logging.getLogger(__name__)

READS_AT_ONCE_MAX: Final = 16


class Tails:
    """Reads stretches of conversations in either tier."""

    def __init__(self, hot: HistoryStore, archive: ArchiveRanges) -> None:
        self._hot, self._archive = hot, archive
        self._slots = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def read(self, tenant_id: str, conversation_id: str, span: Span) -> dict[int, TailMessage]:
        """The messages of `span` by number. StoreError: a tier does not answer; ask again later."""
        async with self._slots:
            _, rows = await self._hot.rows(tenant_id, conversation_id, [span])
            found = parsed(zip(range(span.low, span.high + 1), rows, strict=True))
            if len(found) <= span.high - span.low:
                missing = [seq for seq in range(span.low, span.high + 1) if seq not in found]
                low, high = missing[0], missing[-1]
                archived = await self._archive.range(
                    tenant_id, conversation_id, low - 1, high, high - low + 1
                )
                cold = parsed((one.conversation_seq, one.record) for one in archived)
                found = cold | found
            return found


def readable(record: bytes) -> TailMessage | None:
    """What a list needs of a record's bytes; one that cannot be read is logged and counts as nothing."""
    try:
        return tail_message(decode_message(record))
    except RecordError as error:
        log.error("a message cannot be read for a list: %s", error)
        return None


def parsed(rows: Iterable[tuple[int, bytes | None]]) -> dict[int, TailMessage]:
    """The messages of (number, record) rows."""
    found = {seq: readable(row) for seq, row in rows if row is not None}
    return {seq: message for seq, message in found.items() if message is not None}


def tail_message(message: MessageRecord) -> TailMessage:
    """What a list needs of a record. A recalled message shows nothing of its body."""
    recalled = message.state == STATE_RECALLED
    size = limits.SESSION_PREVIEW_BYTES
    return TailMessage(
        message.conversation_seq,
        message.message_id,
        message.sender_id,
        message.kind,
        message.state,
        message.committed_at,
        b"" if recalled else message.body[:size],
        not recalled and len(message.body) > size,
    )
