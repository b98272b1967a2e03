"""What a client hands to its application: events, receipts, and marks in the stream of events.

One ordered stream per device::

    SyncStarted  Event* SyncFinished  (Event | MessageSent | SendFailed | Rebased | RebuildRequired |
    RebuildStarted ... HistoryClosed* ... RebuildFinished | Disconnected, then SyncStarted again)*  Stopped

Wherever an Event may come, a `MessageEdited` or `MessageRecalled` may.

Invariants: an `Event` comes once, and events of a conversation come ascending by conversation_seq, edits and
recalls in their own place among them;
`MessageSent` or `SendFailed` comes once per message that was given to the client and not given up.
What is handed out was kept by the store before.

Spec: §7, §8.
"""

from dataclasses import dataclass
from typing import NamedTuple

from qim_streams.wire.frames import Event, HistoryBreak

MessageReceived = Event
"""A message of the mailbox, of history, or of this device itself (`mailbox_seq` -1 for the last two)."""


@dataclass(frozen=True, slots=True)
class MessageRecalled:
    """The message `conversation_seq` was taken back by `by_user_id`: show no body of it any more.

    Comes in the place of the operation's own number, once, like an event; it is not unread. `event` is the
    operation itself. The store has changed its copy already. It may come for a message that this device
    never had, and more than once for one message.
    """

    conversation_id: str
    conversation_seq: int
    by_user_id: str
    at_ms: int
    event: Event


@dataclass(frozen=True, slots=True)
class MessageEdited:
    """The message `conversation_seq` has the body `body` now; otherwise as `MessageRecalled`."""

    conversation_id: str
    conversation_seq: int
    by_user_id: str
    at_ms: int
    event: Event
    body: bytes


@dataclass(frozen=True, slots=True)
class SyncStarted:
    """Offline sync begins: what follows was sent before `sync_to_seq` and while this device was away."""

    after_seq: int
    sync_to_seq: int
    pending_entry_count_hint: int


@dataclass(frozen=True, slots=True)
class SyncFinished:
    """Everything up to `sync_to_seq` was given out; what follows is live."""

    sync_to_seq: int


@dataclass(frozen=True, slots=True)
class Rebased:
    """The mailbox has another owner: the cursor was exchanged. Nothing is shown again because of it."""

    replay_from_seq: int


@dataclass(frozen=True, slots=True)
class RebuildRequired:
    """The mailbox no longer reaches back to what this device has: messages between may be missing.

    Kept messages stay valid. The gap is closed from history, per conversation (Spec: §8): conversations
    show nothing new until their history is closed.
    """

    reason: str  # CURSOR_EXPIRED or CURSOR_INVALID


@dataclass(frozen=True, slots=True)
class RebuildStarted:
    """History is being read for so many conversations."""

    conversations: int


@dataclass(frozen=True, slots=True)
class HistoryClosed:
    """The history of a conversation was read to its end; `left` conversations remain.

    `breaks`: the numbers on the way that hold no message for this user, and why (the first 64).
    """

    conversation_id: str
    messages: int
    breaks: tuple[HistoryBreak, ...]
    left: int


class Gap(NamedTuple):
    """Messages of a conversation with after_seq < seq < before_seq may be missing here.

    `before_seq` is None when nothing above is known. `reason`: the code of the answer that ended the
    reading, or LIMIT.
    """

    conversation_id: str
    after_seq: int
    before_seq: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class RebuildFinished:
    """Every known conversation shows new events again. `gaps`: where history could not be read.

    `complete`: the server gave the whole set of conversations. If not, one that this device does not
    know is read from history when it is first met.
    """

    gaps: tuple[Gap, ...]
    complete: bool


class SendReceipt(NamedTuple):
    """The message is committed. Repeating the send with its client_message_id gives the same."""

    client_message_id: str
    conversation_id: str
    message_id: bytes
    conversation_seq: int
    committed_at: int


@dataclass(frozen=True, slots=True)
class MessageSent:
    """A message of this device is committed, perhaps one that was given to an earlier process."""

    receipt: SendReceipt


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A message of this device was refused for good (`code` of the error table); it is not kept."""

    client_message_id: str
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection ended; another one is tried in about `retry_in_ms`."""

    reason: str
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The client has stopped for good: the last delivery. Not given when the application closed it."""

    code: str
    detail: str


Mark = (
    SyncStarted
    | SyncFinished
    | Rebased
    | RebuildRequired
    | RebuildStarted
    | HistoryClosed
    | RebuildFinished
    | MessageSent
    | SendFailed
    | Disconnected
    | Stopped
)
Operation = MessageEdited | MessageRecalled
Delivery = Event | Operation | Mark
