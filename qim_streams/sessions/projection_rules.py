"""What a sweep of dispatches means for session lists: rows folded by (user, conversation).

Pure. Folding is a maximum (activity) and a minimum (first_seq): the order of records, their repetition and
how they are cut into sweeps change nothing.

Only messages move a conversation; other events (an edit, a recall) leave its place alone.

Spec: §9; §5 (flags.affects_session_order).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyroaring import BitMap

from qim_streams.mailbox.members import Addressed, Members
from qim_streams.placement import LANES
from qim_streams.records import KIND_MESSAGE, GroupDispatch
from qim_streams.sessions.projection_ports import CoverOf
from qim_streams.sessions.projection_records import Cover, SessionRow, Slot, activity_of

RowMap = dict[tuple[int, str], SessionRow]
_LANE_BITS = LANES - 1
_new = tuple.__new__


class WideMessage(NamedTuple):
    """A message with too many recipients in a shard for a row each. `offset` is that of its dispatch."""

    of: CoverOf
    offset: int
    bitmap_version: int
    members: Members
    activity: int
    seq: int


class Folded(NamedTuple):
    """What a sweep has to write: rows per slot, and wide messages, one per member bitmap, in log order."""

    rows: dict[Slot, list[SessionRow]]
    wide: list[WideMessage]


def grown(row: SessionRow, activity: int, seq: int) -> SessionRow:
    """The row of a pair after one more message: rows only grow, whatever the order."""
    return _new(SessionRow, (row[0], row[1], max(activity, row[2]), min(seq, row[3]), False))


class Folder:
    """Folds records of any shards and tenants. `wide_above`: recipients of a dispatch that get a row each."""

    def __init__(self, wide_above: int) -> None:
        self._wide_above = wide_above
        self._lanes: dict[str, list[RowMap]] = {}
        self._wide: dict[tuple[CoverOf, int], WideMessage] = {}

    def add(self, shard: int, records: Iterable[Addressed]) -> None:
        """Fold records of a shard in."""
        message = KIND_MESSAGE
        for offset, dispatch, members in records:
            if dispatch is None or dispatch.kind != message:
                continue
            if len(members) > self._wide_above:
                self._add_wide(shard, offset, dispatch, members)
            else:
                self._add_rows(dispatch, members)

    def _add_rows(self, dispatch: GroupDispatch, members: Iterable[int]) -> None:
        tenant, conversation, seq = dispatch.tenant_id, dispatch.conversation_id, dispatch.conversation_seq
        activity = activity_of(dispatch.last_activity_id)
        lanes = self._lanes.get(tenant)
        if lanes is None:
            lanes = self._lanes[tenant] = [{} for _ in range(LANES)]
        for ordinal in members:
            rows, key = lanes[ordinal & _LANE_BITS], (ordinal, conversation)
            row = rows.get(key)
            if row is None:
                rows[key] = _new(SessionRow, (ordinal, conversation, activity, seq, False))
            elif activity > row[2] or seq < row[3]:
                rows[key] = grown(row, activity, seq)

    def _add_wide(self, shard: int, offset: int, dispatch: GroupDispatch, members: Members) -> None:
        of = CoverOf(shard, dispatch.tenant_id, dispatch.conversation_id)
        key = (of, dispatch.bitmap_version)
        if key not in self._wide:  # the first message of a version stands for all of them
            self._wide[key] = WideMessage(
                of,
                offset,
                dispatch.bitmap_version,
                members,
                activity_of(dispatch.last_activity_id),
                dispatch.conversation_seq,
            )

    def folded(self) -> Folded:
        """Everything added so far."""
        rows = {
            (tenant, lane): list(found.values())
            for tenant, lanes in self._lanes.items()
            for lane, found in enumerate(lanes)
            if found
        }
        return Folded(rows, list(self._wide.values()))


def is_covered(cover: Cover | None, epoch: int, bitmap_version: int) -> bool:
    """Whether everybody of a bitmap is known to have the conversation.

    Dispatches of a conversation come in order, so what is covered up to a version is covered below it.
    """
    return cover is not None and cover.epoch == epoch and cover.bitmap_version >= bitmap_version


def rows_of(message: WideMessage, ordinals: Iterable[int]) -> dict[Slot, list[SessionRow]]:
    """Rows that say that `ordinals` have the wide conversation."""
    tenant, conversation = message.of.tenant_id, message.of.conversation_id
    found: dict[Slot, list[SessionRow]] = {}
    for ordinal in ordinals:
        row = _new(SessionRow, (ordinal, conversation, message.activity, message.seq, True))
        found.setdefault((tenant, ordinal & _LANE_BITS), []).append(row)
    return found


def newcomers(members: Members, before: BitMap | None) -> Sequence[int]:
    """Who of `members` was not among those that are covered already, ascending."""
    if before is None:
        return members if isinstance(members, list) else members.to_array()
    return (BitMap(members) - before).to_array()
