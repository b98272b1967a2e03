"""What a record of the dispatch log is. T-A3, T-G1, T-F1."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.errors import InvariantViolation, RecordError
from qim_streams.mailbox.intake import Kind, read_dispatch, take
from qim_streams.mailbox.pages import Seen, content_digest
from tests.unit.mailbox.dispatches import dispatch, record


def nothing(ids: list[bytes]) -> list[Seen | None]:
    return [None] * len(ids)


POISON = {
    "a tombstone": None,
    "no bytes": b"",
    "unknown version": b"\x02" + dispatch(1).encode()[1:],
    "truncated": dispatch(1).encode()[:40],
    "not msgpack": b"\x01\xc1\xff\x00",
    "another record type": b"\x01" + msgpack.packb([1, 2, 3]),
    "for another shard": dispatch(1, shard=3),
    "a dispatch_id of another message": dispatch(1)._replace(dispatch_id=b"x" * 16),
    "a tenant with a separator": dispatch(1)._replace(tenant_id="a:b"),
    "a conversation that is no id": dispatch(1)._replace(conversation_id="x\0y"),
    "a sender beyond u32": dispatch(1)._replace(sender_ordinal=2**32),
    "a negative number": dispatch(1)._replace(conversation_seq=-1),
    "a number too large for its field": dispatch(1)._replace(membership_version=-5),
    "members that are no u32": dispatch(1)._replace(members=b"abc"),
    "a megabyte and more": b"\x01" + bytes(1_000_001),
}


@pytest.mark.parametrize("kind", POISON)
def test_poison_is_named_and_costs_only_itself(kind: str) -> None:
    """P13: the neighbours of a poison record are new, whatever it is."""
    records = [record(0, dispatch(1)), record(1, POISON[kind]), record(2, dispatch(2))]
    before, poison, after = take(records, 0, nothing)
    assert (before.kind, after.kind) == (Kind.NEW, Kind.NEW)
    assert poison.kind is Kind.POISON
    assert poison.dispatch is None
    assert poison.cause
    assert "\n" not in poison.cause
    assert not poison.is_done_here


@given(st.binary(max_size=400))
def test_any_bytes_are_a_dispatch_or_poison(data: bytes) -> None:
    """T-F1: no other exception."""
    assert take([record(0, data)], 0, nothing)[0].kind is Kind.POISON


def test_a_repeat_in_the_same_batch() -> None:
    again = dispatch(1)._replace(outbox_offset=77)
    kinds = [one.kind for one in take([record(4, dispatch(1)), record(6, again)], 0, nothing)]
    assert kinds == [Kind.NEW, Kind.REPEAT]


def test_a_repeat_of_an_earlier_batch() -> None:
    seen = Seen(2, content_digest(dispatch(1)))
    (one,) = take([record(9, dispatch(1))], 0, lambda ids: [seen])
    assert one.kind is Kind.REPEAT
    assert not one.is_done_here


def test_the_same_offset_again_is_a_replay_not_a_repeat() -> None:
    """A store that lost its last writes gets them again."""
    seen = Seen(9, content_digest(dispatch(1)))
    (one,) = take([record(9, dispatch(1))], 0, lambda ids: [seen])
    assert one.kind is Kind.REPLAY
    assert one.is_done_here
    assert one.offset == 9


def test_other_content_under_a_known_id_is_poison() -> None:
    """T-G1: the first content stands."""
    forged = dispatch(1)._replace(body_digest=b"another!")
    first, second = take([record(0, dispatch(1)), record(1, forged)], 0, nothing)
    assert (first.kind, second.kind, second.forged) == (Kind.NEW, Kind.POISON, True)
    assert "offset 0" in second.cause


def test_an_exchanged_log_stops_the_shard() -> None:
    """T-B4: the record under a processed offset is another one."""
    with pytest.raises(InvariantViolation, match="re-created"):
        take([record(9, dispatch(1))], 0, lambda ids: [Seen(9, b"other...")])


def test_read_dispatch_gives_the_dispatch_as_it_was() -> None:
    assert read_dispatch(record(0, dispatch(1)), 0) == dispatch(1)
    with pytest.raises(RecordError, match="for shard 0, read from 1"):
        read_dispatch(record(0, dispatch(1)), 1)
