"""WholeMailboxes: mailboxes as their users see them, wherever splits have put their parts.

Entries of a user who moved lie in the shards he came from, up to the end of each split, and in his present
one (`rules.Part`). Readers name the present one and get all of it, in one numbering. A user who never moved
costs one look into a map.

Invariants: W of a user grows whatever is read when; nothing is shown of a later part before all earlier ones
are complete; an entry that an old shard may hold behind its end is not shown.

Spec: §5, §7, §11.
"""

from collections.abc import Sequence
from dataclasses import replace

from qim_streams.mailbox.ports import StoredEntry, Stretch, WatermarkState
from qim_streams.placement import LANES
from qim_streams.sharding import rules
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.ports import MailboxReader
from qim_streams.sharding.rules import Part


class WholeMailboxes:
    """`MailboxReader` on a reader of single shards."""

    def __init__(self, single: MailboxReader, mappings: Mappings) -> None:
        self._single, self._mappings = single, mappings

    async def watermarks(self, shards: Sequence[int]) -> list[WatermarkState]:
        """See `MailboxReader.watermarks`. Those of users whose present shard each is."""
        parts = [self._mappings.current.parts(shard) for shard in shards]
        states = iter(await self._single.watermarks([part.shard for one in parts for part in one]))
        return [joined(one, [next(states) for _ in one]) for one in parts]

    async def watermark(self, shard: int) -> WatermarkState:
        """See `MailboxReader.watermark`."""
        return (await self.watermarks([shard]))[0]

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        """See `MailboxReader.read`."""
        parts = self._mappings.current.parts(shard)
        if len(parts) == 1:
            return await self._single.read(shard, tenant_id, ordinal, after_seq, up_to_seq, limit)
        found: list[StoredEntry] = []
        for part, after, up_to in rules.stretch(parts, after_seq, up_to_seq):
            if len(found) < limit:
                room = limit - len(found)
                found += await self._single.read(part, tenant_id, ordinal, after, up_to, room)
        return found

    async def trim_watermark(self, shard: int, tenant_id: str, ordinal: int) -> int:
        """See `MailboxReader.trim_watermark`."""
        parts = self._mappings.current.parts(shard)
        trims = [await self._single.trim_watermark(part.shard, tenant_id, ordinal) for part in parts]
        return trims[0] if len(parts) == 1 else rules.trimmed(parts, trims)

    async def anything(self, stretches: Sequence[Stretch]) -> list[bool]:
        """See `MailboxReader.anything`."""
        found = [False] * len(stretches)
        asked: list[tuple[int, Stretch]] = []
        for index, one in enumerate(stretches):
            parts = self._mappings.current.parts(one.shard)
            for shard, after, up_to in rules.stretch(parts, one.after_seq, one.up_to_seq):
                asked.append((index, one._replace(shard=shard, after_seq=after, up_to_seq=up_to)))
        answers = await self._single.anything([one for _, one in asked])
        for (index, _), answer in zip(asked, answers, strict=True):
            found[index] |= answer
        return found


def joined(parts: Sequence[Part], states: Sequence[WatermarkState]) -> WatermarkState:
    """The state of the last part's shard, for users whose positions lie in all of `parts`."""
    last = states[-1]
    if len(parts) == 1:
        return last
    lanes = tuple(rules.covered(parts, [one.lanes[lane] for one in states]) for lane in range(LANES))
    # What an old shard promised counts as far as its part goes: readers wait until that is written again.
    promised = max(min(one.promised, part.through) for part, one in zip(parts, states, strict=True))
    return replace(last, lanes=lanes, promised=promised)
