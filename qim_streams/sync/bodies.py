"""Common bodies for pulls: from the hot tier, else from the archive, encoded once for many readers.

When a group comes back after an outage, everybody pulls the same messages. A body is therefore kept for
a few seconds after it was read, within a bound on count and bytes: long enough to serve a rush with one
read and one encoding, short enough that a message which changed its state is not shown as it was.

Spec: §7.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from qim_streams.errors import RecordError, SyncVerdict
from qim_streams.lru import LruMap
from qim_streams.operations.shown import see_targets
from qim_streams.records import MessageRecord, UserMailboxEntry, decode_message
from qim_streams.sync.ports import BodyReader
from qim_streams.wire.events import common_body

FRESH_S: Final = 5.0
BODIES_KEPT_MAX: Final = 50_000
BYTES_KEPT_MAX: Final = 64 * 1024 * 1024

_Place = tuple[str, str, int]


class PulledBodies:
    """Reads common bodies in bulk. `archive` may be None while there is none."""

    def __init__(
        self, hot: BodyReader, archive: BodyReader | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._hot, self._archive, self._monotonic = hot, archive, monotonic
        self._kept: LruMap[tuple[str, bytes], tuple[float, bytes]] = LruMap(BODIES_KEPT_MAX, BYTES_KEPT_MAX)

    async def load(self, tenant_id: str, entries: Sequence[UserMailboxEntry]) -> list[bytes]:
        """The common body of each entry's message; SyncVerdict BODY_UNAVAILABLE when one is nowhere."""
        now_s = self._monotonic()
        found = [self._fresh((tenant_id, entry.message_id), now_s) for entry in entries]
        for tier in (self._hot, self._archive):
            missing = [index for index, body in enumerate(found) if body is None]
            if missing and tier is not None:
                wanted = [_place(tenant_id, entries[index]) for index in missing]
                rows = await tier.records(wanted)
                messages = [_decoded(entries[index], row) for index, row in zip(missing, rows, strict=True)]
                await see_targets(messages, [one for one in (self._hot, self._archive) if one is not None])
                for index, message in zip(missing, messages, strict=True):
                    found[index] = self._keep(tenant_id, message, now_s)
        return [_present(body, entry) for body, entry in zip(found, entries, strict=True)]

    def _fresh(self, key: tuple[str, bytes], now_s: float) -> bytes | None:
        kept = self._kept.get(key)
        return kept[1] if kept is not None and now_s - kept[0] < FRESH_S else None

    def _keep(self, tenant_id: str, message: MessageRecord | None, now_s: float) -> bytes | None:
        if message is None:
            return None
        body = common_body(message)
        self._kept.put((tenant_id, message.message_id), (now_s, body), len(body))
        return body


def _place(tenant_id: str, entry: UserMailboxEntry) -> _Place:
    return tenant_id, entry.conversation_id, entry.conversation_seq


def _decoded(entry: UserMailboxEntry, row: bytes | None) -> MessageRecord | None:
    """The entry's message; None when there is no record, or not this message's."""
    if row is None:
        return None
    try:
        message = decode_message(row)
    except RecordError:
        return None  # counts as missing here: the other tier may have it whole
    return message if message.message_id == entry.message_id else None


def _present(body: bytes | None, entry: UserMailboxEntry) -> bytes:
    if body is None:
        raise SyncVerdict(
            "BODY_UNAVAILABLE",
            f"message {entry.conversation_seq} of {entry.conversation_id} has no readable body",
        )
    return body
