"""Versions and bitmaps read from Redis, for the stages behind the writer (key table: `commit.keys`).

Invariants: bulk calls take one round trip per 1,000 items; a version whose rows are not all there is
unknown, never a part of a map. Nothing here is cached: results are immutable, so callers may.

Spec: §4, §5.
"""

from collections.abc import Callable, Sequence

from qim_streams.commit import keys
from qim_streams.membership.rows import decode_version
from qim_streams.membership.rules import UNKNOWN_AT_MS, chain_of, fold_map
from qim_streams.redis_tier import RedisClient, translated

BATCH_MAX = 1_000


class RedisMembershipReader:
    """`MembershipReader` on Redis. `partition_of(tenant, conversation)` finds the slot."""

    def __init__(self, client: RedisClient, partition_of: Callable[[str, str], int]) -> None:
        self._client, self._partition_of = client, partition_of

    async def versions(self, wanted: Sequence[tuple[str, str, int]]) -> list[dict[int, int] | None]:
        """See the port. RecordError when a stored row is damaged."""
        found: list[dict[int, int] | None] = []
        for start in range(0, len(wanted), BATCH_MAX):
            part = wanted[start : start + BATCH_MAX]
            async with translated("membership"):
                pipe = self._client.pipeline(transaction=False)
                for tenant, chat, version in part:
                    pipe.hmget(self._key(tenant, chat, "gv"), [str(v) for v in chain_of(version)])
                chains = await pipe.execute()
            found.extend(_map_of(chain) for chain in chains)
        return found

    async def bitmaps(self, wanted: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        """See the port."""
        by_chat: dict[tuple[str, str], list[int]] = {}
        for index, (tenant, chat, _, _) in enumerate(wanted):
            by_chat.setdefault((tenant, chat), []).append(index)
        found: list[bytes | None] = [None] * len(wanted)
        chats = list(by_chat.items())
        for start in range(0, len(chats), BATCH_MAX):
            part = chats[start : start + BATCH_MAX]
            async with translated("membership"):
                pipe = self._client.pipeline(transaction=False)
                for (tenant, chat), indexes in part:
                    fields = [f"{wanted[index][2]}:{wanted[index][3]}" for index in indexes]
                    pipe.hmget(self._key(tenant, chat, "gb"), fields)
                rows = await pipe.execute()
            for (_, indexes), values in zip(part, rows, strict=True):
                for index, value in zip(indexes, values, strict=True):
                    found[index] = value
        return found

    def _key(self, tenant: str, chat: str, what: str) -> str:
        partition = self._partition_of(tenant, chat)
        return f"{keys.base(partition)}{what}:{keys.conversation(tenant, chat)}"


def _map_of(chain: Sequence[bytes | None]) -> dict[int, int] | None:
    rows = [decode_version(row) for row in chain if row is not None]
    if len(rows) != len(chain) or not rows or rows[-1][0] == UNKNOWN_AT_MS:
        return None
    return fold_map(version_map for _, version_map in rows)
