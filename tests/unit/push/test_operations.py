"""Edits and recalls on their way to devices: not unread, one event_id on every way, final bodies.

Spec: §6, §8.
"""

from collections.abc import Sequence

import pytest

from qim_streams.ids import event_id
from qim_streams.mailbox.entries import recipient_entry, sender_entry
from qim_streams.push.batches import _by_connection_shard
from qim_streams.push.bodies import CommonBodies
from qim_streams.push.presence import Device
from qim_streams.records import (
    KIND_EDIT,
    KIND_MESSAGE,
    KIND_RECALL,
    RECIPIENT_FLAGS,
    SENDER_FLAGS,
    GroupDispatch,
    MessageRecord,
)
from qim_streams.wire.events import common_body
from tests.unit.archive.outbox_batches import message


def dispatch_of(sent: MessageRecord) -> GroupDispatch:
    """What the mailbox stage reads of a message."""
    return GroupDispatch(
        sent.tenant_id, bytes(16), sent.message_id, sent.conversation_id, sent.conversation_seq,
        sent.message_id, sent.sender_id, 1, 1, 0, sent.kind, sent.sender_ordinal, sent.sender_device_id,
        sent.client_message_id, bytes(8), 0, 0, sent.committed_at, 1, None,
    )  # fmt: skip


def edit(seq: int, target: int, body: bytes, kind: int = KIND_EDIT) -> MessageRecord:
    return message(seq)._replace(kind=kind, state=kind, body=body, extra=(0, target, 1))


@pytest.mark.parametrize("kind", [KIND_MESSAGE, KIND_EDIT, KIND_RECALL])
def test_flags_and_event_ids_are_the_same_by_push_and_by_pull(kind: int) -> None:
    sent = message(9)._replace(kind=kind)
    dispatch = dispatch_of(sent)
    theirs, ours = (RECIPIENT_FLAGS, SENDER_FLAGS) if kind == KIND_MESSAGE else (0, 0)
    assert (recipient_entry(dispatch).flags, sender_entry(dispatch).flags) == (theirs, ours)
    assert sender_entry(dispatch).client_message_id == "c9"
    devices = [
        Device("acme", "bob", 65, "d", 0, 1, 1),
        Device("acme", "ann", 64, "tablet", 0, 2, 1),
        Device("acme", "ann", 64, "phone", 0, 3, 1),
    ]
    pushed = _by_connection_shard(dispatch, devices)[0]
    assert [(one.connection_id, one.flags) for one in pushed] == [(1, theirs), (2, ours)]
    expected = [event_id(sent.message_id, user, kind) for user in ("bob", "ann")]
    assert [one.event_id for one in pushed] == expected


class Tier:
    """The hot tier."""

    def __init__(self, *rows: MessageRecord) -> None:
        self.rows = {one.conversation_seq: one.encode() for one in rows}
        self.reads = 0

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        self.reads += 1
        return [self.rows.get(seq) for *_, seq in wanted]


async def test_a_late_push_of_an_edit_shows_what_its_target_is_by_now() -> None:
    """The mailbox stage was behind: the body was recalled meanwhile and is pushed to nobody."""
    gone = message(5)._replace(state=2, body=b"", extra=(4_095,))
    tier = Tier(message(4), gone, edit(9, 5, b"secret"), edit(10, 4, b"new"))
    bodies = CommonBodies(tier, 16)
    asked = [dispatch_of(edit(9, 5, b"secret")), dispatch_of(edit(10, 4, b"new")), dispatch_of(message(4))]
    found = await bodies.load(asked)
    assert found == {
        asked[0].message_id: common_body(edit(9, 5, b"")._replace(state=2)),
        asked[1].message_id: common_body(edit(10, 4, b"new")),
        asked[2].message_id: common_body(message(4)),
    }
    assert tier.reads == 2


async def test_without_an_edit_nothing_more_is_read() -> None:
    tier = Tier(message(4), edit(9, 4, b"", KIND_RECALL))
    await CommonBodies(tier, 16).load([dispatch_of(message(4)), dispatch_of(edit(9, 4, b"", KIND_RECALL))])
    assert tier.reads == 1
