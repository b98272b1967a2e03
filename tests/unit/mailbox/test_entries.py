"""Values of mailboxes. T-M6 golden bytes."""

import pytest

from qim_streams.mailbox.entries import check_size, groups_of, recipient_entry, sender_entry
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.records import FLAG_COUNTS_UNREAD, decode_entry
from tests.unit.mailbox.dispatches import dispatch


def test_golden_bytes() -> None:
    """T-M6: entries and dispatches of this version."""
    one = dispatch(2)
    tail = "a26331" + "02" + "a3616e6e"
    assert recipient_entry(one).encode().hex() == "019900c410" + "00" * 15 + "02" + tail + "03cd03eac000"
    assert sender_entry(one).encode().hex() == "019900c410" + "00" * 15 + "02" + tail + "02cd03eaa26d3200"
    assert one.encode().hex() == (
        "01dc0014a461636d65c410" + one.dispatch_id.hex() + "c410" + "00" * 15 + "02"
        "a2633102c410" + "00" * 15 + "02" + "a3616e6e01010000"
        "01a570686f6e65a26d32c4083820627974657321"
        "0002cd03ea04c4080100000041000000"
    )
    assert one.dispatch_id.hex() == "617ea81f2c64c3a69f61b8561d73d137"


def test_the_sender_has_a_value_of_his_own() -> None:
    """F1: his own message never counts as unread, and only he sees client_message_id."""
    one = dispatch(2)
    others, own = groups_of(one, 7, [1, 2, 65], sender_is_member=True)
    assert (list(others.ordinals), list(own.ordinals)) == ([2, 65], [1])
    assert (others.mailbox_seq, others.event_ordinal, others.tenant_id) == (7, 0, "acme")
    read, mine = decode_entry(others.value), decode_entry(own.value)
    assert read.flags & FLAG_COUNTS_UNREAD
    assert not mine.flags & FLAG_COUNTS_UNREAD
    assert (read.client_message_id, mine.client_message_id) == (None, "m2")


def test_one_value_where_there_is_one_kind_of_recipient() -> None:
    one = dispatch(2)
    assert [list(g.ordinals) for g in groups_of(one, 7, [2, 65], sender_is_member=False)] == [[2, 65]]
    assert [list(g.ordinals) for g in groups_of(one, 7, [1], sender_is_member=True)] == [[1]]


def test_calls_are_bounded() -> None:
    check_size([EntryGroup("t", 1, 0, b"", range(1_000))] * 2)
    with pytest.raises(ValueError, match="2001 mailboxes"):
        check_size([EntryGroup("t", 1, 0, b"", range(2_001))])
