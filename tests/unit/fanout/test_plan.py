"""The dispatch plan: one per shard, always the same bytes. T-M6, I10, T-A3."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams import ids
from qim_streams.errors import RecordError
from qim_streams.fanout.plan import body_digest, encode_plan, plan, read_outbox
from qim_streams.placement import outbox_partition
from qim_streams.records import OutboxRecord, decode_dispatch, pack_ordinals
from tests.unit.fanout.outbox import MEMBERS, PARTITIONS, SHARDS, Record, conversation_in, message, record

CHAT = conversation_in(0)


def test_golden_bytes() -> None:
    """T-M6: a replay after an upgrade writes what the first run wrote."""
    partition = outbox_partition("acme", "c6", PARTITIONS)
    source = read_outbox(record(9, message(7, "c6")), partition, PARTITIONS, SHARDS)
    first, second = (one.encode().hex() for one in plan(source, MEMBERS))
    assert first == (
        "01dc0014a461636d65c410" + ids.dispatch_id((7).to_bytes(16, "big"), 2).hex()
        + "c410" + "00" * 15 + "07" + "a26336" + "07" + "c410" + "00" * 15 + "07" + "a3616e6e" + "01" + "03"
        + "02" + "00" + "01" + "a570686f6e65" + "a26d37" + "c408" + body_digest(b"body").hex()
        + f"{partition:02x}" + "09" + "cd03ef" + "04" + "c408" + "0100000041000000"
    )  # fmt: skip
    assert second.endswith("07" + "c404" + "02000000")
    assert body_digest(b"body").hex() == "0be9c598ae638355"


@given(st.dictionaries(st.integers(0, SHARDS - 1), st.integers(1, 9), max_size=SHARDS))
def test_one_dispatch_per_shard_in_shard_order(versions: dict[int, int]) -> None:
    """§4: exactly one per target shard, however many members; the same bytes when planned again."""
    source = read_outbox(record(9, message(1, CHAT), None), 0, PARTITIONS, SHARDS)
    shards = {shard: (version, None) for shard, version in versions.items()}
    made = plan(source, shards)
    assert [one.target_mailbox_shard for one in made] == sorted(versions)
    assert {one.bitmap_version for one in made} == set(versions.values())
    assert encode_plan(source, shards) == [(one.target_mailbox_shard, one.encode()) for one in made]
    backwards = dict(reversed(list(shards.items())))
    assert [one.encode() for one in plan(source, backwards)] == [one.encode() for one in made]
    for one in made:
        assert one.dispatch_id == ids.dispatch_id(one.message_id, one.target_mailbox_shard)
        assert decode_dispatch(one.encode()) == one


def test_the_fast_way_writes_the_same_bytes() -> None:
    """I10: with inline members, with fields at their extremes."""
    big = message(1, CHAT, committed_at=2**63, membership_version=2**64 - 1, sender_ordinal=2**32 - 1)
    for one in (message(1, CHAT), big):
        source = read_outbox(record(2**40, one), 0, PARTITIONS, SHARDS)
        for shards in (MEMBERS, {0: (2**64 - 1, None), 7: (1, b"\1\0\0\0" * 500)}):
            assert [data for _, data in encode_plan(source, shards)] == [
                d.encode() for d in plan(source, shards)
            ]


def test_what_a_dispatch_carries() -> None:
    source = read_outbox(record(9, message(1, CHAT)), 0, PARTITIONS, SHARDS)
    one = plan(source, MEMBERS)[0]
    assert (one.tenant_id, one.conversation_id, one.conversation_seq) == ("acme", CHAT, 1)
    assert (one.sender_id, one.sender_ordinal, one.sender_device_id) == ("ann", 1, "phone")
    assert (one.membership_version, one.fencing_epoch, one.committed_at) == (3, 1, 1_001)
    assert (one.outbox_partition, one.outbox_offset) == (0, 9)
    assert (one.bitmap_version, one.members) == (4, pack_ordinals([1, 65]))
    assert b"body" not in one.encode(), "the body travels in the Outbox only"


GOOD = record(0, message(1, CHAT))
assert GOOD.value is not None
POISON = {
    "a tombstone": Record(0, GOOD.key, None),
    "no bytes": Record(0, GOOD.key, b""),
    "unknown version": Record(0, GOOD.key, b"\x09" + GOOD.value[1:]),
    "truncated": Record(0, GOOD.key, GOOD.value[:50]),
    "a megabyte and more": Record(0, GOOD.key, b"\x01" + bytes(1_000_001)),
    "wrong key": record(0, message(1, CHAT), key=b"acme\0other"),
    "no key": Record(0, None, GOOD.value),
    "wrong partition": record(0, message(1, conversation_in(1))),
    "wrong tenant": record(0, message(1, CHAT, tenant_id="other"), key=GOOD.key),
    "an id with a separator": record(0, message(1, CHAT, sender_id="a\0b")),
    "seq zero": record(0, message(1, CHAT)._replace(conversation_seq=0)),
    "a sender beyond u32": record(0, message(1, CHAT, sender_ordinal=2**32)),
    "a shard that does not exist": record(0, message(1, CHAT), {SHARDS: (1, b"\1\0\0\0")}),
    "members that are no u32": record(0, message(1, CHAT), {1: (1, b"\1\0\0")}),
    "a shard without members": record(0, message(1, CHAT), {1: (1, b"")}),
    "a message that is none": Record(0, GOOD.key, OutboxRecord(b"junk" * 9, 1, 0, None).encode()),
}


@pytest.mark.parametrize("kind", POISON)
def test_poison_is_refused_with_a_reason(kind: str) -> None:
    """T-A3."""
    with pytest.raises(RecordError) as caught:
        read_outbox(POISON[kind], 0, PARTITIONS, SHARDS)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_way(data: bytes) -> None:
    """T-F1."""
    with pytest.raises(RecordError):
        read_outbox(Record(0, GOOD.key, data), 0, PARTITIONS, SHARDS)
