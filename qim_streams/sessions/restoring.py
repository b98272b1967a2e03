"""States of users as they are stored, the archive's put back first where this store has lost them.

A user's states carry a mark that they are whole here. Where it is missing (a new user, a hot tier that was
lost), everything that the archive has of the user is put back before anybody sees or changes anything, so
that a state made anew never takes the place of one that was only forgotten.

Spec: §9, §14.8.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from qim_streams.errors import RecordError
from qim_streams.sessions.ports import (
    STATES_PAGE_MAX,
    Candidate,
    CandidatePage,
    SessionUser,
    StateChange,
    UserStateReader,
    UserStateStore,
)
from qim_streams.sessions.rules import ListPlace
from qim_streams.sessions.state import UserConversationState, decode_state

log = logging.getLogger(__name__)

RESTORED_MAX: Final = 20_000  # states of one user that are put back
DECODED_MAX: Final = 50_000  # states kept as they were read, about half a kilobyte each


class RestoredStates:
    """Reads of a `UserStateStore` that are whole. StoreError also when the archive is needed and away."""

    def __init__(self, states: UserStateStore, archive: UserStateReader) -> None:
        self._states, self._archive = states, archive

    async def page(self, user: SessionUser, before: ListPlace | None, limit: int) -> CandidatePage:
        """See `UserStateStore.page`."""
        page = await self._states.page(user, before, limit)
        if page.restored:
            return page
        await self._restore(user)
        return await self._states.page(user, before, limit)

    async def load(self, user: SessionUser, conversation_ids: Sequence[str]) -> list[bytes | None]:
        """The stored state of each conversation."""
        restored, found = await self._states.load(user, conversation_ids)
        if not restored:
            await self._restore(user)
            _, found = await self._states.load(user, conversation_ids)
        return found

    async def candidates(self, user: SessionUser, conversation_ids: Sequence[str]) -> list[Candidate]:
        """What is stored of each conversation, and where it stands in the user's list."""
        states, activities = await asyncio.gather(
            self.load(user, conversation_ids), self._states.activities(user, conversation_ids)
        )
        return [Candidate(*one) for one in zip(conversation_ids, activities, states, strict=True)]

    async def _restore(self, user: SessionUser) -> None:
        changes: list[StateChange] = []
        after = ""
        while len(changes) < RESTORED_MAX:
            part = await self._archive.user_states(user.tenant_id, user.user_id, after, STATES_PAGE_MAX)
            for _, _, name, version, data in part:
                changes.append(StateChange(name, None, data, version, state_of(user, name, data).pinned_at))
            if len(part) < STATES_PAGE_MAX:
                break
            after = part[-1].conversation_id
        await self._states.restore(user, changes)


class UserDeletions:
    """What users have deleted, for history (`history.ports.Deletions`)."""

    def __init__(self, states: RestoredStates) -> None:
        self._states = states

    async def of_user(
        self, tenant_id: str, user_id: str, ordinal: int, conversation_id: str
    ) -> tuple[int, frozenset[int]]:
        """See the port."""
        user = SessionUser(tenant_id, user_id, ordinal)
        (data,) = await self._states.load(user, [conversation_id])
        state = state_of(user, conversation_id, data)
        return state.deleted_to_seq, frozenset(state.deleted)


def state_of(user: SessionUser, conversation_id: str, data: bytes | None) -> UserConversationState:
    """The state of stored bytes. One that cannot be read counts as none: a list must not end for it."""
    if data is not None:
        try:
            state = _decoded(data)
            if (state.user_id, state.conversation_id) != (user.user_id, conversation_id):
                raise RecordError(f"it is that of {state.user_id} in {state.conversation_id}")
            return state
        except RecordError as error:
            log.error("state of %s in %s: %s", user.user_id, conversation_id, error)
    return UserConversationState(user.user_id, conversation_id)


@lru_cache(maxsize=DECODED_MAX)
def _decoded(data: bytes) -> UserConversationState:
    return decode_state(data)
