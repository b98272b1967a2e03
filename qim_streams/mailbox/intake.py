"""Taking a batch in: decode, refuse poison, tell replays and repeats from new dispatches.

Pure but for the look-up of ids that the caller passes in. A record is one of

* *new*: to be written;
* *replay*: its dispatch_id was first seen at this very offset; the store knows whether it is written;
* *repeat*: its dispatch_id was first seen at a lower offset, with the same content: nothing to write;
* *poison*: not a GroupDispatch for this shard, or a repeat with other content.

Spec: §5, §11.
"""

import struct
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from qim_streams import ids
from qim_streams.errors import InvariantViolation, RecordError
from qim_streams.log_ports import LogRecord
from qim_streams.mailbox.pages import Seen, content_digest
from qim_streams.placement import ORDINAL_MAX
from qim_streams.records import GroupDispatch, decode_dispatch

Lookup = Callable[[list[bytes]], list[Seen | None]]


class Kind(Enum):
    """What a record of a batch is."""

    NEW = "new"
    REPLAY = "replay"
    REPEAT = "repeat"
    POISON = "poison"


class Taken(NamedTuple):
    """One record after the intake. `dispatch` is None and `cause` is set for poison."""

    offset: int
    kind: Kind
    record: LogRecord
    dispatch: GroupDispatch | None
    digest: bytes = b""
    cause: str = ""
    forged: bool = False

    @property
    def is_done_here(self) -> bool:
        """Whether this offset is the first occurrence of its dispatch (and goes into the page)."""
        return self.kind is Kind.NEW or self.kind is Kind.REPLAY


_NEW = Kind.NEW
_new = tuple.__new__
_text_id = lru_cache(maxsize=65_536)(ids.is_text_id)


def read_dispatch(record: LogRecord, shard: int) -> GroupDispatch:
    """The GroupDispatch of a record read from partition `shard`; RecordError says why it is not one.

    What is checked here ends up in keys, ids and fixed-width fields: nothing unchecked goes further.
    """
    value = record.value
    if value is None:
        raise RecordError("GroupDispatch: a tombstone")
    dispatch = decode_dispatch(value)
    (
        tenant_id, dispatch_id, message_id, conversation_id, seq, _, _, _, _, target, kind, ordinal, _, _, _,
        _, _, committed_at, _, _, _,
    ) = dispatch  # fmt: skip
    if target != shard:
        raise RecordError(f"GroupDispatch: for shard {target}, read from {shard}")
    if not (_text_id(tenant_id) and _text_id(conversation_id)):
        raise RecordError("GroupDispatch: tenant or conversation is not an id")
    if not 0 <= ordinal <= ORDINAL_MAX:
        raise RecordError("GroupDispatch: the sender's ordinal is not a u32")
    if seq < 1 or committed_at < 0 or kind < 0:
        raise RecordError("GroupDispatch: a number is out of its range")
    if dispatch_id != ids.dispatch_id(message_id, shard):
        raise RecordError("GroupDispatch: dispatch_id does not belong to message and shard")
    return dispatch


def take(records: Sequence[LogRecord], shard: int, lookup: Lookup) -> list[Taken]:
    """What each record of a batch is. InvariantViolation when the log under an offset was exchanged."""
    taken = [_decoded(record, shard) for record in records]
    wanted = [dispatch.dispatch_id for one in taken if (dispatch := one.dispatch) is not None]
    seen = lookup(wanted)
    if seen.count(None) == len(seen) == len(set(wanted)):
        return taken  # nothing was seen before: the usual case
    first = {one: before for one, before in zip(wanted, seen, strict=True) if before is not None}
    return [one if one.dispatch is None else _judged(one, one.dispatch, first) for one in taken]


def _decoded(record: LogRecord, shard: int) -> Taken:
    try:
        dispatch = read_dispatch(record, shard)
        return _new(Taken, (record.offset, _NEW, record, dispatch, content_digest(dispatch), "", False))
    except struct.error:
        return Taken(record.offset, Kind.POISON, record, None, cause="GroupDispatch: a number is too large")
    except RecordError as error:
        return Taken(record.offset, Kind.POISON, record, None, cause=str(error))


def _judged(one: Taken, dispatch: GroupDispatch, first: dict[bytes, Seen]) -> Taken:
    seen = first.get(dispatch.dispatch_id)
    if seen is None or seen.offset > one.offset:
        first[dispatch.dispatch_id] = Seen(one.offset, one.digest)
        return one
    if seen.offset == one.offset:
        if seen.digest != one.digest:
            raise InvariantViolation(
                f"dispatch offset {one.offset} holds another record than the one processed before: "
                "the topic was re-created or rewritten; raise the shard's epoch and reset its position"
            )
        return one._replace(kind=Kind.REPLAY)
    if seen.digest != one.digest:
        cause = f"dispatch_id first seen at offset {seen.offset} came again with other content"
        return one._replace(kind=Kind.POISON, dispatch=None, cause=cause, forged=True)
    return one._replace(kind=Kind.REPEAT)
