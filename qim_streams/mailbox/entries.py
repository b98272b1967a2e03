"""From a GroupDispatch to the stored values of its recipients.

All recipients share one value; the sender, if a member, has another: it does not count as unread and
carries client_message_id, so that the sender's other devices can tell their own message (Spec: §5). An
edit or recall counts for nobody and moves no conversation up.
The same dispatch always gives the same bytes.
"""

from collections.abc import Sequence

from qim_streams.ids import EVENT_MESSAGE
from qim_streams.limits import WRITEBATCH_ENTRIES_MAX
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.records import (
    KIND_MESSAGE,
    OPERATION_FLAGS,
    RECIPIENT_FLAGS,
    SENDER_FLAGS,
    GroupDispatch,
    UserMailboxEntry,
)

EVENT_ORDINAL_MESSAGE = EVENT_MESSAGE

_new = tuple.__new__


def recipient_entry(dispatch: GroupDispatch) -> UserMailboxEntry:
    """What every member but the sender gets."""
    return _new(
        UserMailboxEntry,
        (
            dispatch.kind,
            dispatch.message_id,
            dispatch.conversation_id,
            dispatch.conversation_seq,
            dispatch.sender_id,
            RECIPIENT_FLAGS if dispatch.kind == KIND_MESSAGE else OPERATION_FLAGS,
            dispatch.committed_at,
            None,  # client_message_id
            0,  # visibility_floor
            (),
        ),
    )


def sender_entry(dispatch: GroupDispatch) -> UserMailboxEntry:
    """What the sender gets."""
    (kind, message_id, conversation_id, seq, sender_id, _, at, _, floor, extra) = recipient_entry(dispatch)
    own, flags = dispatch.client_message_id, SENDER_FLAGS if kind == KIND_MESSAGE else OPERATION_FLAGS
    entry = (kind, message_id, conversation_id, seq, sender_id, flags, at, own, floor, extra)
    return _new(UserMailboxEntry, entry)


def groups_of(
    dispatch: GroupDispatch, mailbox_seq: int, ordinals: Sequence[int], sender_is_member: bool
) -> list[EntryGroup]:
    """The values of a dispatch for `ordinals` (ascending), the sender's own apart.

    `sender_is_member` says whether `dispatch.sender_ordinal` is among them.
    """
    tenant, sender, event = dispatch.tenant_id, dispatch.sender_ordinal, EVENT_ORDINAL_MESSAGE
    groups = []
    others = [ordinal for ordinal in ordinals if ordinal != sender] if sender_is_member else ordinals
    if others:
        value = recipient_entry(dispatch).encode()
        groups.append(_new(EntryGroup, (tenant, mailbox_seq, event, value, others)))
    if sender_is_member:
        value = sender_entry(dispatch).encode()
        groups.append(_new(EntryGroup, (tenant, mailbox_seq, event, value, (sender,))))
    return groups


def check_size(groups: Sequence[EntryGroup]) -> None:
    """ValueError when a call has more mailboxes than a store takes at once."""
    size = sum([len(group.ordinals) for group in groups])
    if size > WRITEBATCH_ENTRIES_MAX:
        raise ValueError(f"{size} mailboxes in one call, at most {WRITEBATCH_ENTRIES_MAX}")
