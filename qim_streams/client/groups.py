"""Group calls of a client: one request, one answer, repeated while the answer is "not now".

Invariants: a refused change raises AdmissionRefused with the code of the table. When a connection ends
before the answer came, the call is made again on the next one; a change that is in effect already is a
success that changes nothing, except that after leaving or dismissing one may hear NOT_MEMBER or DISMISSED.

Spec: §4 (membership versions).
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from qim_streams.client.backoff import retry_ms
from qim_streams.errors import AdmissionRefused
from qim_streams.wire.frames import Error
from qim_streams.wire.frames_group import (
    GroupAdd,
    GroupCreate,
    GroupDismiss,
    GroupFrame,
    GroupGet,
    GroupJoin,
    GroupLeave,
    GroupRemove,
    GroupSetRole,
    GroupState,
    GroupUpdate,
    MemberRow,
)

if TYPE_CHECKING:
    from qim_streams.client.client import QimClient

RETRY_BASE_MS = 50
RETRY_CAP_MS = 5_000
PAGE = 500


class Groups:
    """The groups of a user, as his client sees them. `timeout_s` bounds each call with its repeats."""

    def __init__(self, client: "QimClient", random: Callable[[], float], timeout_s: float = 60.0) -> None:
        self._client, self._random, self._timeout_s = client, random, timeout_s

    async def create(
        self,
        members: Sequence[str] = (),
        *,
        conversation_id: str | None = None,
        name: str = "",
        send_policy: str = "members",
        join_policy: str = "invite",
        history_policy: str = "joined",
    ) -> GroupState:
        """Make a group owned by this user; without an id one is made up here, so that a repeat is safe."""
        chosen = conversation_id or f"g.{secrets.token_hex(8)}"
        users = list(members)
        return await self._call(
            lambda rid: GroupCreate(rid, users, chosen, name, send_policy, join_policy, history_policy)
        )

    async def add(self, conversation_id: str, user_ids: Sequence[str]) -> GroupState:
        """Add users; those who are members stay as they are."""
        users = list(user_ids)
        return await self._call(lambda rid: GroupAdd(rid, conversation_id, users))

    async def remove(self, conversation_id: str, user_ids: Sequence[str]) -> GroupState:
        """Remove users."""
        users = list(user_ids)
        return await self._call(lambda rid: GroupRemove(rid, conversation_id, users))

    async def join(self, conversation_id: str) -> GroupState:
        """Join an open group."""
        return await self._call(lambda rid: GroupJoin(rid, conversation_id))

    async def leave(self, conversation_id: str) -> GroupState:
        """Leave a group."""
        return await self._call(lambda rid: GroupLeave(rid, conversation_id))

    async def dismiss(self, conversation_id: str) -> GroupState:
        """End a group for everybody."""
        return await self._call(lambda rid: GroupDismiss(rid, conversation_id))

    async def set_role(self, conversation_id: str, user_id: str, role: str) -> GroupState:
        """Make a member owner, admin or member."""
        return await self._call(lambda rid: GroupSetRole(rid, conversation_id, user_id, role))

    async def update(
        self,
        conversation_id: str,
        *,
        name: str | None = None,
        send_policy: str | None = None,
        join_policy: str | None = None,
        history_policy: str | None = None,
    ) -> GroupState:
        """Change name or policies; None leaves them."""
        return await self._call(
            lambda rid: GroupUpdate(rid, conversation_id, name, send_policy, join_policy, history_policy)
        )

    async def get(
        self, conversation_id: str, after_user_id: str | None = None, limit: int = PAGE
    ) -> GroupState:
        """The group and one page of its members (`next_user_id` names the next page)."""
        return await self._call(lambda rid: GroupGet(rid, conversation_id, after_user_id, limit))

    async def members(self, conversation_id: str) -> list[MemberRow]:
        """All active members, page by page; changes meanwhile may or may not be seen."""
        rows: list[MemberRow] = []
        after: str | None = None
        while True:
            page = await self.get(conversation_id, after)
            rows.extend(page.members)
            if page.next_user_id is None or not page.members:
                return rows
            after = page.members[-1].user_id

    async def _call(self, make: Callable[[int], GroupFrame]) -> GroupState:
        """AdmissionRefused, ClientStopped, or TimeoutError (outcome unknown) when there is no answer."""
        attempt = 0
        async with asyncio.timeout(self._timeout_s):
            while True:
                attempt += 1
                answer = await self._once(make)
                if isinstance(answer, GroupState):
                    return answer
                if answer is not None and not answer.temporary:
                    raise AdmissionRefused(answer.name, answer.detail)
                asked = answer.retry_after_ms if answer is not None else None
                delay = retry_ms(attempt, RETRY_BASE_MS, RETRY_CAP_MS, asked, self._random())
                await asyncio.sleep(delay / 1_000)

    async def _once(self, make: Callable[[int], GroupFrame]) -> GroupState | Error | None:
        await self._client.wait_authenticated()
        future: asyncio.Future[GroupState | Error | None] = asyncio.get_running_loop().create_future()

        def answered(answer: GroupState | Error | None) -> None:
            if not future.done():
                future.set_result(answer)

        session = self._client.session
        rid = session.call(make, answered)
        self._client.wake()
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                session.forget_call(rid)
