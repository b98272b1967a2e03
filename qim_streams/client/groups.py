"""Group calls of a client: one request, one answer, repeated while the answer is "not now".

Invariants: a refused change raises AdmissionRefused with the code of the table. When a connection ends
before the answer came, the call is made again on the next one; a change that is in effect already is a
success that changes nothing, except that after leaving or dismissing one may hear NOT_MEMBER or DISMISSED.

Spec: §4 (membership versions).
"""

import secrets
from collections.abc import Callable, Sequence

from qim_streams.client.requests import Requests
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

PAGE = 500


class Groups:
    """The groups of a user, as his client sees them.

    Each call raises AdmissionRefused, ClientStopped, or TimeoutError when there is no answer.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

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
        return await self._requests.ask(make, GroupState)
