"""What a user's marks mean: reading, muting, pinning, hiding, deleting; unread; the order of the list. Pure.

Unread of a conversation, by definition: the plain messages above the user's base that stand and that he
has not deleted for himself. The base is the highest of: the last join (what was said before is not for
him; who left and is back before the next message never left), what he cleared, what he has read, and his own
last message (who answers has read). Edits and recalls have numbers of their own and never count; a recalled
message no longer does. A message counts as soon as it has its number, and is shown once it is committed: its
entry may be in the mailbox before that is known. Somebody who is not an active member has nothing unread.
Counted exactly up to `limits.UNREAD_PRECISE_LIMIT`.

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
    """A conversation as one user meets it: what a row is made of, besides the messages.

    `top`: the last number given out that is for the user, RESERVED ones included; 0 for none. `end`: the last
    one that he may see now. `base`: what is unread lies above it; at or above `top`: nothing is.
    """

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
    ranges: Intervals = field(init=False)
    top: int = field(init=False)
    end: int = field(init=False)
    base: int = field(init=False)

    def __post_init__(self) -> None:
        """Work out the numbers, once."""
        self.ranges = visible_ranges(self.member, self.history_policy)
        self.top = _top(self.ranges, self.allocated_seq)
        self.end = min(self.top, self.committed_seq)
        self.base = _base(self.member, self.state, self.top)

    @property
    def is_active(self) -> bool:
        """Whether the user is an active member."""
        return self.member is not None and self.member.active


def _top(ranges: Intervals, allocated_seq: int) -> int:
    if not ranges:
        return 0
    last = ranges[-1][1]
    return allocated_seq if last is None else min(last, allocated_seq)


def _base(member: Member | None, state: UserConversationState, top: int) -> int:
    if member is None or not member.active:
        return top
    joined = member.intervals[-1][0] if member.intervals else 0
    return max(joined, state.deleted_to_seq, state.read_seq)


class TailWalk:
    """From the last message down, until unread is counted and the last message to show is found.

    `next_span` says which numbers to look at, `take` takes them, newest first. Without `shown` only unread is
    counted. `mention_seqs` are those of the unread that name the user, the newest first.
    """

    __slots__ = (
        "_at", "_base", "_count", "_counting", "_deleted", "_looked", "_shown", "_stop",
        "last", "mention_seqs", "view",
    )  # fmt: skip

    def __init__(self, view: RowView, shown: bool = True) -> None:
        state = view.state
        self.view = view
        self.last: TailMessage | None = None
        self.mention_seqs: list[int] = []
        self._deleted: Container[int] = frozenset(state.deleted) if state.deleted else ()
        self._at, self._base = view.top, view.base
        self._stop = max(view.ranges[0][0] if view.ranges else self._at, state.deleted_to_seq)
        self._count = self._looked = 0
        self._counting, self._shown = self._at > self._base, not shown or self._at <= self._stop

    @property
    def is_done(self) -> bool:
        """Whether nothing more is wanted."""
        return not self._counting and self._shown

    def next_span(self, most: int = WALK_STEP) -> Span | None:
        """The numbers to look at next, at most `most`; None when the walk is done."""
        if self.is_done:
            return None
        return Span(max(1, self._at - most + 1), self._at)

    def take(self, span: Span, messages: Mapping[int, TailMessage]) -> None:
        """The messages of `span`; a number without one was never used or cannot be read."""
        if span.high != self._at:
            raise ValueError(f"the walk stands at {self._at}, not at {span.high}")
        self.feed([messages.get(seq) for seq in range(span.high, span.low - 1, -1)])

    def feed(self, messages: Iterable[TailMessage | None]) -> None:
        """What the numbers hold from where the walk stands on, descending, as far as it is wanted."""
        if self.is_done:
            return
        for message in messages:
            if message is not None and message.kind == KIND_MESSAGE:
                self._look(message)
            if self._step():
                return

    def _step(self) -> bool:
        """On to the number below; whether the walk is done."""
        self._at = at = self._at - 1
        self._looked += 1
        if at <= self._base:
            self._counting = False
        elif self._looked >= WALK_MAX and self._counting:
            self._counting, self._base = False, -1  # not exact: more may lie below
        if at <= self._stop or self._looked >= WALK_MAX:
            self._shown = True
        return not self._counting and self._shown

    def unread(self) -> Unread:
        """The count so far; not exact when there is more, or when not all of it was looked at."""
        if self._count > limits.UNREAD_PRECISE_LIMIT:
            return Unread(limits.UNREAD_PRECISE_LIMIT, False, len(self.mention_seqs))
        return Unread(self._count, not self._counting and self._base >= 0, len(self.mention_seqs))

    def _look(self, message: TailMessage) -> None:
        seq, view, hidden = message.seq, self.view, message.seq in self._deleted
        if not self._shown and not hidden and seq <= view.end and is_visible(view.ranges, seq):
            self.last, self._shown = message, True
        if not self._counting or seq <= self._base:
            return
        user_id = view.state.user_id
        if message.sender_id == user_id:
            self._counting = False
        elif not hidden and message.state != STATE_RECALLED:
            self._count += 1
            if self._count > limits.UNREAD_PRECISE_LIMIT:
                self._counting = False
            elif message.mentions_all or user_id in message.mentions:
                self.mention_seqs.append(seq)


# -- the list


class Totals(NamedTuple):
    """Over all listed conversations. `complete` is false when not all of them could be looked at."""

    unread: int
    mentions: int
    muted_unread: int
    complete: bool

    @property
    def badge(self) -> int:
        """What a badge shows: unread without that of muted conversations."""
        return self.unread - self.muted_unread


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
