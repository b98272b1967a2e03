"""Heads of conversations, never of a hot tier that is still being brought back.

A session list that lacks conversations, or shows an old last message, is an empty success: a device that
rebuilds asks for the history of what the list names and for nothing else (Spec: §8). So the list waits.

Spec: §9, §14.4.
"""

from collections.abc import Callable, Sequence

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.ownership.wholeness import Wholeness
from qim_streams.sessions.ports import ConversationHeads, HeadQuery, HeadView


class WholeHeads:
    """`ConversationHeads` of partitions that are proved whole. `partition_of(tenant, conversation)`."""

    def __init__(
        self, heads: ConversationHeads, wholeness: Wholeness, partition_of: Callable[[str, str], int]
    ) -> None:
        self._heads, self._wholeness, self._partition_of = heads, wholeness, partition_of

    async def heads(self, tenant_id: str, user_id: str, wanted: Sequence[HeadQuery]) -> list[HeadView | None]:
        """See the port. StoreUnavailable also while a partition may have lost something."""
        return await self.of_users(tenant_id, [(user_id, one) for one in wanted])

    async def of_users(
        self, tenant_id: str, wanted: Sequence[tuple[str, HeadQuery]]
    ) -> list[HeadView | None]:
        """See the port; StoreUnavailable as in `heads`."""
        found = await self._heads.of_users(tenant_id, wanted)
        # Asked afterwards: what was read before a loss is right, what was read after it is not.
        partitions = {self._partition_of(tenant_id, one.conversation_id) for _, one in wanted}
        if doubtful := await self._wholeness.doubtful(partitions):
            raise StoreUnavailable(
                f"ob:{min(doubtful)}: the hot tier is held against the logs", Outcome.NOT_APPLIED
            )
        return found
