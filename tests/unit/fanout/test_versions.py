"""Shards of versions that a lost hot tier does not have: waited for, or made of the members' intervals."""

from collections.abc import Collection, Sequence

import pytest

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.fanout.plan import OutboxMessage
from qim_streams.fanout.versions import MembershipVersions
from qim_streams.records import MessageRecord, OutboxRecord, unpack_ordinals

Wanted = tuple[str, str, int]
MANY = list(range(0, 64 * 40, 64))


class Reader:
    """A `MembershipReader` that lost everything."""

    def __init__(self) -> None:
        self.rows: dict[Wanted, dict[int, int]] = {}
        self.reads = 0

    async def versions(self, wanted: Sequence[Wanted]) -> list[dict[int, int] | None]:
        self.reads += 1
        return [self.rows.get(one) for one in wanted]

    async def bitmaps(self, wanted: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        raise NotImplementedError


class Past:
    """`PastMembers` of one conversation."""

    def __init__(self, members: dict[int, list[int]], whole: bool = True) -> None:
        self.members, self.whole = members, whole
        self.asked: set[int] = set()

    async def require_whole(self, partitions: Collection[int]) -> None:
        self.asked |= set(partitions)
        if not self.whole:
            raise StoreUnavailable("held against the logs", Outcome.NOT_APPLIED)

    async def at(self, tenant_id: str, conversation_id: str, seq: int) -> dict[int, list[int]] | None:
        return self.members if (tenant_id, conversation_id, seq) == ("t", "g", 9) else None


def message(version: int = 4) -> OutboxMessage:
    one = MessageRecord(9, version, "t", "g", b"i" * 16, b"i" * 16, "ann", 0, "d", "m", 1, 1, 0, 0, b"hi")
    return OutboxMessage(3, 77, b"t\0g", OutboxRecord(one.encode(), 1, 0, None), one)


async def test_a_message_waits_while_its_version_may_come_back() -> None:
    reader, past = Reader(), Past({0: [1]}, whole=False)
    versions = MembershipVersions(reader, 16, past)
    with pytest.raises(StoreUnavailable):
        await versions.load([message()])
    assert past.asked == {3}
    past.whole, reader.rows = True, {("t", "g", 4): {0: 2, 5: 4}}
    assert await versions.load([message()]) == [{0: (2, None), 5: (4, None)}]


async def test_few_members_of_a_lost_version_travel_inline() -> None:
    versions = MembershipVersions(Reader(), 16, Past({0: [1, 65], 5: [2]}))
    (shards,) = await versions.load([message()])
    assert shards is not None
    assert {s: (v, unpack_ordinals(packed or b"")) for s, (v, packed) in shards.items()} == {
        0: (4, [1, 65]),
        5: (4, [2]),
    }


async def test_many_members_of_a_lost_version_are_left_to_the_mailbox_stage() -> None:
    reader = Reader()
    versions = MembershipVersions(reader, 16, Past({0: MANY}))
    assert await versions.load([message(), message()]) == [{0: (4, None)}] * 2
    reads = reader.reads
    await versions.load([message()])
    assert reader.reads == reads, "what was made is kept"
