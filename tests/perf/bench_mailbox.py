"""Mailbox: intake, grouping by lane, and what goes into the stores. Spec: §5."""

from collections.abc import Sequence
from typing import NamedTuple

from pyroaring import BitMap

from qim_streams.mailbox.entries import groups_of
from qim_streams.mailbox.intake import Kind, Taken, take
from qim_streams.mailbox.lanes import Ordinals, by_lane
from qim_streams.mailbox.members import Addressed
from qim_streams.mailbox.open_lanes import OpenLanes
from qim_streams.mailbox.pages import DoneDispatch, Page, content_digest, decode_page
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.placement import LANES, lane_of_ordinal
from qim_streams.records import decode_entry
from tests.perf.registry import Case, benchmark
from tests.perf.samples import NOW_MS, PEER_ORDINAL, SENDER_ORDINAL, dispatch, dispatches, members

SHARD, BATCH = 5, 100


class Record(NamedTuple):
    """A record of the log."""

    offset: int
    key: bytes | None
    value: bytes | None


@benchmark("mailbox.intake.100_new")
def intake() -> Case[list[Taken]]:
    """A batch of 100 dispatches that nobody has seen: decoded, checked, digested."""
    records = [Record(offset, None, one.encode()) for offset, one in enumerate(dispatches(BATCH, SHARD), 1)]
    return Case(
        lambda: take(records, SHARD, lambda wanted: [None] * len(wanted)),
        lambda taken: [one.kind for one in taken] == [Kind.NEW] * BATCH,
    )


@benchmark("mailbox.page.encode_100")
def page() -> Case[bytes]:
    """The page of such a batch."""
    rows = [
        DoneDispatch(offset, one.dispatch_id, content_digest(one))
        for offset, one in enumerate(dispatches(BATCH, SHARD), 1)
    ]
    made = Page(1, BATCH, NOW_MS, rows)
    return Case(made.encode, lambda data: decode_page(data) == made)


@benchmark("mailbox.entry_groups.direct")
def groups_direct() -> Case[list[EntryGroup]]:
    """Both users of a direct chat in one shard: two values, the sender's and the peer's."""
    return _groups([SENDER_ORDINAL, PEER_ORDINAL])


@benchmark("mailbox.entry_groups.1000")
def groups_thousand() -> Case[list[EntryGroup]]:
    """A thousand members in one shard: still two values."""
    return _groups(sorted(members(999, among=50_000_000) | BitMap([SENDER_ORDINAL])))


def _groups(ordinals: Sequence[int]) -> Case[list[EntryGroup]]:
    one = dispatch()

    def check(groups: list[EntryGroup]) -> bool:
        others, own = groups
        return (
            sorted([*others.ordinals, *own.ordinals]) == list(ordinals)
            and list(own.ordinals) == [SENDER_ORDINAL]
            and decode_entry(own.value).client_message_id == one.client_message_id
            and decode_entry(others.value).client_message_id is None
        )

    return Case(lambda: groups_of(one, 90_210, ordinals, True), check)


@benchmark("mailbox.by_lane.1000")
def by_lane_thousand() -> Case[list[Ordinals]]:
    """1,000 members of a tenant of a million: sparse, grouped one by one."""
    return _by_lane(members(1_000))


@benchmark("mailbox.by_lane.100000")
def by_lane_large() -> Case[list[Ordinals]]:
    """100,000 members of a tenant of a million: dense, grouped by intersections."""
    return _by_lane(members(100_000))


def _by_lane(everyone: BitMap) -> Case[list[Ordinals]]:
    def check(grouped: list[Ordinals]) -> bool:
        return (
            len(grouped) == LANES
            and all(lane_of_ordinal(o) == lane for lane, found in enumerate(grouped) for o in found)
            and BitMap([ordinal for found in grouped for ordinal in found]) == everyone
        )

    return Case(lambda: by_lane(everyone), check)


@benchmark("mailbox.slices.100000")
def slices() -> Case[list[int]]:
    """A record of 100,000 members in one shard: queued by lane, cut into slices of 2,000, all done."""
    everyone, one = members(100_000), dispatch()

    def call() -> list[int]:
        lanes = OpenLanes(7, 7, 8, 2_000)
        lanes.take(Addressed(8, one, everyone), 7, is_large=True, now_s=0.0)
        sizes = []
        while (cut := lanes.slice(2_000, 0.0)) is not None:
            sizes.append(sum(len(part.ordinals) for part in cut.parts))
            lanes.done(cut, lanes.after(cut))
        return sizes

    return Case(call, lambda sizes: sum(sizes) == 100_000 and max(sizes) <= 2_000)
