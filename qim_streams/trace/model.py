"""What a trace says. Times are milliseconds since the epoch, taken from the records themselves; a level
without a record of its own (the archive, W) has a verdict and no time.

Spec: §1.
"""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """The message as the Outbox has it, without its body."""

    conversation_id: str
    conversation_seq: int
    membership_version: int
    sender_id: str
    sender_device_id: str
    client_message_id: str
    fencing_epoch: int
    committed_at: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class OutboxPlace:
    """Where the message lies in the Outbox. `relayed`: appended by the relay after a crash."""

    partition: int
    offset: int
    at_ms: int
    relayed: bool
    hot: bool  # the hot tier still has it


@dataclass(frozen=True, slots=True)
class DispatchPlace:
    """The message's dispatch for one MailboxShard, and how far that shard has come.

    `lanes` are the lanes of its recipients; `covered` when W of every one of them is at `offset` or
    beyond. `entries_found` of the `entries_sampled` mailboxes that were looked into have the entry.
    `done_at_ms`: when the shard wrote its page, after W had moved and pushes were sent; None: not known.
    """

    shard: int
    offset: int
    at_ms: int
    recipients: int
    lanes: tuple[int, ...]
    watermark_min: int
    watermark_max: int
    covered: bool
    entries_sampled: int
    entries_found: int
    done_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PushPlace:
    """A push batch that carries the message to the devices of one ConnectionShard."""

    connection_shard: int
    offset: int
    at_ms: int
    mailbox_shard: int
    devices: int


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """The message in the archive: there or not, and whether the published watermark covers its record."""

    present: bool
    watermark: int
    covered: bool


@dataclass(frozen=True, slots=True)
class NotifiedPlace:
    """Devices without presence that the message made a task for, and those that a provider was told of.

    What was sent is remembered for about as long as a message may be notified; later it cannot be told.
    """

    tasks: int
    sent: int
    at_ms: int  # of the first task


@dataclass(frozen=True, slots=True)
class Level:
    """One of the contract's levels. `reached` None: it cannot be told."""

    name: str
    reached: bool | None
    at_ms: int | None
    after_ms: int | None  # since committed_at
    detail: str


@dataclass(slots=True)
class MessageTrace:
    """A message's way. `message` is None when it was not found; `notes` say what was and was not searched."""

    tenant_id: str
    message_id: str
    message: TracedMessage | None = None
    outbox: OutboxPlace | None = None
    shards_expected: tuple[int, ...] | None = None
    dispatches: list[DispatchPlace] = field(default_factory=list)
    pushes: list[PushPlace] = field(default_factory=list)
    notified: NotifiedPlace | None = None
    archive: ArchivePlace | None = None
    levels: list[Level] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def found(self) -> bool:
        """Whether the message is in the Outbox."""
        return self.message is not None

    def to_json(self) -> dict[str, Any]:
        """The trace as plain JSON values."""
        return {"found": self.found, **asdict(self)}
