"""Who may edit and recall, and what becomes of the message. Spec: §8; scenarios G1, F11."""

import pytest

from qim_streams.commit.ports import Change
from qim_streams.commit.ports import CommitStatus as S
from qim_streams.errors import RecordError
from qim_streams.operations.rules import (
    EDITS_MAX,
    RECALL_REVISION,
    Operation,
    as_seen,
    decide_change,
    operation_of,
    operation_tail,
    readable,
    revise,
    revision_bytes,
    revision_of,
    target_seq_of,
)
from qim_streams.records import KIND_EDIT, KIND_RECALL, MessageRecord, decode_message, message_head
from tests.unit.archive.outbox_batches import message

SENT = message(5)._replace(committed_at=1_000)  # by ann


def change(kind: int, window_ms: int = 100, admin_ms: int = 500) -> Change:
    return Change(kind, 5, b"new", window_ms, admin_ms)


def edit_record(seq: int = 9, target: object = 5, revision: object = 1) -> MessageRecord:
    return message(seq)._replace(kind=KIND_EDIT, state=1, body=b"new", extra=(0, target, revision))


@pytest.mark.parametrize(
    ("kind", "sender", "role", "at_ms", "expected"),
    [
        (KIND_EDIT, "ann", "member", 1_100, (S.NEW, 1)),
        (KIND_EDIT, "ann", "member", 1_101, (S.TOO_LATE, 0)),
        (KIND_EDIT, "ann", "member", 900, (S.NEW, 1)),  # the clock of the other writer was ahead
        (KIND_EDIT, "bob", "owner", 1_001, (S.NOT_YOURS, 0)),
        (KIND_RECALL, "ann", "member", 1_100, (S.NEW, RECALL_REVISION)),
        (KIND_RECALL, "ann", "member", 1_101, (S.TOO_LATE, 0)),
        (KIND_RECALL, "bob", "member", 1_001, (S.NOT_YOURS, 0)),
        (KIND_RECALL, "bob", "admin", 1_500, (S.NEW, RECALL_REVISION)),
        (KIND_RECALL, "bob", "owner", 1_501, (S.TOO_LATE, 0)),
        (KIND_RECALL, "ann", "admin", 1_500, (S.NEW, RECALL_REVISION)),
    ],
)
def test_who_may_and_for_how_long(
    kind: int, sender: str, role: str, at_ms: int, expected: tuple[S, int]
) -> None:
    assert decide_change(change(kind), SENT, sender, role, at_ms) == expected


def test_a_window_may_be_for_ever_or_never() -> None:
    for window, expected in ((-1, S.NEW), (0, S.TOO_LATE)):
        assert decide_change(change(KIND_EDIT, window), SENT, "ann", "member", 2**50)[0] is expected
        assert decide_change(change(KIND_EDIT, window), SENT, "ann", "member", 0)[0] is expected
        assert decide_change(change(KIND_RECALL, 0, window), SENT, "bob", "owner", 2**50)[0] is expected


def test_what_cannot_be_changed() -> None:
    recalled = SENT._replace(state=2, body=b"", extra=(RECALL_REVISION,))
    for kind in (KIND_EDIT, KIND_RECALL):
        assert decide_change(change(kind), recalled, "ann", "owner", 1_001)[0] is S.TARGET_RECALLED
        assert decide_change(change(kind), edit_record(), "ann", "owner", 1_001)[0] is S.NOT_A_MESSAGE
    worn = SENT._replace(extra=(EDITS_MAX - 1,))
    assert decide_change(change(KIND_EDIT), worn, "ann", "member", 1_001) == (S.NEW, EDITS_MAX)
    worn = SENT._replace(extra=(EDITS_MAX,))
    assert decide_change(change(KIND_EDIT), worn, "ann", "member", 1_001)[0] is S.TOO_MANY_EDITS
    assert decide_change(change(KIND_RECALL), worn, "ann", "member", 1_001) == (S.NEW, RECALL_REVISION)


def test_the_record_of_an_operation_names_target_and_revision() -> None:
    plain = message(9)._replace(kind=KIND_EDIT, state=1, body=b"new")
    for revision in (1, 127, 128, 255, 256, RECALL_REVISION):
        data = message_head(9, 1) + operation_tail(plain, 5) + revision_bytes(revision)
        made = decode_message(data)
        assert operation_of(made) == Operation(KIND_EDIT, 5, revision, b"new")
        assert made.encode() == data
        assert revision_of(made) == 0
    assert operation_of(SENT) is None


@pytest.mark.parametrize(
    "wrong",
    [
        edit_record()._replace(extra=()),
        edit_record()._replace(extra=(0, 5)),
        edit_record(target="5"),
        edit_record(target=0),
        edit_record(target=9),
        edit_record(revision=0),
        edit_record(revision=True),
        edit_record(revision=RECALL_REVISION + 1),
    ],
)
def test_a_malformed_operation_is_none(wrong: MessageRecord) -> None:
    with pytest.raises(RecordError):
        operation_of(wrong)
    assert target_seq_of(wrong) is None


def test_a_revision_replaces_state_and_body_only_and_only_forwards() -> None:
    first = Operation(KIND_EDIT, 5, 1, b"one")
    second = Operation(KIND_EDIT, 5, 2, b"two")
    recall = Operation(KIND_RECALL, 5, RECALL_REVISION, b"")
    edited = revise(SENT, first)
    assert edited == SENT._replace(state=1, body=b"one", extra=(1,))
    assert revise(edited, first) is None
    assert revise(SENT, second) == revise(edited, second)
    assert revise(SENT, recall) == SENT._replace(state=2, body=b"", extra=(RECALL_REVISION,))
    gone = revise(SENT, recall)
    assert gone is not None
    assert revise(gone, second) is None
    assert revise(edit_record(), first) is None, "an operation is no target"


def test_fields_that_are_unknown_are_left_alone() -> None:
    """A later version may give messages more fields: this one would lose them."""
    strange = SENT._replace(extra=(0, "more"))
    assert readable(strange.encode()) is None
    assert revise(strange, Operation(KIND_EDIT, 5, 1, b"")) is None
    assert readable(b"junk") is None


def test_an_edit_is_seen_as_what_its_target_is_by_now() -> None:
    """Recalled bodies are shown nowhere, also not under the number of the edit that brought them."""
    edit, target = edit_record(revision=1), SENT._replace(state=1, body=b"third", extra=(3,))
    assert as_seen(edit, target) == edit._replace(body=b"third")
    gone = SENT._replace(state=2, body=b"", extra=(RECALL_REVISION,))
    assert as_seen(edit, gone) == edit._replace(state=2, body=b"")
    assert as_seen(edit, SENT) is edit, "a copy from before the edit"
    assert as_seen(edit, None) is edit
    assert as_seen(SENT, target) is SENT
