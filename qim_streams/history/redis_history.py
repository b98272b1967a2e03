"""The hot tier as history reads it, on Redis (key table: `commit.keys`). Nothing is written.

Invariants: every read is one script call, so member row, numbers and pending list are of one moment, and
so are records and the last number given out. Calls made meanwhile go together (`script_pipe`);
views have a pipe of their own, which large records do not hold up. With `whole_only` a partition that may
have lost writes is not read: "there is no more" would be said of messages that are on their way back.

Spec: §5, §8.
"""

from collections.abc import Callable, Sequence

from qim_streams.commit import keys
from qim_streams.commit.calls import PartitionCalls
from qim_streams.errors import Outcome, RecordError, StoreError, StoreUnavailable
from qim_streams.history.ports import ConversationView, HotRows
from qim_streams.membership.rows import decode_member
from qim_streams.redis_tier import RedisClient, Script
from qim_streams.script_pipe import ScriptPipe

_DOUBTFUL = b"DOUBTFUL"


class RedisHistoryStore:
    """`HistoryStore` on Redis. `partition_of(tenant, conversation)` finds the slot."""

    def __init__(
        self, client: RedisClient, partition_of: Callable[[str, str], int], *, whole_only: bool = False
    ) -> None:
        self._partition_of, self._whole_only = partition_of, int(whole_only)
        self._views, self._records = PartitionCalls(ScriptPipe(client)), PartitionCalls(ScriptPipe(client))
        self._view = Script.load("qim_streams.history", "history_view.lua")
        self._rows = Script.load("qim_streams.history", "history_rows.lua")

    async def view(self, tenant_id: str, conversation_id: str, user_id: str) -> ConversationView | None:
        """See the port. StoreError also for a member row that cannot be read."""
        partition = self._partition_of(tenant_id, conversation_id)
        place = f"{tenant_id}\0{conversation_id}\0"
        args = (keys.conversation(tenant_id, conversation_id), user_id, place, self._whole_only)
        answer = await self._views.read(self._view, partition, args)
        if answer is None:
            return None
        if answer == _DOUBTFUL:
            raise StoreUnavailable(f"ob:{partition}: held against the logs", Outcome.NOT_APPLIED)
        allocated, committed, policy, row = answer
        try:
            member = None if row is None else decode_member(user_id, row)
        except RecordError as error:
            raise StoreError(f"member row of {user_id} in {conversation_id}: {error}") from error
        return ConversationView(int(allocated), int(committed), policy.decode(), member)

    async def rows(self, tenant_id: str, conversation_id: str, spans: Sequence[tuple[int, int]]) -> HotRows:
        """See the port."""
        args: list[str | int] = [keys.conversation(tenant_id, conversation_id)]
        for low, high in spans:
            args += (low, high)
        partition = self._partition_of(tenant_id, conversation_id)
        allocated, *rows = await self._records.read(self._rows, partition, args)
        return HotRows(int(allocated), rows)
