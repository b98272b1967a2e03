"""Members of small conversations, as they travel inside Outbox records.

A cache of one version per conversation, filled by what the membership service makes and, where something
is missing, by one bulk read. An Outbox record without a snapshot is legal (the fan-out stage reads the
version itself), so an error here costs that stage a read and nothing else.

Invariants: a snapshot belongs to exactly the version asked for; at most `members_max` members.

Spec: §4.
"""

import logging
from collections.abc import Sequence

from qim_streams import limits
from qim_streams.errors import QimError
from qim_streams.lru import LruMap
from qim_streams.membership.bitmaps import MemberSnapshot, snapshot
from qim_streams.membership.ports import MembershipReader

log = logging.getLogger(__name__)

CONVERSATIONS_MAX = 100_000
BYTES_MAX = 64 * 1024 * 1024
_OVERHEAD_BYTES = 200  # of a cached item beside its ordinals
Wanted = tuple[str, str, int]  # tenant, conversation, version


class MemberSnapshots:
    """Recent snapshots of one writer process."""

    def __init__(self, reader: MembershipReader, members_max: int = limits.INLINE_MEMBERS_MAX) -> None:
        self.members_max = members_max
        self._reader = reader
        self._known: LruMap[tuple[str, str], tuple[int, MemberSnapshot]] = LruMap(
            CONVERSATIONS_MAX, BYTES_MAX
        )

    def get(self, tenant_id: str, conversation_id: str, version: int) -> MemberSnapshot | None:
        """The members at `version`, None when they are not known here."""
        kept = self._known.get((tenant_id, conversation_id))
        return kept[1] if kept is not None and kept[0] == version else None

    def put(self, tenant_id: str, conversation_id: str, version: int, members: MemberSnapshot) -> None:
        """Remember the members at `version` instead of an older one."""
        nbytes = sum(len(packed) for _, packed in members.values())
        if nbytes // 4 <= self.members_max:
            weight = nbytes + _OVERHEAD_BYTES
            self._known.put((tenant_id, conversation_id), (version, members), weight)

    async def load(self, wanted: Sequence[Wanted]) -> None:
        """Read what `wanted` lacks, in bulk. Never raises an error of ours: what is missing stays missing."""
        missing = list(dict.fromkeys(one for one in wanted if self.get(*one) is None))
        if not missing:
            return
        try:
            await self._load(missing)
        except QimError as error:
            log.warning("members of %d conversations not read, sent without: %s", len(missing), error)

    async def _load(self, missing: Sequence[Wanted]) -> None:
        maps = await self._reader.versions(missing)
        cells = [
            (tenant, chat, shard, bitmap)
            for (tenant, chat, _), found in zip(missing, maps, strict=True)
            for shard, bitmap in (found or {}).items()
        ]
        blobs = dict(zip(cells, await self._reader.bitmaps(cells), strict=True))
        for (tenant, chat, version), found in zip(missing, maps, strict=True):
            bitmaps = {shard: blobs[tenant, chat, shard, bitmap] for shard, bitmap in (found or {}).items()}
            complete = {shard: blob for shard, blob in bitmaps.items() if blob is not None}
            if found and len(complete) == len(bitmaps):
                self.put(tenant, chat, version, snapshot(found, complete))
