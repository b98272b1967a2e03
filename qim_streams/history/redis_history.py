"""The hot tier as history reads it, on Redis (key table: `commit.keys`). Nothing is written.

Invariants: a view is one script call, so member row, numbers and pending list are of one moment; records
are read in one transaction with the last number given out.

Spec: §5, §8.
"""

from collections.abc import Callable, Sequence
from typing import Any

from qim_streams.commit import keys
from qim_streams.commit.calls import PartitionCalls
from qim_streams.errors import RecordError, StoreError
from qim_streams.history.ports import ConversationView, HotRows
from qim_streams.membership.rows import decode_member
from qim_streams.redis_tier import RedisClient, Script, translated


class RedisHistoryStore:
    """`HistoryStore` on Redis. `partition_of(tenant, conversation)` finds the slot."""

    def __init__(
        self, client: RedisClient, calls: PartitionCalls, partition_of: Callable[[str, str], int]
    ) -> None:
        self._client, self._calls, self._partition_of = client, calls, partition_of
        self._view = Script.load("qim_streams.history", "history_view.lua")

    async def view(self, tenant_id: str, conversation_id: str, user_id: str) -> ConversationView | None:
        """See the port. StoreError also for a member row that cannot be read."""
        partition = self._partition_of(tenant_id, conversation_id)
        place = f"{tenant_id}\0{conversation_id}\0"
        args = (keys.conversation(tenant_id, conversation_id), user_id, place)
        answer = await self._calls.read(self._view, partition, args)
        if answer is None:
            return None
        allocated, committed, policy, row = answer
        try:
            member = None if row is None else decode_member(user_id, row)
        except RecordError as error:
            raise StoreError(f"member row of {user_id} in {conversation_id}: {error}") from error
        return ConversationView(int(allocated), int(committed), policy.decode(), member)

    async def rows(self, tenant_id: str, conversation_id: str, seqs: Sequence[int]) -> HotRows:
        """See the port."""
        base = keys.base(self._partition_of(tenant_id, conversation_id))
        chat = keys.conversation(tenant_id, conversation_id)
        async with translated("history"):
            pipe = self._client.pipeline(transaction=True)
            pipe.hget(f"{base}c:{chat}", "seq")
            pipe.hmget(f"{base}r:{chat}", [str(seq) for seq in seqs])
            allocated: Any
            allocated, rows = await pipe.execute()
        return HotRows(int(allocated or 0), rows)
