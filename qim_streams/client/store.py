"""What a device keeps: messages, its cursor, and what it has not sent yet. The port and a store in memory.

Invariants: `apply` is atomic: a cursor is kept only together with the events that it covers; applying an
event again changes nothing. Calls are short and synchronous, one per batch of frames.

Spec: §7, §8 (1).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from qim_streams.wire.frames import Event


class Unsent(NamedTuple):
    """A message that was given to the client and has no ack or refusal yet."""

    client_message_id: str
    body: bytes
    conversation_id: str | None
    to_user_id: str | None


@dataclass(slots=True)
class LocalState:
    """What a client starts from. `positions`: the last shown conversation_seq of each conversation.

    `rebuild_pending`: the mailbox had moved on past this device and the history is not closed yet.
    """

    cursor: str | None = None
    positions: dict[str, int] = field(default_factory=dict)
    unsent: list[Unsent] = field(default_factory=list)
    rebuild_pending: bool = False


class LocalStore(Protocol):
    """Keeps the state of one device."""

    def load(self) -> LocalState:
        """Everything needed to go on after a restart; `unsent` in the order of `add_unsent`."""

    def apply(self, events: Sequence[Event], cursor: str | None, rebuild_pending: bool) -> None:
        """Keep events, the cursor that stands after them, and whether history is missing. Atomic."""

    def add_unsent(self, message: Unsent) -> None:
        """Keep a message until it is settled."""

    def settle(self, client_message_id: str) -> None:
        """The message was acknowledged or refused."""

    def messages(self, conversation_id: str, limit: int, before_seq: int | None = None) -> list[Event]:
        """The last `limit` events of a conversation (below `before_seq`), ascending."""

    def close(self) -> None:
        """Release what the store holds open."""


class MemoryStore:
    """A `LocalStore` that lives as long as the object. Keeps everything: for tests and short sessions."""

    def __init__(self) -> None:
        self._cursor: str | None = None
        self._rebuild_pending = False
        self._events: dict[str, dict[int, Event]] = defaultdict(dict)
        self._unsent: dict[str, Unsent] = {}

    def load(self) -> LocalState:
        """See `LocalStore.load`."""
        positions = {name: max(events) for name, events in self._events.items() if events}
        return LocalState(self._cursor, positions, list(self._unsent.values()), self._rebuild_pending)

    def apply(self, events: Sequence[Event], cursor: str | None, rebuild_pending: bool) -> None:
        """See `LocalStore.apply`."""
        for event in events:
            self._events[event.message.conversation_id][event.message.conversation_seq] = event
        self._cursor, self._rebuild_pending = cursor, rebuild_pending

    def add_unsent(self, message: Unsent) -> None:
        """See `LocalStore.add_unsent`."""
        self._unsent[message.client_message_id] = message

    def settle(self, client_message_id: str) -> None:
        """See `LocalStore.settle`."""
        self._unsent.pop(client_message_id, None)

    def messages(self, conversation_id: str, limit: int, before_seq: int | None = None) -> list[Event]:
        """See `LocalStore.messages`."""
        events = self._events.get(conversation_id, {})
        seqs = sorted(seq for seq in events if before_seq is None or seq < before_seq)
        return [events[seq] for seq in seqs[-limit:]]

    def close(self) -> None:
        """Nothing is held open."""
