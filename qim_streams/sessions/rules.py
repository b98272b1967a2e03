"""What a user's marks mean: reading, muting, pinning, hiding, deleting; unread; the order of the list. Pure.

Unread of a conversation, by definition: the plain messages above the user's base that stand and that he
has not deleted for himself. The base is the highest of: the last join (what was said before is not for
him), what he cleared, what he has read, and his own last message (who answers has read). Edits and recalls
have numbers of their own and never count; a recalled message no longer does. A message counts as soon as it
has its number, and is shown once it is committed: its entry may be in the mailbox before that is known.
Somebody who is not an active member has nothing unread. Counted exactly up to `limits.UNREAD_PRECISE_LIMIT`.

Invariants: `read_seq`, `deleted_to_seq` and `version` never go back; nothing is marked beyond the last
message; a mark that changes nothing returns the very same state.

Spec: §9. Scenarios F1 F5 F7 F10 F13 F14 F19.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qim_streams import limits
from qim_streams.errors import AdmissionRefused
from qim_streams.history.rules import Span
from qim_streams.membership.ports import Intervals, Member
from qim_streams.membership.rules import is_visible, visible_ranges
from qim_streams.records import KIND_MESSAGE, STATE_RECALLED
from qim_streams.sessions.state import NOT_HIDDEN, UserConversationState

WALK_MAX = 1_024  # numbers looked at for one row; beyond, its count says that it is not exact
WALK_STEP = 64

# -- marks


def registered(user_id: str, conversation_id: str, first_seq: int, now_ms: int) -> UserConversationState:
    """The state of a conversation that enters a user's set; `first_seq`: his first message."""
    return UserConversationState(user_id, conversation_id, now_ms, first_seq, now_ms)


def stamped(
    before: UserConversationState, after: UserConversationState, now_ms: int
) -> UserConversationState:
    """`after` with a version above that of `before`; `before` itself when nothing differs."""
    if after == before:
        return before
    return after._replace(version=max(before.version + 1, now_ms))


def mark_read(state: UserConversationState, read_seq: int, head_seq: int) -> UserConversationState:
    """Read up to `read_seq` (inclusive), at most to the last message; never back."""
    return state._replace(read_seq=max(state.read_seq, min(read_seq, head_seq)))


def set_mute(state: UserConversationState, muted: bool) -> UserConversationState:
    """Whether the conversation counts as muted."""
    return state._replace(muted=muted)


def set_pin(state: UserConversationState, pinned: bool, now_ms: int) -> UserConversationState:
    """Pin (a second time changes nothing) or unpin."""
    if not pinned:
        return state._replace(pinned_at=0)
    return state if state.pinned_at else state._replace(pinned_at=max(now_ms, 1))


def hide(state: UserConversationState, hidden: bool, head_seq: int) -> UserConversationState:
    """Take the conversation off the list until a message above `head_seq` comes, or put it back."""
    return state._replace(hidden_at_seq=head_seq if hidden else NOT_HIDDEN)


def is_hidden(state: UserConversationState, head_seq: int) -> bool:
    """Whether the list leaves the conversation out."""
    return state.hidden_at_seq != NOT_HIDDEN and head_seq <= state.hidden_at_seq


def delete_messages(
    state: UserConversationState, seqs: Iterable[int], head_seq: int
) -> UserConversationState:
    """Delete messages for this user. AdmissionRefused FIELD_INVALID when there would be too many marks."""
    wanted = {seq for seq in seqs if state.deleted_to_seq < seq <= head_seq}
    deleted = tuple(sorted(wanted | set(state.deleted)))
    if len(deleted) > limits.SESSION_DELETES_MAX:
        raise AdmissionRefused(
            "FIELD_INVALID",
            f"seqs: {limits.SESSION_DELETES_MAX} messages of a conversation may be deleted one by one; "
            "clear it up to a seq instead",
        )
    return state._replace(deleted=deleted)


def clear(state: UserConversationState, up_to_seq: int, head_seq: int) -> UserConversationState:
    """Delete everything up to `up_to_seq` (inclusive) for this user; never back."""
    floor = max(state.deleted_to_seq, min(up_to_seq, head_seq))
    return state._replace(deleted_to_seq=floor, deleted=tuple(seq for seq in state.deleted if seq > floor))


# -- unread and the last message


class TailMessage(NamedTuple):
    """What a list needs to know of a message. `body` is a preview, empty when it was recalled."""

    seq: int
    message_id: bytes
    sender_id: str
    kind: int
    state: int
    committed_at: int
    body: bytes
    truncated: bool
    mentions: tuple[str, ...] = ()
    mentions_all: bool = False


class Unread(NamedTuple):
    """How many; `exact` is false when there are more than `messages`, or not all could be looked at."""

    messages: int
    exact: bool
    mentions: int


@dataclass(slots=True)
class RowView:
    """A conversation as one user meets it: what a row is made of, besides the messages."""

    conversation_id: str
    kind: str
    name: str
    peer_id: str | None
    dismissed: bool
    allocated_seq: int
    committed_seq: int
    history_policy: str
    member: Member | None
    state: UserConversationState

    @property
    def is_active(self) -> bool:
        """Whether the user is an active member."""
        return self.member is not None and self.member.active

    @property
    def top(self) -> int:
        """The last number given out that is for the user, RESERVED ones included; 0 for none."""
        ranges = visible_ranges(self.member, self.history_policy)
        if not ranges:
            return 0
        last = ranges[-1][1]
        return self.allocated_seq if last is None else min(last, self.allocated_seq)

    @property
    def end(self) -> int:
        """The last number that the user may see now."""
        return min(self.top, self.committed_seq)

    @property
    def base(self) -> int:
        """What is unread lies above it. At or above `top`: nothing is."""
        if self.member is None or not self.member.active:
            return self.top
        joined = self.member.intervals[-1][0] if self.member.intervals else 0
        return max(joined, self.state.deleted_to_seq, self.state.read_seq)


@dataclass(slots=True)
class TailWalk:
    """From the last message down, until unread is counted and the last message to show is found.

    `next_span` says which numbers to look at, `take` takes them, newest first.
    """

    view: RowView
    last: TailMessage | None = None
    _deleted: Container[int] = field(init=False)
    _ranges: Intervals = field(init=False)
    _at: int = field(init=False)
    _stop: int = field(init=False)
    _base: int = field(init=False)
    _end: int = field(init=False)
    _count: int = 0
    _mentions: int = 0
    _counting: bool = True
    _looked: int = 0

    def __post_init__(self) -> None:
        """Stand at the end of what the user may see."""
        self._deleted = frozenset(self.view.state.deleted)
        self._at, self._base, self._end = self.view.top, self.view.base, self.view.end
        self._ranges = visible_ranges(self.view.member, self.view.history_policy)
        self._stop = max(self._ranges[0][0] if self._ranges else self._at, self.view.state.deleted_to_seq)

    @property
    def is_done(self) -> bool:
        """Whether nothing more is wanted."""
        counted = not self._counting or self._at <= self._base
        shown = self.last is not None or self._at <= self._stop
        return (counted and shown) or self._looked >= WALK_MAX

    def next_span(self, most: int = WALK_STEP) -> Span | None:
        """The numbers to look at next, at most `most`; None when the walk is done."""
        if self.is_done or self._at <= 0:
            return None
        return Span(max(1, self._at - most + 1), self._at)

    def take(self, span: Span, messages: Mapping[int, TailMessage]) -> None:
        """The messages of `span`; a number without one was never used or cannot be read."""
        if span.high != self._at:
            raise ValueError(f"the walk stands at {self._at}, not at {span.high}")
        while self._at >= span.low and not self.is_done:
            self.step(messages.get(self._at))

    def step(self, message: TailMessage | None) -> None:
        """What the number at which the walk stands holds, if anything; the walk is not done yet."""
        if message is not None and message.kind == KIND_MESSAGE:
            self._look(message)
        self._at -= 1
        self._looked += 1

    def unread(self) -> Unread:
        """The count so far."""
        if self._count > limits.UNREAD_PRECISE_LIMIT:
            return Unread(limits.UNREAD_PRECISE_LIMIT, False, self._mentions)
        return Unread(self._count, not self._counting or self._at <= self._base, self._mentions)

    def _look(self, message: TailMessage) -> None:
        user_id, hidden = self.view.state.user_id, message.seq in self._deleted
        if self.last is None and not hidden and self._stop < message.seq <= self._end:
            self.last = message if is_visible(self._ranges, message.seq) else None
        if not self._counting or message.seq <= self._base:
            return
        if message.sender_id == user_id:
            self._counting = False
            return
        if hidden or message.state == STATE_RECALLED:
            return
        self._count += 1
        if self._count > limits.UNREAD_PRECISE_LIMIT:
            self._counting = False
        elif message.mentions_all or user_id in message.mentions:
            self._mentions += 1


# -- the list


class Totals(NamedTuple):
    """Over all listed conversations. `complete` is false when not all of them could be looked at."""

    unread: int
    mentions: int
    muted_unread: int
    complete: bool


def totals(rows: Sequence[tuple[Unread, bool]], complete: bool) -> Totals:
    """The sums of (unread, muted) rows. `unread` and `mentions` are of all of them, muted ones included."""
    return Totals(
        sum(one.messages for one, _ in rows),
        sum(one.mentions for one, _ in rows),
        sum(one.messages for one, muted in rows if muted),
        complete and all(one.exact for one, _ in rows),
    )


class ListPlace(NamedTuple):
    """A place in the list: what comes after it has a smaller (activity, id). Pinned rows come before it."""

    activity: int
    conversation_id: str

    def encode(self) -> str:
        """The cursor that a client gives back."""
        return f"{self.activity}.{self.conversation_id}"


def decode_place(cursor: str) -> ListPlace:
    """The place of a cursor; AdmissionRefused FIELD_INVALID when it was never given out."""
    number, dot, conversation_id = cursor.partition(".")
    if not (dot and conversation_id and number.isascii() and number.isdigit() and len(number) <= 16):
        raise AdmissionRefused("FIELD_INVALID", "cursor: not one of a SESSION_LIST; begin without one")
    return ListPlace(int(number), conversation_id)
