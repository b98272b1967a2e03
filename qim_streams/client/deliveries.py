"""What a client hands to its application besides events: marks in the stream of events.

Spec: §7, §8.
"""

from dataclasses import dataclass

from qim_streams.wire.frames import Event


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
class RebuildRequired:
    """The mailbox no longer reaches back to what this device has: messages between may be missing.

    Kept messages stay valid. The gap is closed from history, per conversation (Spec: §8).
    """

    reason: str  # CURSOR_EXPIRED or CURSOR_INVALID


Mark = SyncStarted | SyncFinished | RebuildRequired
Delivery = Event | Mark
