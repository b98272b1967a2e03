"""What a user changes about his conversations: reading, muting, pinning, hiding, deleting.

A change reads the state, makes the next one by a pure rule and replaces it by compare-and-set, again if
somebody else was faster. It may be repeated: what is in effect already changes nothing. Marks of reading
that come for one conversation while another is under way are folded into one, their maximum; so a storm of
them costs a store call per round trip and no memory.

The user's other devices are told what the conversation looks like now, the other member of a direct chat
how far his messages were read. Both may be lost: states are what counts.

Spec: §9. Scenarios C17 F7 F13 F14 F19.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from qim_streams import limits
from qim_streams.errors import AdmissionRefused, StoreUnavailable
from qim_streams.sessions import rules
from qim_streams.sessions.ports import (
    SessionUser,
    StateChange,
    UserStateStore,
)
from qim_streams.sessions.reading import SessionLists
from qim_streams.sessions.rows import ListRow, view_of
from qim_streams.sessions.rules import RowView
from qim_streams.sessions.state import UserConversationState

TRIES_MAX: Final = 8  # of one change against others of the same conversation
MARKS_WAITING_MAX: Final = 10_000  # conversations with a mark under way, in the whole process

Rule = Callable[[UserConversationState, RowView], UserConversationState]
_Key = tuple[SessionUser, str]


class Actor(NamedTuple):
    """Whose conversation, from which device."""

    user: SessionUser
    shard: int
    device_id: str


class Changed(NamedTuple):
    """A conversation after a change, as of `mailbox_seq`; `order` as in `ports.Replaced`."""

    row: ListRow
    mailbox_seq: int
    order: int
    has_read: bool  # whether read_seq moved

    @property
    def effective(self) -> bool:
        """Whether anything is different."""
        return self.order > 0


Tell = Callable[[Actor, Changed], object]


@dataclass(slots=True)
class _Mark:
    """Marks of reading that wait for their turn; `actor` is one of those who gave them."""

    actor: Actor
    read_seq: int
    several: bool
    done: "asyncio.Future[Changed]"


class UserActions:
    """Changes states. `tell` is called once for each effective change, and must not wait."""

    def __init__(
        self, states: UserStateStore, lists: SessionLists, tell: Tell, now_ms: Callable[[], int]
    ) -> None:
        self._states, self._lists, self._tell, self._now_ms = states, lists, tell, now_ms
        self._waiting: dict[_Key, _Mark] = {}
        self._running: dict[_Key, asyncio.Task[None]] = {}

    async def mark_read(self, actor: Actor, conversation_id: str, read_seq: int) -> Changed:
        """Read up to `read_seq` (inclusive). A mark below what was read, or beyond the end, harms nothing.

        AdmissionRefused NO_CONVERSATION, NOT_MEMBER, OVERLOADED. StoreError: repeating is safe.
        """
        key = (actor.user, conversation_id)
        mark = self._waiting.get(key)
        if mark is None:
            if len(self._running) >= MARKS_WAITING_MAX and key not in self._running:
                raise AdmissionRefused("OVERLOADED", "too many marks are under way", retry_after_ms=200)
            mark = _Mark(actor, read_seq, False, asyncio.get_running_loop().create_future())
            self._waiting[key] = mark
            if key not in self._running:
                self._running[key] = asyncio.create_task(self._mark(key))
        else:
            mark.read_seq = max(mark.read_seq, read_seq)
            mark.several = mark.several or mark.actor != actor
        await asyncio.wait([mark.done])  # not awaited itself: a caller that goes away cancels nobody else
        return mark.done.result()

    async def set_mute(self, actor: Actor, conversation_id: str, muted: bool) -> Changed:
        """Mute or unmute. Errors as in `mark_read`."""
        return await self._change(actor, conversation_id, lambda state, _: rules.set_mute(state, muted))

    async def set_pin(self, actor: Actor, conversation_id: str, pinned: bool) -> Changed:
        """Pin or unpin; AdmissionRefused FIELD_INVALID when too many are pinned. Else as `mark_read`."""
        if pinned:
            page = await self._states.page(actor.user, None, 1)
            others = [one for one in page.pinned if one.conversation_id != conversation_id]
            if len(others) >= limits.SESSION_PINS_MAX:
                raise AdmissionRefused(
                    "FIELD_INVALID", f"pinned: {len(others)} conversations are pinned; unpin one first"
                )
        now = self._now_ms()
        return await self._change(actor, conversation_id, lambda state, _: rules.set_pin(state, pinned, now))

    async def hide(self, actor: Actor, conversation_id: str, hidden: bool) -> Changed:
        """Take a conversation off the list until the next message, or put it back."""
        return await self._change(
            actor, conversation_id, lambda state, view: rules.hide(state, hidden, view.allocated_seq)
        )

    async def delete_messages(self, actor: Actor, conversation_id: str, seqs: Sequence[int]) -> Changed:
        """Delete messages for this user. FIELD_INVALID when there are too many single ones."""
        return await self._change(
            actor, conversation_id, lambda state, view: rules.delete_messages(state, seqs, view.allocated_seq)
        )

    async def clear(self, actor: Actor, conversation_id: str, up_to_seq: int | None, hidden: bool) -> Changed:
        """Delete everything up to a seq (None: up to the end) for this user; `hidden`: off the list, too."""

        def cleared(state: UserConversationState, view: RowView) -> UserConversationState:
            head = view.allocated_seq
            after = rules.clear(state, head if up_to_seq is None else up_to_seq, head)
            return rules.hide(after, True, head) if hidden else after

        return await self._change(actor, conversation_id, cleared)

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    # -- steps

    async def _mark(self, key: _Key) -> None:
        """Carry out the marks of one conversation, one fold after the other, until none waits."""
        try:
            while (mark := self._waiting.pop(key, None)) is not None:
                await self._carry_out(mark, key[1])
        finally:
            del self._running[key]
            left = self._waiting.pop(key, None)
            if left is not None:
                left.done.cancel()

    async def _carry_out(self, mark: _Mark, conversation_id: str) -> None:
        read_seq = mark.read_seq
        actor = mark.actor._replace(device_id="") if mark.several else mark.actor

        def marked(state: UserConversationState, view: RowView) -> UserConversationState:
            return rules.mark_read(state, read_seq, view.top)

        try:
            changed = await self._change(actor, conversation_id, marked, read_seq)
        except asyncio.CancelledError:
            mark.done.cancel()
            raise
        except Exception as failure:  # noqa: BLE001 - handed to those who wait
            mark.done.set_exception(failure)
            mark.done.exception()  # they may all be gone
        else:
            mark.done.set_result(changed)

    async def _change(
        self, actor: Actor, conversation_id: str, rule: Rule, above_seq: int | None = None
    ) -> Changed:
        """Replace the state by what `rule` makes of it; `above_seq`: where the unread will begin."""
        user, lists = actor.user, self._lists
        for _ in range(TRIES_MAX):
            watermark = await lists.watermark(user, actor.shard)  # first: the row must be as new as it says
            (stored,) = await lists.found(user, [conversation_id], above_seq or 0)
            if stored is None:
                raise AdmissionRefused("NO_CONVERSATION", "there is no such conversation")
            data, found = stored
            head, before = found.head, found.state
            if head.member is None:
                raise AdmissionRefused("NOT_MEMBER", "you never were a member of the conversation")
            now = self._now_ms()
            after = rule(before, view_of(found))
            if data is None and after != before:
                joined = head.member.intervals[-1][0] if head.member.intervals else 0
                after = after._replace(first_seen_seq=joined + 1, first_seen_at=now)
            after = rules.stamped(before, after, now)
            effective, order = after is not before, 0
            if effective:
                change = StateChange(conversation_id, data, after.encode(), after.version, after.pinned_at)
                done, order = await self._states.replace(user, [change])
                if not done[0]:
                    continue
            row = await lists.rows.row(user, found._replace(state=after))
            changed = Changed(row, watermark, order, after.read_seq > before.read_seq)
            if changed.effective:
                self._tell(actor, changed)
            return changed
        raise StoreUnavailable(f"{conversation_id}: others keep changing it; repeat")
