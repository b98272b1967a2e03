"""The shards of a membership version: inline when the conversation is small, else read in bulk.

A version is immutable, so what was read once is kept (bounded).

Spec: §4.
"""

import asyncio
import logging
from collections.abc import Sequence

from qim_streams.errors import RecordError
from qim_streams.fanout.plan import OutboxMessage, ShardMap
from qim_streams.lru import LruMap
from qim_streams.membership.ports import MembershipReader

log = logging.getLogger(__name__)

_SHARDS_PER_VERSION = 64  # the cache's weight bound, per version of its count bound
_ATTEMPTS = 6
_FIRST_WAIT_S = 0.05

_Key = tuple[str, str, int]


class MembershipVersions:
    """Shard maps of the versions that messages are pinned to. `count_max` versions are kept."""

    def __init__(self, reader: MembershipReader, count_max: int) -> None:
        self._reader = reader
        self._cache: LruMap[_Key, dict[int, tuple[int, bytes | None]]] = LruMap(
            count_max, count_max * _SHARDS_PER_VERSION
        )

    async def load(self, messages: Sequence[OutboxMessage]) -> list[ShardMap | None]:
        """The shard map of each message's version; None when the store does not know the version.

        An unknown version is asked for a few times over about three seconds, since the store may be
        catching up after a restart.
        """
        inline: list[ShardMap | None] = [one.outbox.members for one in messages]
        if None not in inline:
            return inline  # small conversations: the usual case
        keys = [_key(one) if one.outbox.members is None else None for one in messages]
        known = await self._known(list(dict.fromkeys(key for key in keys if key is not None)))
        return [
            known.get(key) if key is not None else one.outbox.members
            for key, one in zip(keys, messages, strict=True)
        ]

    async def _known(self, keys: list[_Key]) -> dict[_Key, ShardMap]:
        known: dict[_Key, ShardMap] = {}
        for key in keys:
            cached = self._cache.get(key)
            if cached is not None:
                known[key] = cached
        for attempt in range(_ATTEMPTS):
            missing = [key for key in keys if key not in known]
            if not missing:
                break
            if attempt:
                await asyncio.sleep(_FIRST_WAIT_S * 2 ** (attempt - 1))
            for key, found in zip(missing, await self._read(missing), strict=True):
                if found is not None:
                    shards: dict[int, tuple[int, bytes | None]] = {s: (v, None) for s, v in found.items()}
                    known[key] = shards
                    self._cache.put(key, shards, max(1, len(shards)))
        return known

    async def _read(self, keys: list[_Key]) -> list[dict[int, int] | None]:
        try:
            return await self._reader.versions(keys)
        except RecordError as error:
            if len(keys) == 1:
                log.error("membership version %d of %s is damaged: %s", keys[0][2], keys[0][1], error)
                return [None]
        return [found for key in keys for found in await self._read([key])]


def _key(one: OutboxMessage) -> _Key:
    message = one.message
    return message.tenant_id, message.conversation_id, message.membership_version
