"""What a device keeps: messages, its cursor, what it has not sent yet, and how far a rebuild is.

The port, and a store in memory. `sqlite_store` is the one that survives the process.

Invariants: `apply` is atomic: a cursor is kept only together with the events that it covers, a settled
message leaves the outbox together with what its answer shows; applying a change again changes nothing.
Events are numbered in the order in which the application gets them; `given` says how far it got, so that
what was kept and not given out is given out by the next process.

Spec: §3 (5), §7, §8 (1) (3).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from types import MappingProxyType
from typing import NamedTuple, Protocol

from qim_streams.client.changes import changed, is_operation, targets_of
from qim_streams.client.deliveries import Gap
from qim_streams.mentions import Mentions
from qim_streams.records import KIND_MESSAGE
from qim_streams.wire.frames import Event, Message

NO_HISTORY: Mapping[str, int | None] = MappingProxyType({})


class Unsent(NamedTuple):
    """A message that was given to the client and has no ack or refusal yet."""

    client_message_id: str
    body: bytes
    conversation_id: str | None
    to_user_id: str | None
    kind: int = KIND_MESSAGE
    target_seq: int | None = None  # of an edit or recall
    mentions: bytes = b""  # of a message (`mentions.Mentions.encode`)

    @classmethod
    def message(
        cls, name: str, body: bytes, conversation_id: str | None, to_user_id: str | None, named: Mentions
    ) -> "Unsent":
        """A message under the client_message_id `name`, which names users."""
        return cls(name, body, conversation_id, to_user_id, mentions=named.encode())


class Rebuild(IntEnum):
    """How a device stands to history (Spec: §8)."""

    NONE = 0
    """Nothing is missing."""
    REQUIRED = 1
    """The mailbox had moved on; the conversations with an anchor are still to be read."""
    PARTIAL = 2
    """All known ones were read, but the server gave no whole set: unknown ones are read when first met."""


class Change(NamedTuple):
    """What `LocalStore.apply` keeps in one transaction. The first five are absolute values.

    `events` are numbered `number`, `number` + 1, ...; one whose place is taken is left out. Edits and recalls
    among them are kept as any event, and change the message that they name (`changes`), whichever of the two
    is kept first. `history` maps
    a conversation to the seq from which its history is still to be read; None: it is closed. A message in
    both `unsent` and `settled` is settled.
    """

    owner: str | None
    cursor: str | None
    rebuild: Rebuild
    given: int
    number: int
    events: Sequence[Event] = ()
    unsent: Sequence[Unsent] = ()
    settled: Sequence[str] = ()
    history: Mapping[str, int | None] = NO_HISTORY
    gaps: Sequence[Gap] = ()


@dataclass(slots=True)
class LocalState:
    """What a client starts from.

    `owner`: tenant, user and device of the kept state. `positions`: the last kept conversation_seq of each
    conversation. `pending`: events that were kept and not given out, in order. `number`: of the last
    event. `history`: see `Change`.
    """

    owner: str | None = None
    cursor: str | None = None
    rebuild: Rebuild = Rebuild.NONE
    positions: dict[str, int] = field(default_factory=dict)
    unsent: list[Unsent] = field(default_factory=list)
    pending: list[Event] = field(default_factory=list)
    number: int = 0
    history: dict[str, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)


class LocalStore(Protocol):
    """Keeps the state of one device. Calls come one at a time, not all from one thread."""

    @property
    def is_slow(self) -> bool:
        """Whether `apply` may wait for a disk: it is then called in a thread."""

    def load(self) -> LocalState:
        """Everything needed to go on after a restart; `unsent` in the order in which it was added."""

    def apply(self, change: Change) -> None:
        """Keep a change, whole or not at all. StoreError: not kept, as far as is known."""

    def messages(self, conversation_id: str, limit: int, before_seq: int | None = None) -> list[Event]:
        """The last `limit` events of a conversation (below `before_seq`), ascending."""

    def close(self) -> None:
        """Release what the store holds open."""


class NoStore:
    """Keeps nothing: for clients that live as long as their process and read everything from the stream."""

    is_slow = False

    def load(self) -> LocalState:
        """A device that was never here."""
        return LocalState()

    def apply(self, change: Change) -> None:
        """Nothing is kept."""

    def messages(self, conversation_id: str, limit: int, before_seq: int | None = None) -> list[Event]:
        """None."""
        return []

    def close(self) -> None:
        """Nothing is held open."""


class MemoryStore:
    """A `LocalStore` that lives as long as the object. Keeps everything: for tests and short sessions."""

    is_slow = False

    def __init__(self) -> None:
        self._last: Change = Change(None, None, Rebuild.NONE, 0, 1)
        self._number = 0
        self._events: dict[str, dict[int, Event]] = defaultdict(dict)
        self._operations: dict[tuple[str, int], list[Message]] = defaultdict(list)  # by their targets
        self._order: dict[int, Event] = {}  # number -> event that was not given out
        self._unsent: dict[str, Unsent] = {}
        self._history: dict[str, int] = {}
        self._gaps: dict[Gap, None] = {}

    def load(self) -> LocalState:
        """See `LocalStore.load`."""
        last = self._last
        return LocalState(
            last.owner,
            last.cursor,
            last.rebuild,
            {name: max(events) for name, events in self._events.items() if events},
            list(self._unsent.values()),
            [
                self._events[one.message.conversation_id][one.message.conversation_seq]
                for one in self._order.values()
            ],
            self._number,
            dict(self._history),
            list(self._gaps),
        )

    def apply(self, change: Change) -> None:
        """See `LocalStore.apply`."""
        for number, event in zip(count(change.number), change.events):
            line = self._events[event.message.conversation_id]
            if line.setdefault(event.message.conversation_seq, event) is event:
                self._order[number] = event
                self._number = max(self._number, number)
                if is_operation(event.message) and (target := event.message.target_seq) is not None:
                    self._operations[event.message.conversation_id, target].append(event.message)
        for name, seq in targets_of(change.events):
            self._change(name, seq)
        for given in [number for number in self._order if number <= change.given]:
            del self._order[given]
        for message in change.unsent:
            self._unsent.setdefault(message.client_message_id, message)
        for name in change.settled:
            self._unsent.pop(name, None)
        for name, anchor in change.history.items():
            if anchor is None:
                self._history.pop(name, None)
            else:
                self._history[name] = anchor
        self._gaps.update(dict.fromkeys(change.gaps))
        self._last = change._replace(events=(), unsent=(), settled=(), gaps=(), history=NO_HISTORY)

    def _change(self, name: str, seq: int) -> None:
        """Give a message the state that the kept edits and recalls of it lead to."""
        line = self._events[name]
        event = line.get(seq)
        if event is None:
            return
        after = changed(event.message, self._operations.get((name, seq), ()))
        if after is not event.message:
            line[seq] = event._replace(message=after)

    def messages(self, conversation_id: str, limit: int, before_seq: int | None = None) -> list[Event]:
        """See `LocalStore.messages`."""
        events = self._events.get(conversation_id, {})
        seqs = sorted(seq for seq in events if before_seq is None or seq < before_seq)
        return [events[seq] for seq in seqs[-limit:]]

    def close(self) -> None:
        """Nothing is held open."""
