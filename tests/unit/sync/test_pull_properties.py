"""PULL_MAILBOX over random mailboxes, limits and trims at any moment of the read (A10, E5, E14; I8, I9).

A batch is compared with everything that was ever written, not with what the store still holds: a success
over a trimmed range would show as a hole.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim_streams import limits
from qim_streams.errors import ProtocolError, StoreError, SyncVerdict
from qim_streams.mailbox.ports import StoredEntry, WatermarkState
from qim_streams.sync.pull import _EVENT_OVERHEAD, PulledEvent, PullResult, PullService
from qim_streams.sync.session import SyncSession
from tests.support.mailbox_world import ADDRESS, HookedStore, MailboxWorld


class RacingStore(HookedStore):
    """A store where a neighbour trims right before some of the reader's calls."""

    def __init__(self) -> None:
        super().__init__()
        self.world: MailboxWorld | None = None
        self.trims: list[int | None] = []

    def _race(self) -> None:
        up_to = self.trims.pop(0) if self.trims else None
        if up_to is not None and self.world is not None:
            self.world.trim(min(up_to, self.world.tail))

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        """See `MailboxStore.read`."""
        self._race()
        return await super().read(shard, tenant_id, ordinal, after_seq, up_to_seq, limit)

    async def trim_watermark(self, shard: int, tenant_id: str, ordinal: int) -> int:
        """See `MailboxStore.trim_watermark`."""
        self._race()
        return await super().trim_watermark(shard, tenant_id, ordinal)

    async def watermark(self, shard: int) -> WatermarkState:
        """See `MailboxStore.watermark`."""
        self._race()
        return await super().watermark(shard)


@dataclass
class Mailbox:
    """A mailbox on a racing store, and the pulls of one device."""

    groups: list[tuple[int, int, int]]  # gap before the seq, events at it, size of their bodies
    world: MailboxWorld = field(default_factory=lambda: MailboxWorld(RacingStore()))

    async def fill(self) -> None:
        for gap, events, size in self.groups:
            await self.world.write(self.world.tail + gap, events, b"b" * size)

    async def pull(self, after: int, up_to: int, entries: int, size: int) -> PullResult | None:
        """A batch, checked; None for CURSOR_EXPIRED, which must be true."""
        pulls = PullService(self.world.store, self.world.hot, self.world.archive)
        try:
            result = await pulls.pull(ADDRESS, after, up_to, entries, size)
        except SyncVerdict as verdict:
            if (verdict.code, verdict.fields) != ("CURSOR_EXPIRED", {"rebuild_required": True}):
                raise
            if after >= self.world.trimmed:
                raise AssertionError("refused although nothing after the cursor was trimmed") from verdict
            return None
        through = result.covered_through_seq
        assert after < through <= up_to
        assert result.has_more == (through < up_to)
        assert result.lane_watermark == self.world.tail
        places = [(event.mailbox_seq, event.event_ordinal) for event in result.events]
        assert places == [one for one in self.world.entries if after < one[0] <= through], "a hole"
        self.check_limits(result.events, entries, size)
        return result

    def check_limits(self, events: list[PulledEvent], entries: int, size: int) -> None:
        """Within both limits, or one whole seq."""
        if len({event.mailbox_seq for event in events}) > 1:
            assert len(events) <= entries
            assert sum(len(event.common_body) + _EVENT_OVERHEAD for event in events) <= size


GROUPS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 4), st.sampled_from([1, 10, 300])), min_size=1, max_size=14
)
LIMITS = st.tuples(
    st.integers(1, 6) | st.just(limits.PULL_ENTRIES_MAX),
    st.integers(1, 2_000) | st.just(limits.PULL_BYTES_MAX),
)
TRIMS = st.lists(st.none() | st.integers(-1, 40), max_size=60)


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.lists(LIMITS, min_size=1, max_size=5), TRIMS, st.integers(-1, 6))
def test_a_batch_is_whole_or_an_error(
    groups: list[tuple[int, int, int]],
    bounds: list[tuple[int, int]],
    trims: list[int | None],
    start: int,
) -> None:
    """Pulled to the end with changing limits while a neighbour trims: every batch is whole, or expired."""

    async def run() -> None:
        mailbox = Mailbox(groups)
        await mailbox.fill()
        world, after, turn = mailbox.world, min(start, mailbox.world.tail), 0
        assert isinstance(world.store, RacingStore)
        world.store.world, world.store.trims = world, list(trims)
        while after < world.tail:
            result = await mailbox.pull(after, world.tail, *bounds[turn % len(bounds)])
            turn += 1
            after = world.trimmed if result is None else result.covered_through_seq
            assert turn <= 200, "no progress"

    asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(GROUPS, LIMITS, st.lists(st.integers(0, 60), max_size=6), st.randoms(use_true_random=False))
def test_sub_ranges_in_any_order_complete_the_sync_exactly(
    groups: list[tuple[int, int, int]], bounds: tuple[int, int], cuts: list[int], order: Random
) -> None:
    """T-X3: SYNC_COMPLETE is refused until the sub-ranges cover sync_to_seq without a gap, then never."""

    async def run() -> None:
        mailbox = Mailbox(groups)
        await mailbox.fill()
        last = mailbox.world.tail
        session = SyncSession(-1, last, -1)
        edges = sorted({-1, last, *(cut % (last + 1) for cut in cuts)})
        todo = list(pairwise(edges))
        got: list[tuple[int, int]] = []
        covered: set[int] = set()
        while todo:
            after, up_to = todo.pop(order.randrange(len(todo)))
            with pytest.raises(SyncVerdict, match="SYNC_INCOMPLETE"):
                session.check_complete(last)
            result = await mailbox.pull(after, up_to, *bounds)
            assert result is not None
            through = result.covered_through_seq
            got += [(event.mailbox_seq, event.event_ordinal) for event in result.events]
            session.cover(after, through)
            covered |= set(range(after + 1, through + 1))
            if result.has_more:
                todo.append((through, up_to))
        assert covered == set(range(last + 1))
        assert sorted(got) == mailbox.world.entries
        for wrong in (last - 1, last + 1):
            with pytest.raises(SyncVerdict, match="SYNC_INCOMPLETE"):
                session.check_complete(wrong)
        session.check_complete(last)

    asyncio.run(run())


async def test_a_seq_that_no_frame_holds_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """E5: rather than a part of a group with the claim that it is covered."""
    monkeypatch.setattr(limits, "EVENTS_PER_FRAME_MAX", 40)
    world = MailboxWorld()
    await world.write(1, limits.EVENTS_PER_FRAME_MAX)
    await world.write(2, limits.EVENTS_PER_FRAME_MAX + 1)
    pulls = PullService(world.store, world.hot, world.archive)
    whole = await pulls.pull(ADDRESS, -1, 2, 10, limits.PULL_BYTES_MAX)
    assert (len(whole.events), whole.covered_through_seq) == (limits.EVENTS_PER_FRAME_MAX, 1)
    with pytest.raises(StoreError, match="more events than a frame holds"):
        await pulls.pull(ADDRESS, 1, 2, 10, limits.PULL_BYTES_MAX)


async def test_a_store_behind_its_promise_is_temporary() -> None:
    """C16, §11 rule 3: W fell back below what AUTH_OK said; the client comes again instead of giving up."""
    world = MailboxWorld()
    await world.write(1)
    before = world.store.snapshot()
    await world.write(2)
    promised = world.tail
    world.store.restore(before)
    pulls = PullService(world.store, world.hot, world.archive)
    for up_to, code in ((promised, "SHARD_MOVED"), (promised + 1, "PULL_OUT_OF_RANGE")):
        with pytest.raises(ProtocolError, match=code):
            await pulls.pull(ADDRESS, -1, up_to, 10, 10_000, promised)
