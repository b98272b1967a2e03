"""Bytes of records: each is encoded once and decoded once per stage. Spec: §3, §4, §5."""

from qim_streams.mailbox.entries import recipient_entry
from qim_streams.records import (
    GroupDispatch,
    MessageRecord,
    OutboxRecord,
    UserMailboxEntry,
    decode_dispatch,
    decode_entry,
    decode_message,
    decode_outbox,
)
from tests.perf.registry import Case, always, benchmark
from tests.perf.samples import MESSAGE, OUTBOX, dispatch


@benchmark("records.message.encode")
def message_encode() -> Case[bytes]:
    """A canonical message with a body of 200 bytes."""
    return Case(MESSAGE.encode, lambda data: decode_message(data) == MESSAGE)


@benchmark("records.message.decode")
def message_decode() -> Case[MessageRecord]:
    """The same, read."""
    data = MESSAGE.encode()
    return Case(lambda: decode_message(data), always(MESSAGE))


@benchmark("records.outbox.encode")
def outbox_encode() -> Case[bytes]:
    """The Outbox record around an encoded message, with the members of a direct chat."""
    return Case(OUTBOX.encode, lambda data: decode_outbox(data) == OUTBOX)


@benchmark("records.outbox.decode")
def outbox_decode() -> Case[OutboxRecord]:
    """The same, read; the message inside stays bytes."""
    data = OUTBOX.encode()
    return Case(lambda: decode_outbox(data), always(OUTBOX))


@benchmark("records.dispatch.encode")
def dispatch_encode() -> Case[bytes]:
    """A dispatch with its members inline."""
    value = dispatch()
    return Case(value.encode, lambda data: decode_dispatch(data) == value)


@benchmark("records.dispatch.decode")
def dispatch_decode() -> Case[GroupDispatch]:
    """The same, read."""
    value = dispatch()
    data = value.encode()
    return Case(lambda: decode_dispatch(data), always(value))


@benchmark("records.entry.encode")
def entry_encode() -> Case[bytes]:
    """A mailbox entry, encoded once for all recipients of a record."""
    entry = recipient_entry(dispatch())
    return Case(entry.encode, lambda data: decode_entry(data) == entry)


@benchmark("records.entry.decode")
def entry_decode() -> Case[UserMailboxEntry]:
    """The same, read when a device pulls."""
    entry = recipient_entry(dispatch())
    data = entry.encode()
    return Case(lambda: decode_entry(data), always(entry))
