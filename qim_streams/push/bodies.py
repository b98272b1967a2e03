"""Common bodies of recent messages: read in bulk from the hot tier, encoded once, kept for a while.

A message goes to several shards and, in them, to several batches: it is read once per worker as long as
it is recent. The cache is bounded by count and by bytes.

Spec: §6.
"""

from collections.abc import Sequence

from qim_streams.errors import RecordError
from qim_streams.lru import LruMap
from qim_streams.operations.shown import see_targets
from qim_streams.push import metrics
from qim_streams.push.ports import MessageReader
from qim_streams.records import GroupDispatch, MessageRecord, decode_message
from qim_streams.wire.events import common_body

_BYTES_PER_BODY = 4_096  # the cache's weight bound, per body of its count bound


class CommonBodies:
    """Common bodies by message_id."""

    def __init__(self, reader: MessageReader, count_max: int) -> None:
        self._reader = reader
        self._cache: LruMap[bytes, bytes] = LruMap(count_max, count_max * _BYTES_PER_BODY)

    async def load(self, dispatches: Sequence[GroupDispatch]) -> dict[bytes, bytes]:
        """The common body of each message that the hot tier still has; one read for all others."""
        found: dict[bytes, bytes] = {}
        wanted: dict[bytes, GroupDispatch] = {}
        for one in dispatches:
            body = self._cache.get(one.message_id)
            if body is not None:
                found[one.message_id] = body
            else:
                wanted[one.message_id] = one
        if wanted:
            places = [(one.tenant_id, one.conversation_id, one.conversation_seq) for one in wanted.values()]
            rows = await self._reader.records(places)
            messages = [_decoded(*pair) for pair in zip(wanted, rows, strict=True)]
            await see_targets(messages, (self._reader,))
            for message in messages:
                if message is not None:
                    body = found[message.message_id] = common_body(message)
                    self._cache.put(message.message_id, body, len(body))
        return found


def _decoded(message_id: bytes, row: bytes | None) -> MessageRecord | None:
    if row is not None:
        try:
            message = decode_message(row)
        except RecordError:
            message = None
        if message is not None and message.message_id == message_id:
            return message
    metrics.BODIES_MISSING.inc()
    return None
