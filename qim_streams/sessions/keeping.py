"""The way of states into the archive, in the background: registrations, then what was changed.

A pass over all lanes:

1. conversations that are new to users (`RegistrationQueue`) get a state with their join point, unless one
   exists; that puts them on the dirty list;
2. what is on the dirty lists is stored in the archive, in batches, and only then taken off;
3. registrations are settled once their states are durable.

What a pass did is only said to be done in the life of the store in which it was done: started again, it may
have lost a state that was registered in this pass, and the registration stays. It may also have lost which
lanes have a list, while processes still trust that they noted them: all lanes are looked at once more when
that is over, and once after the start. And it may have lost states that are in the archive and off the lists
already: what was stored lately is put back where the store has an older one.

Everything may be repeated: a process that dies, or two that do the same, store the same states again, and of
one address the highest version stands. An archive that is away holds only this; lists grow in the hot tier
by one small member per changed conversation meanwhile.

Spec: §9. Scenario F10.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from qim_streams.errors import RecordError, StoreError
from qim_streams.history.ports import HistoryStore
from qim_streams.joined import all_of
from qim_streams.membership.ports import OrdinalDirectory
from qim_streams.placement import LANES
from qim_streams.sessions import rules
from qim_streams.sessions.ports import (
    ArchivedState,
    DirtyState,
    DirtyStates,
    SessionUser,
    StateChange,
    UserStateArchive,
    UserStateStore,
)
from qim_streams.sessions.projection_ports import RegistrationQueue
from qim_streams.sessions.projection_records import Registration
from qim_streams.sessions.restoring import RestoredStates, state_of
from qim_streams.sessions.state import UserConversationState, decode_state

log = logging.getLogger(__name__)

BATCH: Final = 500  # states or registrations of one lane in one step
USERS_AT_ONCE: Final = 64  # who are registered side by side: their questions share round trips
PAUSE_S: Final = 1.0  # between passes; what comes meanwhile is one batch
# Nobody waits for this, and a new group of 100,000 is two hundred busy passes: they leave the machine to
# those that somebody waits for. Rest per second of work; a long pass is one that waited, or is behind.
REST_PER_WORK: Final = 3.0
BUSY_PAUSE_S: Final = 0.05  # at least
BUSY_PAUSE_MAX_S: Final = 2.0
FAILED_PAUSE_S: Final = 5.0
LANE_KEPT_MS: Final = 600_000  # an empty lane stays in the index this long after its last change
RECENT_MS: Final = 10_000  # far more than a store loses that syncs every second
RECENT_MAX: Final = 20_000  # states
EVERYWHERE_MS: Final = 60_000  # after a new life began: longer than anybody trusts what was noted before


class StateKeeper:
    """Carries states into the archive. `now_ms` is the wall clock, `monotonic` seconds."""

    def __init__(
        self,
        states: UserStateStore,
        dirty: DirtyStates,
        queue: RegistrationQueue,
        archive: UserStateArchive,
        ordinals: OrdinalDirectory,
        conversations: HistoryStore,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._states, self._dirty, self._queue, self._archive = states, dirty, queue, archive
        self._ordinals, self._conversations, self._now_ms = ordinals, conversations, now_ms
        self._restored = RestoredStates(states, archive)
        self._life = ""
        self._waiting: list[Registration] = []  # read and not registered yet
        self._recent: deque[tuple[int, SessionUser, ArchivedState]] = deque(maxlen=RECENT_MAX)
        self._everywhere_at_ms: int | None = now_ms()

    async def run(self) -> None:
        """Pass after pass, for ever; a pass that failed is repeated later."""
        while True:
            began_s = self._monotonic()
            try:
                done = await self.work()
            except StoreError as error:
                log.warning("states of users wait for the archive: %s", error)
                await asyncio.sleep(FAILED_PAUSE_S)
            else:
                await asyncio.sleep(pause_s(done, self._monotonic() - began_s))

    async def work(self) -> int:
        """One pass; how many registrations and states it carried. StoreError: some may be carried."""
        life = await self._queue.life()
        if self._life not in ("", life):
            await self._put_back()
            self._waiting = []
            self._everywhere_at_ms = self._now_ms() + EVERYWHERE_MS
        self._life = life
        registered = await self._registrations()
        stored = 0
        for lane in await self._lanes():
            stored += await self._store_lane(lane)
        if registered and await self._queue.life() == life:
            await self._queue.settle(registered)
        return stored + len(registered)

    async def _lanes(self) -> Sequence[tuple[str, int]]:
        """The lanes to look at: those that are noted, now and then all."""
        noted = await self._dirty.lanes()
        if self._everywhere_at_ms is None or self._now_ms() < self._everywhere_at_ms:
            return noted
        everywhere = [(tenant, lane) for tenant in await self._queue.tenants() for lane in range(LANES)]
        self._everywhere_at_ms = None
        return list(dict.fromkeys([*noted, *everywhere]))

    # -- registrations

    async def _registrations(self) -> list[Registration]:
        """Register a batch of what waits; it may be settled once the lanes are stored."""
        if not self._waiting:
            for tenant in await self._queue.tenants():
                self._waiting += await self._queue.pending([(tenant, lane) for lane in range(LANES)], BATCH)
        batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        by_tenant: dict[str, list[Registration]] = {}
        for one in batch:
            by_tenant.setdefault(one.tenant_id, []).append(one)
        for tenant, mine in by_tenant.items():
            await self._register(tenant, mine)
        return batch

    async def _register(self, tenant_id: str, waiting: Sequence[Registration]) -> None:
        by_user: dict[int, list[Registration]] = {}
        for one in waiting:
            by_user.setdefault(one.ordinal, []).append(one)
        names = await self._ordinals.names(tenant_id, list(by_user))
        users = []
        for (ordinal, mine), name in zip(by_user.items(), names, strict=True):
            if name is None:
                log.error("a conversation waits to be registered for ordinal %d, which is nobody's", ordinal)
            else:
                users.append((SessionUser(tenant_id, name, ordinal), mine))
        for start in range(0, len(users), USERS_AT_ONCE):
            await all_of([self._register_user(*one) for one in users[start : start + USERS_AT_ONCE]])

    async def _register_user(self, user: SessionUser, mine: Sequence[Registration]) -> None:
        stored = await self._restored.load(user, [one.conversation_id for one in mine])
        changes = []
        for one, data in zip(mine, stored, strict=True):
            if data is None:
                first = await self._first_seq(user, one)
                state = rules.registered(user.user_id, one.conversation_id, first, self._now_ms())
                changes.append(StateChange(one.conversation_id, None, state.encode(), state.version, 0))
        if changes:
            # One that is refused has got a state meanwhile, which is on the dirty list by itself.
            await self._states.replace(user, changes)

    async def _first_seq(self, user: SessionUser, one: Registration) -> int:
        """The user's first message: behind his join if the conversation knows it, else what brought it."""
        view = await self._conversations.view(user.tenant_id, one.conversation_id, user.user_id)
        if view is None or view.member is None or not view.member.intervals:
            return one.first_seq
        return view.member.intervals[-1][0] + 1

    # -- what was changed

    async def _store_lane(self, lane: tuple[str, int]) -> int:
        """Store what is on a lane's list; how many."""
        stored = 0
        while True:
            waiting = await self._dirty.take(lane, BATCH)
            if not waiting:
                break
            carried = _archived(lane[0], waiting)
            await self._archive.store_states([one for _, one in carried])
            self._remember(carried)
            await self._dirty.settle(lane, waiting)
            stored += len(waiting)
            if len(waiting) < BATCH:
                return stored
        if not stored:
            await self._dirty.forget_lane(lane, self._now_ms() - LANE_KEPT_MS)
        return stored

    # -- what a store forgot

    def _remember(self, carried: Sequence[tuple[SessionUser, ArchivedState]]) -> None:
        now = self._now_ms()
        while self._recent and self._recent[0][0] < now - RECENT_MS:
            self._recent.popleft()
        self._recent.extend((now, user, one) for user, one in carried)

    async def _put_back(self) -> None:
        """Put back what was stored lately where the store has an older state, or none."""
        newest: dict[SessionUser, dict[str, ArchivedState]] = {}
        for _, user, one in self._recent:
            newest.setdefault(user, {})[one.conversation_id] = one
        count = 0
        for user, states in newest.items():
            _, stored = await self._states.load(user, list(states))
            changes = [
                StateChange(name, before, one.state, one.version, decode_state(one.state).pinned_at)
                for (name, one), before in zip(states.items(), stored, strict=True)
                if state_of(user, name, before).version < one.version
            ]
            if changes:
                count += sum((await self._states.replace(user, changes)).done)
        if count:
            log.error("the hot tier had lost %d states of users that the archive has; put back", count)


def pause_s(done: int, took_s: float) -> float:
    """Seconds to rest after a pass that carried `done` in `took_s`."""
    return PAUSE_S if done < BATCH else min(max(BUSY_PAUSE_S, REST_PER_WORK * took_s), BUSY_PAUSE_MAX_S)


def _archived(tenant_id: str, waiting: Sequence[DirtyState]) -> list[tuple[SessionUser, ArchivedState]]:
    """The states to store, and whose; one that is gone or cannot be read is logged and let go."""
    found = []
    for one in waiting:
        state = _readable(one)
        if state is not None and one.state is not None:
            user = SessionUser(tenant_id, state.user_id, one.ordinal)
            found.append(
                (user, ArchivedState(tenant_id, state.user_id, one.conversation_id, state.version, one.state))
            )
    return found


def _readable(one: DirtyState) -> UserConversationState | None:
    if one.state is None:
        log.error("the state of ordinal %d in %s is gone", one.ordinal, one.conversation_id)
        return None
    try:
        return decode_state(one.state)
    except RecordError as error:
        log.error("the state of ordinal %d in %s: %s", one.ordinal, one.conversation_id, error)
        return None
