"""The hot tier's messages in memory, as the trimmer sees them: the verified fake of `HotRecords`.

What it does not do: time out, or bound its calls.
"""

from collections.abc import Sequence

from qim_streams.archive.ports import ArchivedCopy, Covered, Dropped, Silent
from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.testing.memory_tier import MemoryHotTier


class MemoryHotRecords:
    """`HotRecords` on a `MemoryHotTier`. `unavailable` makes every call fail as a lost store would."""

    def __init__(self, tier: MemoryHotTier) -> None:
        self.tier = tier
        self.hot_from: dict[tuple[str, str], int] = {}
        self.covered: dict[tuple[str, str], int] = {}
        self.noted: dict[int, dict[tuple[str, str], int]] = {}
        self.unavailable = False

    def _check(self) -> None:
        if self.unavailable:
            raise StoreUnavailable("memory: the hot tier is unavailable", Outcome.NOT_APPLIED)

    def _known(self, partition: int, key: tuple[str, str]) -> bool:
        head = self.tier.partition(partition).heads.get(key)
        return head is not None and bool(head.kind)

    async def note(self, partition: int, conversations: Sequence[Covered], at_ms: int) -> list[int]:
        """See the port."""
        self._check()
        noted = self.noted.setdefault(partition, {})
        answer = []
        for tenant, chat, seq in conversations:
            key = (tenant, chat)
            if self._known(partition, key):
                noted[key] = max(at_ms, noted.get(key, 0))
                self.covered[key] = max(seq, self.covered.get(key, 0))
                answer.append(self.hot_from.get(key, 1))
            else:
                answer.append(0)
        return answer

    async def silent(self, partition: int, before_ms: int, limit: int) -> list[Silent]:
        """See the port."""
        self._check()
        rows = sorted((at_ms, key) for key, at_ms in self.noted.get(partition, {}).items())
        return [
            Silent(*key, self.hot_from.get(key, 1), self.covered.get(key, 0))
            if self._known(partition, key)
            else Silent(*key, 0, 0)
            for at_ms, key in rows
            if at_ms <= before_ms
        ][:limit]

    async def drop(
        self, partition: int, conversation: tuple[str, str], copies: Sequence[ArchivedCopy], hot_from: int
    ) -> Dropped:
        """See the port."""
        self._check()
        state = self.tier.partition(partition)
        records = state.records.get(conversation, {})
        removed = differing = 0
        stopped_at = None
        for one in copies:
            record = records.get(one.conversation_seq)
            if record is None:
                continue
            if one.message_id in state.pending:
                stopped_at = one.conversation_seq
                hot_from = min(hot_from, stopped_at)
                break
            if record == one.record:
                del records[one.conversation_seq]
                removed += 1
            else:
                differing += 1
        if self._known(partition, conversation):
            self.hot_from[conversation] = max(hot_from, self.hot_from.get(conversation, 1))
        return Dropped(removed, differing, stopped_at)

    async def forget(self, partition: int, conversations: Sequence[tuple[str, str]], before_ms: int) -> None:
        """See the port."""
        self._check()
        noted = self.noted.get(partition, {})
        for key in conversations:
            if noted.get(key, before_ms + 1) <= before_ms:
                del noted[key]
