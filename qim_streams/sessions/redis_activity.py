"""What the hot tier knows of a user's conversations, for rebuilding his rows: states and heads.

Spec: §9.
"""

from collections.abc import Callable, Sequence
from typing import Any

from qim_streams.commit import keys as commit_keys
from qim_streams.records import KIND_MESSAGE
from qim_streams.redis_tier import RedisClient, translated
from qim_streams.sessions import keys
from qim_streams.sessions.projection_records import activity_of
from qim_streams.sessions.tails import readable

BATCH_MAX = 500
LOOKED_AT = 8  # newest numbers of a conversation: edits and recalls have some, and move nothing
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
        """See `KnownActivity.activities`. Two round trips for `BATCH_MAX` conversations."""
        known: list[int | None] = []
        for start in range(0, len(conversation_ids), BATCH_MAX):
            part = conversation_ids[start : start + BATCH_MAX]
            places = [(self._partition_of(tenant_id, name), name) for name in part]
            async with translated("conversation heads"):
                known += await self._activities(tenant_id, user_id, places)
        return known

    async def _activities(
        self, tenant_id: str, user_id: str, places: Sequence[tuple[int, str]]
    ) -> list[int | None]:
        pipe = self._client.pipeline(transaction=False)
        for partition, name in places:
            tag, of = commit_keys.base(partition), commit_keys.conversation(tenant_id, name)
            pipe.hmget(f"{tag}c:{of}", "seq", "last_id")
            pipe.hget(f"{tag}gm:{of}", user_id)
        answers: list[Any] = await pipe.execute()
        heads = {
            index: (int(seq), last_id)
            for index, ((seq, last_id), row) in enumerate(zip(answers[::2], answers[1::2], strict=True))
            if last_id is not None and row is not None and row[:1] == _ACTIVE
        }
        for index, (seq, _) in heads.items():
            partition, name = places[index]
            tag, of = commit_keys.base(partition), commit_keys.conversation(tenant_id, name)
            pipe.hmget(f"{tag}r:{of}", *range(seq, max(0, seq - LOOKED_AT), -1))
        tails: list[Any] = await pipe.execute() if heads else []
        found: list[int | None] = [None] * len(places)
        for (index, (_, last_id)), records in zip(heads.items(), tails, strict=True):
            found[index] = _newest_message(records, activity_of(last_id))
        return found


def _newest_message(records: Sequence[bytes | None], at: int) -> int:
    """The time of the first plain message of `records`, which descend; `at` is that of the newest number.

    Where there is none, that of the oldest operation: no less than the right one.
    """
    for data in records:
        message = None if data is None else readable(data)
        if message is None:
            break
        at = activity_of(message.message_id)
        if message.kind == KIND_MESSAGE:
            break
    return at
