"""The members of a dispatch: inline when they are few, else the immutable bitmap of its version.

A bitmap is cached under its own version, which changes only when the members of that shard change: a
group's other versions, other shards and every further message hit the cache. A bitmap that is gone for good
(the hot tier was lost, the change log is compacted) is made of the members' intervals; while it may come
back, nobody guesses.

Spec: §5, §14.4.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyroaring import BitMap

from qim_streams.errors import RecordError
from qim_streams.lru import LruMap
from qim_streams.membership import bitmaps
from qim_streams.membership.past import PastMembers
from qim_streams.membership.ports import MembershipReader
from qim_streams.records import GroupDispatch, unpack_ordinals
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.rules import Placement

log = logging.getLogger(__name__)

Members = list[int] | BitMap
_MEMBERS_PER_BITMAP = 4_096  # the cache's weight bound, per bitmap of its count bound
_ATTEMPTS = 6
_FIRST_WAIT_S = 0.05

_Key = tuple[str, str, int, int]


class Addressed(NamedTuple):
    """A record of the dispatch log with its recipients; without `dispatch` there is nothing to write."""

    offset: int
    dispatch: GroupDispatch | None
    members: Members


class MemberBitmaps:
    """Members of dispatches, in bulk. `count_max` bitmaps are kept."""

    def __init__(
        self,
        reader: MembershipReader,
        count_max: int,
        past: PastMembers | None = None,
        mappings: Mappings | None = None,
    ) -> None:
        """`mappings`: for shards that were split; None where none ever was."""
        self._reader, self._past, self._mappings = reader, past, mappings
        self._cache: LruMap[_Key, BitMap] = LruMap(count_max, count_max * _MEMBERS_PER_BITMAP)
        self._shares: LruMap[tuple[_Key, int, int], BitMap] = LruMap(
            count_max, count_max * _MEMBERS_PER_BITMAP
        )

    async def load(self, dispatches: Sequence[GroupDispatch]) -> list[Members | None]:
        """The members of each dispatch; None when its bitmap is not in the store.

        A missing bitmap is asked for a few times over about three seconds, since the store may be
        catching up after a restart; one that cannot be read counts as missing. StoreUnavailable while the
        store is known to be catching up. Of a group that several shards share, each gets its own.
        """
        if self._mappings is not None and any(one.extra for one in dispatches):
            return await self._load_shares(self._mappings, dispatches)
        return await self._load_groups(dispatches)

    async def _load_shares(
        self, mappings: Mappings, dispatches: Sequence[GroupDispatch]
    ) -> list[Members | None]:
        placement = await mappings.at_least(max(map(_version, dispatches)))
        of_groups = [
            one._replace(target_mailbox_shard=placement.group_of(one.target_mailbox_shard))
            for one in dispatches
        ]
        loaded = await self._load_groups(of_groups)
        return [
            None if members is None else self._share(placement, one, _key(group), members)
            for one, group, members in zip(dispatches, of_groups, loaded, strict=True)
        ]

    def _share(self, placement: Placement, one: GroupDispatch, key: _Key, members: Members) -> Members:
        """Those members of a group that the dispatch's shard has."""
        shard, version = one.target_mailbox_shard, _version(one)
        if not placement.shares(shard, version):
            return members
        if not isinstance(members, BitMap):
            return placement.select(members, shard, version)
        place = (key, shard, version)
        share = self._shares.get(place)
        if share is None:
            share = BitMap(placement.select(members, shard, version))
            self._shares.put(place, share, max(1, len(share)))
        return share

    async def _load_groups(self, dispatches: Sequence[GroupDispatch]) -> list[Members | None]:
        found: list[Members | None] = [
            None if (inline := one.members) is None else unpack_ordinals(inline) for one in dispatches
        ]
        if None in found:
            absent = {_key(one): one for one in dispatches if one.members is None}
            known = await self._known(absent)
            for index, one in enumerate(dispatches):
                if one.members is None:
                    found[index] = known.get(_key(one))
        return found

    async def _known(self, wanted: Mapping[_Key, GroupDispatch]) -> dict[_Key, BitMap]:
        known = {key: bitmap for key in wanted if (bitmap := self._cache.get(key)) is not None}
        for attempt in range(_ATTEMPTS):
            missing = [key for key in wanted if key not in known]
            if not missing:
                break
            if attempt:
                await asyncio.sleep(_FIRST_WAIT_S * 2 ** (attempt - 1))
            await self._read(missing, known)
            if self._past is not None and not attempt:
                await self._make_again(
                    self._past, [one for key, one in wanted.items() if key not in known], known
                )
        return known

    async def _read(self, keys: Sequence[_Key], known: dict[_Key, BitMap]) -> None:
        for key, data in zip(keys, await self._reader.bitmaps(keys), strict=True):
            bitmap = _decoded(key, data)
            if bitmap is not None:
                self._keep(key, bitmap, known)

    async def _make_again(
        self, past: PastMembers, dispatches: Sequence[GroupDispatch], known: dict[_Key, BitMap]
    ) -> None:
        """What the store does not have although it is whole, out of the members' intervals."""
        if not dispatches:
            return
        await past.require_whole({one.outbox_partition for one in dispatches})
        await self._read([_key(one) for one in dispatches], known)  # it may have come back in between
        for one in dispatches:
            if _key(one) in known:
                continue
            members = await past.at(one.tenant_id, one.conversation_id, one.conversation_seq)
            if members is not None:
                self._keep(_key(one), BitMap(members.get(one.target_mailbox_shard, ())), known)

    def _keep(self, key: _Key, bitmap: BitMap, known: dict[_Key, BitMap]) -> None:
        known[key] = bitmap
        self._cache.put(key, bitmap, max(1, len(bitmap)))


def _decoded(key: _Key, data: bytes | None) -> BitMap | None:
    if data is None:
        return None
    try:
        return bitmaps.decode(data)
    except RecordError as error:
        log.error("member bitmap %s of %s: %s", key[2:], key[1], error)
        return None


def _version(dispatch: GroupDispatch) -> int:
    """The mapping version that a dispatch was made by (`sharding.rules`), 0 where none was split."""
    version = dispatch.extra[0] if dispatch.extra else 0
    return version if isinstance(version, int) and version > 0 else 0


def _key(dispatch: GroupDispatch) -> _Key:
    return (
        dispatch.tenant_id,
        dispatch.conversation_id,
        dispatch.target_mailbox_shard,
        dispatch.bitmap_version,
    )
