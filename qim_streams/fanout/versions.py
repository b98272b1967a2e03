"""The shards of a membership version: inline when the conversation is small, else read in bulk.

A version is immutable, so what was read once is kept (bounded). A version that is gone for good (the hot tier
was lost, the change log is compacted) is made of the members' intervals; while it may come back, nobody
guesses.

Spec: §4, §14.4.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from qim_streams import limits
from qim_streams.errors import RecordError
from qim_streams.fanout.plan import OutboxMessage, ShardMap
from qim_streams.lru import LruMap
from qim_streams.membership.past import PastMembers
from qim_streams.membership.ports import MembershipReader
from qim_streams.records import pack_ordinals

log = logging.getLogger(__name__)

_SHARDS_PER_VERSION = 64  # the cache's weight bound, per version of its count bound
_ATTEMPTS = 6
_FIRST_WAIT_S = 0.05

_Key = tuple[str, str, int]


class MembershipVersions:
    """Shard maps of the versions that messages are pinned to. `count_max` versions are kept."""

    def __init__(self, reader: MembershipReader, count_max: int, past: PastMembers | None = None) -> None:
        self._reader, self._past = reader, past
        self._cache: LruMap[_Key, dict[int, tuple[int, bytes | None]]] = LruMap(
            count_max, count_max * _SHARDS_PER_VERSION
        )

    async def load(self, messages: Sequence[OutboxMessage]) -> list[ShardMap | None]:
        """The shard map of each message's version; None when the store does not know the version.

        An unknown version is asked for a few times over about three seconds, since the store may be
        catching up after a restart. StoreUnavailable while it is known to be catching up.
        """
        inline: list[ShardMap | None] = [one.outbox.members for one in messages]
        if None not in inline:
            return inline  # small conversations: the usual case
        keys = [_key(one) if one.outbox.members is None else None for one in messages]
        first: dict[_Key, OutboxMessage] = {}
        for key, one in zip(keys, messages, strict=True):
            if key is not None:
                first.setdefault(key, one)
        known = await self._known(first)
        return [
            known.get(key) if key is not None else one.outbox.members
            for key, one in zip(keys, messages, strict=True)
        ]

    async def _known(self, wanted: Mapping[_Key, OutboxMessage]) -> dict[_Key, ShardMap]:
        """Maps of the wanted versions; each with a message that was sent under it."""
        known: dict[_Key, ShardMap] = {}
        for key in wanted:
            cached = self._cache.get(key)
            if cached is not None:
                known[key] = cached
        for attempt in range(_ATTEMPTS):
            missing = [key for key in wanted if key not in known]
            if not missing:
                break
            if attempt:
                await asyncio.sleep(_FIRST_WAIT_S * 2 ** (attempt - 1))
            await self._look_up(missing, known)
            if self._past is not None and not attempt:
                lost = {key: one for key, one in wanted.items() if key not in known}
                await self._make_again(self._past, lost, known)
        return known

    async def _look_up(self, keys: list[_Key], known: dict[_Key, ShardMap]) -> None:
        for key, found in zip(keys, await self._read(keys), strict=True):
            if found is not None:
                self._keep(key, {shard: (version, None) for shard, version in found.items()}, known)

    async def _make_again(
        self, past: PastMembers, wanted: Mapping[_Key, OutboxMessage], known: dict[_Key, ShardMap]
    ) -> None:
        """What the store does not have although it is whole, out of the members' intervals."""
        if not wanted:
            return
        await past.require_whole({one.partition for one in wanted.values()})
        await self._look_up(list(wanted), known)  # it may have come back in between
        for key, one in wanted.items():
            if key in known:
                continue
            message = one.message
            members = await past.at(*one.conversation, message.conversation_seq)
            if members is None:
                continue
            few = sum(map(len, members.values())) <= limits.INLINE_MEMBERS_MAX
            shards: dict[int, tuple[int, bytes | None]] = {
                shard: (message.membership_version, pack_ordinals(ordinals) if few else None)
                for shard, ordinals in members.items()
            }
            self._keep(key, shards, known)

    def _keep(
        self, key: _Key, shards: dict[int, tuple[int, bytes | None]], known: dict[_Key, ShardMap]
    ) -> None:
        known[key] = shards
        self._cache.put(key, shards, max(1, len(shards)))

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
