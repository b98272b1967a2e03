"""An archive in memory: the verified fake of the port. One conformance suite runs on it and on RocksDB.

Spec: §14.8.
"""

from collections.abc import Sequence

from qim_streams.archive.ports import ArchivedMessage, require_limit
from qim_streams.errors import Outcome, StoreError, StoreUnavailable
from qim_streams.sessions.ports import ArchivedState

Address = tuple[str, str, int]


class MemoryArchive:
    """Holds everything in one dictionary. `unavailable` makes every call fail as a lost store would.

    `writes` counts the messages written, repeats included: what the tests of "reading writes nothing"
    look at.
    """

    def __init__(self) -> None:
        self.messages: dict[Address, bytes] = {}
        self.revisions: dict[Address, int] = {}
        self.watermarks: dict[int, int] = {}
        self.fences: dict[int, int] = {}
        self.states: dict[tuple[str, str, str], ArchivedState] = {}
        self.unavailable = False
        self.writes = 0
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise StoreError("the archive is closed", Outcome.NOT_APPLIED)
        if self.unavailable:
            raise StoreUnavailable("the archive is unavailable", Outcome.NOT_APPLIED)

    async def store(self, partition: int, messages: Sequence[ArchivedMessage], watermark: int) -> None:
        """As the port says; nothing is written when the call raises."""
        self._check()
        for message in messages:
            address = (message.tenant_id, message.conversation_id, message.conversation_seq)
            self.writes += 1
            if message.revision > self.revisions.get(address, -1):
                self.messages[address] = message.record
                self.revisions[address] = message.revision
        self.watermarks[partition] = max(watermark, self.watermarks.get(partition, -1))

    async def watermark(self, partition: int) -> int:
        """The archive watermark of an Outbox partition, -1 for none."""
        self._check()
        return self.watermarks.get(partition, -1)

    async def fence(self, partition: int) -> int:
        """The epoch of the last barrier that was passed, 0 for none."""
        self._check()
        return self.fences.get(partition, 0)

    async def raise_fence(self, partition: int, epoch: int) -> None:
        """As the port says."""
        self._check()
        self.fences[partition] = max(epoch, self.fences.get(partition, 0))

    async def records(self, wanted: Sequence[Address]) -> list[bytes | None]:
        """MessageRecord bytes by address, None where there is none."""
        self._check()
        return [self.messages.get(address) for address in wanted]

    async def range(
        self,
        tenant_id: str,
        conversation_id: str,
        after_seq: int,
        up_to_seq: int,
        limit: int,
        *,
        newest_first: bool = False,
    ) -> list[ArchivedMessage]:
        """after_seq < seq <= up_to_seq, at most `limit`, from the end that `newest_first` names."""
        self._check()
        require_limit(limit)
        found = sorted(
            (
                seq
                for tenant, conversation, seq in self.messages
                if (tenant, conversation) == (tenant_id, conversation_id) and after_seq < seq <= up_to_seq
            ),
            reverse=newest_first,
        )
        return [self._message((tenant_id, conversation_id, seq)) for seq in found[:limit]]

    def _message(self, address: Address) -> ArchivedMessage:
        return ArchivedMessage(*address, self.messages[address], self.revisions[address])

    async def latest(self, tenant_id: str, conversation_id: str) -> int:
        """The largest archived seq of a conversation, 0 for none."""
        self._check()
        wanted = (tenant_id, conversation_id)
        return max((seq for *conversation, seq in self.messages if tuple(conversation) == wanted), default=0)

    async def store_states(self, states: Sequence[ArchivedState]) -> None:
        """See `sessions.ports.UserStateArchive`."""
        self._check()
        for one in states:
            before = self.states.get(one[:3])
            if before is None or before.version < one.version:
                self.states[one[:3]] = one

    async def user_states(
        self, tenant_id: str, user_id: str, after_conversation_id: str, limit: int
    ) -> list[ArchivedState]:
        """See `sessions.ports.UserStateReader`."""
        self._check()
        mine = [
            one
            for (tenant, user, name), one in self.states.items()
            if (tenant, user) == (tenant_id, user_id) and name > after_conversation_id
        ]
        return sorted(mine)[:limit]

    async def close(self) -> None:
        """Calls after this raise StoreError."""
        self._closed = True
