"""A list waits for a hot tier that comes back rather than leave conversations out. T-R2, D2."""

from collections.abc import Collection, Sequence

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.sessions.ports import HeadQuery, HeadView
from qim_streams.sessions.whole_heads import WholeHeads


class Nothing:
    """Heads of a tier that was emptied."""

    async def heads(self, tenant_id: str, user_id: str, wanted: Sequence[HeadQuery]) -> list[HeadView | None]:
        return [None] * len(wanted)

    async def of_users(
        self, tenant_id: str, wanted: Sequence[tuple[str, HeadQuery]]
    ) -> list[HeadView | None]:
        return [None] * len(wanted)


class Doubt:
    """A `Wholeness` with some partitions in doubt."""

    def __init__(self, *doubtful: int) -> None:
        self.doubtful_ones = set(doubtful)

    async def doubtful(self, partitions: Collection[int]) -> set[int]:
        return self.doubtful_ones & set(partitions)


async def test_what_is_in_doubt_is_not_said_to_be_missing() -> None:
    wanted = [HeadQuery("c1", 0), HeadQuery("c2", 0)]
    place = {"c1": 1, "c2": 2}.__getitem__
    heads = WholeHeads(Nothing(), Doubt(2, 3), lambda _, chat: place(chat))
    assert await heads.heads("t", "ann", wanted[:1]) == [None]
    with pytest.raises(StoreUnavailable, match="ob:2"):
        await heads.heads("t", "ann", wanted)
