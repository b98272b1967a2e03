"""The hot tier as history reads it, in memory: the verified fake of `history.ports.HistoryStore`.

`reads` counts calls for records, `views` those for conversations. `before_rows`, when set, runs once right
before the next of them, as a neighbour would do something between two steps of a reader.
"""

from collections.abc import Callable, Sequence

from qim_streams.errors import StoreUnavailable
from qim_streams.history.ports import ROWS_MAX, ConversationView, HotRows
from qim_streams.testing.memory_tier import MemoryHotTier


class MemoryHistoryStore:
    """`HistoryStore` in memory; `unavailable` makes every call fail as a lost store would."""

    def __init__(self, tier: MemoryHotTier) -> None:
        self.tier = tier
        self.unavailable = False
        self.reads = self.views = 0
        self.before_rows: Callable[[], object] | None = None

    def _check(self) -> None:
        if self.unavailable:
            raise StoreUnavailable("memory: the hot tier is unavailable")

    async def view(self, tenant_id: str, conversation_id: str, user_id: str) -> ConversationView | None:
        """See the port."""
        self.views += 1
        self._check()
        key = (tenant_id, conversation_id)
        state, group = self.tier.state_of(key), self.tier.groups.get(key)
        head = state.heads.get(key)
        if head is None or not head.kind or group is None:
            return None
        committed = head.seq
        if head.last_id in state.pending:
            waiting = {seq for *place, seq in state.pending.values() if tuple(place) == key}
            while committed in waiting:
                committed -= 1
        member = state.members.get(key, {}).get(user_id)
        return ConversationView(head.seq, committed, str(group.fields["history_policy"]), member)

    async def rows(self, tenant_id: str, conversation_id: str, spans: Sequence[tuple[int, int]]) -> HotRows:
        """See the port."""
        self._check()
        hook, self.before_rows = self.before_rows, None
        if hook is not None:
            hook()
        self.reads += 1
        key = (tenant_id, conversation_id)
        state = self.tier.state_of(key)
        head, records = state.heads.get(key), state.records.get(key, {})
        seqs = [seq for low, high in spans for seq in range(low, high + 1)]
        assert len(seqs) <= ROWS_MAX
        return HotRows(head.seq if head else 0, [records.get(seq) for seq in seqs])
