"""What the hot tier knows of a user's conversations, for rebuilding his rows: states and heads.

Spec: §9.
"""

from collections.abc import Callable, Sequence
from typing import Any

from qim_streams.commit import keys as commit_keys
from qim_streams.redis_tier import RedisClient, translated
from qim_streams.sessions import keys
from qim_streams.sessions.projection_records import activity_of

BATCH_MAX = 500
_ACTIVE = b"A"  # first byte of a member row (`membership.rows`)


class RedisKnownActivity:
    """`KnownActivity` on Redis. `partition_of(tenant, conversation)` finds the head."""

    def __init__(self, client: RedisClient, partition_of: Callable[[str, str], int]) -> None:
        self._client, self._partition_of = client, partition_of

    async def registered(self, tenant_id: str, ordinal: int) -> list[str]:
        """See `KnownActivity.registered`."""
        async with translated("conversation states"):
            found: list[Any] = await self._client.hkeys(keys.of_user(tenant_id, ordinal, "uc"))
        return [name for one in found if (name := one.decode()) != keys.RESTORED_FIELD]

    async def activities(
        self, tenant_id: str, user_id: str, conversation_ids: Sequence[str]
    ) -> list[int | None]:
        """See `KnownActivity.activities`. One round trip for `BATCH_MAX` conversations."""
        known: list[int | None] = []
        for start in range(0, len(conversation_ids), BATCH_MAX):
            async with translated("conversation heads"):
                pipe = self._client.pipeline(transaction=False)
                for conversation in conversation_ids[start : start + BATCH_MAX]:
                    tag = commit_keys.base(self._partition_of(tenant_id, conversation))
                    of = commit_keys.conversation(tenant_id, conversation)
                    pipe.hget(f"{tag}c:{of}", "last_id")
                    pipe.hget(f"{tag}gm:{of}", user_id)
                answers = await pipe.execute()
            known += [
                activity_of(last_id)
                if last_id is not None and row is not None and row[:1] == _ACTIVE
                else None
                for last_id, row in zip(answers[::2], answers[1::2], strict=True)
            ]
        return known
