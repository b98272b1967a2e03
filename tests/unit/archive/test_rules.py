"""What the archiver keeps and what is poison. Spec: §1, §3, §11; promise P13."""

import pytest

from qim_streams.archive.ports import REVISION_MAX
from qim_streams.archive.rules import drop_known, read_batch, read_message
from qim_streams.errors import RecordError
from qim_streams.operations.rules import revision_of
from qim_streams.records import OUTBOX_RELAYED, MessageRecord
from tests.unit.archive.outbox_batches import Record, message, record


def test_a_record_becomes_the_messages_own_bytes() -> None:
    sent = message(5)
    archived, committed_at = read_message(record(0, sent))
    assert (archived.tenant_id, archived.conversation_id, archived.conversation_seq) == ("acme", "room", 5)
    assert archived.record == sent.encode()
    assert committed_at == sent.committed_at


def _with(**changes: object) -> Record:
    return record(0, message(1)._replace(**changes))  # type: ignore[arg-type]


POISON = {
    "tombstone": Record(b"k", None, 0),
    "empty": Record(b"k", b"", 0),
    "garbage": Record(b"k", b"\xff" * 40, 0),
    "another version": Record(b"k", b"\x02" + (record(0, message(1)).value or b"")[1:], 0),
    "truncated": Record(record(0, message(1)).key, (record(0, message(1)).value or b"")[:-9], 0),
    "wrong key": record(0, message(1), key=b"acme\0another"),
    "wrong tenant in the key": record(0, message(1), key=b"other\0room"),
    "illegal conversation": _with(conversation_id="a:b"),
    "conversation with NUL": _with(conversation_id="a\0b"),
    "illegal tenant": _with(tenant_id=""),
    "seq 0": _with(conversation_seq=0),
}


@pytest.mark.parametrize("name", POISON)
def test_poison_is_named(name: str) -> None:
    with pytest.raises(RecordError):
        read_message(POISON[name])


def test_poison_costs_only_itself() -> None:
    good = [record(0, message(1)), record(2, message(2))]
    reading = read_batch([good[0], Record(b"k", b"junk", 1), good[1]])
    assert [one.conversation_seq for one in reading.messages.values()] == [1, 2]
    assert [bad.offset for bad, _ in reading.poison] == [1]


def test_a_relayed_copy_counts_once() -> None:
    first = message(1)
    reading = read_batch([record(0, first), record(1, first, flags=OUTBOX_RELAYED)])
    assert len(reading.messages) == 1
    assert reading.repeated == 1
    assert not reading.poison


def test_the_first_of_two_messages_at_one_seq_stands() -> None:
    reading = read_batch([record(0, message(1, body=b"first")), record(1, message(1, body=b"second"))])
    (kept,) = reading.messages.values()
    assert kept.record == message(1, body=b"first").encode()
    assert [(bad.offset, cause) for bad, cause in reading.poison] == [
        (1, "acme/room seq 1: another message is archived at this seq")
    ]


def test_what_the_archive_has_is_not_stored_again() -> None:
    reading = read_batch([record(seq, message(seq)) for seq in (1, 2, 3)])
    stored = [message(1).encode(), message(2, body=b"other").encode(), None]
    fresh = drop_known(reading, dict(zip(reading.messages, stored, strict=True)))
    assert [one.conversation_seq for one in fresh] == [3]
    assert reading.repeated == 1
    assert [bad.offset for bad, _ in reading.poison] == [2]


def test_extra_fields_of_a_newer_version_are_kept() -> None:
    newer: MessageRecord = message(1)._replace(extra=("later", 7))
    archived, _ = read_message(record(0, newer))
    assert archived.record == newer.encode()


def edited(seq: int, revision: int, body: bytes = b"edited") -> MessageRecord:
    """A later state of message `seq`."""
    return message(seq, body=body)._replace(state=1, extra=(revision,))


def test_the_revision_is_the_first_extra_field_if_it_is_a_number() -> None:
    assert revision_of(message(1)) == 0
    assert revision_of(edited(1, 3)) == 3
    for other in ("later", None, b"1"):
        assert revision_of(message(1)._replace(extra=(other,))) == 0
    assert revision_of(edited(1, REVISION_MAX)) == REVISION_MAX
    for wrong in (-1, REVISION_MAX + 1):
        with pytest.raises(RecordError, match="revision"):
            revision_of(edited(1, wrong))
        assert [bad.offset for bad, _ in read_batch([record(4, edited(1, wrong))]).poison] == [4]


def test_a_later_revision_replaces_and_an_earlier_one_is_a_repeat() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        states = [message(1) if revision == 0 else edited(1, revision) for revision in order]
        reading = read_batch([record(offset, state) for offset, state in enumerate(states)])
        (kept,) = reading.messages.values()
        assert (kept.revision, kept.record) == (2, edited(1, 2).encode())
        assert not reading.poison
        (address,) = reading.messages
        assert [one.revision for one in drop_known(reading, {address: edited(1, 1).encode()})] == [2]
        assert drop_known(reading, {address: edited(1, 3).encode()}) == []
        assert [one.revision for one in drop_known(reading, {})] == [2], "what was not looked up is fresh"


def test_one_revision_with_two_contents_is_poison_and_so_is_another_message() -> None:
    reading = read_batch([record(0, edited(1, 1)), record(1, edited(1, 1, b"other"))])
    assert [bad.offset for bad, _ in reading.poison] == [1]
    stranger = message(2)._replace(conversation_seq=1, extra=(5,))
    reading = read_batch([record(0, message(1)), record(1, stranger)])
    assert [bad.offset for bad, _ in reading.poison] == [1]
