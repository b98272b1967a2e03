"""Members of dispatches: inline, cached under their own version, asked for again, or gone."""

import asyncio
from collections.abc import Collection, Sequence

import pytest
from pyroaring import BitMap

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.mailbox.members import MemberBitmaps
from qim_streams.membership.bitmaps import encode
from tests.unit.mailbox.dispatches import dispatch

Wanted = tuple[str, str, int, int]


class Reader:
    """A `MembershipReader` of bitmaps that knows a row only from the n-th question on."""

    def __init__(self) -> None:
        self.rows: dict[Wanted, bytes] = {("acme", "c1", 0, 4): encode(BitMap([1, 65]))}
        self.asked: list[list[Wanted]] = []
        self.known_from = 0

    async def bitmaps(self, wanted: Sequence[Wanted]) -> list[bytes | None]:
        self.asked.append(list(wanted))
        return [self.rows.get(one) if len(self.asked) > self.known_from else None for one in wanted]

    async def versions(self, wanted: Sequence[tuple[str, str, int]]) -> list[dict[int, int] | None]:
        raise NotImplementedError


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seen: list[float] = []

    async def sleep(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return seen


async def test_inline_members_ask_nobody() -> None:
    reader = Reader()
    assert await MemberBitmaps(reader, 16).load([dispatch(1), dispatch(2, [7])]) == [[1, 65], [7]]
    assert reader.asked == []


async def test_one_bulk_read_and_then_the_cache() -> None:
    """Another message, another membership_version: the bitmap's own version is the key."""
    reader = Reader()
    members = MemberBitmaps(reader, 16)
    one = dispatch(1, None)
    assert await members.load([one, dispatch(2, None), dispatch(3)]) == [BitMap([1, 65])] * 2 + [[1, 65]]
    await members.load([one._replace(membership_version=99, conversation_seq=7)])
    assert reader.asked == [[("acme", "c1", 0, 4)]]


async def test_a_store_that_is_catching_up_gets_its_time(waits: list[float]) -> None:
    reader = Reader()
    reader.known_from = 3
    assert await MemberBitmaps(reader, 16).load([dispatch(1, None)]) == [BitMap([1, 65])]
    assert len(waits) == 3


@pytest.mark.parametrize("row", [None, b"not a bitmap"])
async def test_a_bitmap_that_is_gone_or_damaged_is_none(waits: list[float], row: bytes | None) -> None:
    reader = Reader()
    reader.rows = {} if row is None else {("acme", "c1", 0, 4): row}
    assert await MemberBitmaps(reader, 16).load([dispatch(1, None), dispatch(2)]) == [None, [1, 65]]
    assert 1 < sum(waits) < 5


class Past:
    """`PastMembers`: in doubt for the first questions, then it knows who got message 1."""

    def __init__(self, doubts: int = 0, known: bool = True) -> None:
        self.doubts, self.known = doubts, known
        self.asked: list[set[int]] = []

    async def require_whole(self, partitions: Collection[int]) -> None:
        self.asked.append(set(partitions))
        if len(self.asked) <= self.doubts:
            raise StoreUnavailable("held against the logs", Outcome.NOT_APPLIED)

    async def at(self, tenant_id: str, conversation_id: str, seq: int) -> dict[int, list[int]] | None:
        return {0: [1, 129], 5: [2]} if self.known and seq == 1 else None


async def test_nobody_is_buried_while_the_store_may_get_his_members_back(waits: list[float]) -> None:
    """T-R2: a lost hot tier: the batch is repeated, not set aside."""
    reader = Reader()
    reader.known_from, past = 3, Past(doubts=2)
    members = MemberBitmaps(reader, 16, past)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await members.load([dispatch(1, None)])
    assert await members.load([dispatch(1, None)]) == [BitMap([1, 65])], "it came back in between"
    assert past.asked == [{0}] * 3
    assert waits == []


async def test_members_of_a_lost_bitmap_follow_from_their_intervals(waits: list[float]) -> None:
    reader = Reader()
    reader.rows = {}
    members = MemberBitmaps(reader, 16, Past())
    assert await members.load([dispatch(1, None)]) == [BitMap([1, 129])]
    assert await members.load([dispatch(1, None)]) == [BitMap([1, 129])]
    assert len(reader.asked) == 2, "what was made is kept"
    assert waits == []


async def test_a_conversation_that_a_whole_store_does_not_know_is_none(waits: list[float]) -> None:
    reader = Reader()
    reader.rows = {}
    assert await MemberBitmaps(reader, 16, Past(known=False)).load([dispatch(1, None)]) == [None]
