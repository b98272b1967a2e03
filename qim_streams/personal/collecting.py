"""Everything that the system has of a user, in one pass over his conversations.

Whose messages: his own; with `received` also what others sent to him. Bodies are bytes and go out as base64.

Invariants: nothing is changed; memory is bounded by a page.

Spec: §8, §9.
"""

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from qim_streams import limits
from qim_streams.history.rules import PageQuery
from qim_streams.history.service import HistoryReader
from qim_streams.personal.ports import Devices, Histories, Lists, Push
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.reading import EVERY, ListQuery
from qim_streams.sessions.rules import RowView

LIST_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Whose:
    """A user and where he is."""

    user: SessionUser
    shard: int


class Collector:
    """Reads what there is. StoreError: a store does not answer; begin again."""

    def __init__(self, lists: Lists, histories: Histories, devices: Devices, push: Push) -> None:
        self._lists, self._histories, self._devices, self._push = lists, histories, devices, push

    async def profile(self, whose: Whose) -> dict[str, Any]:
        """What is kept of the user himself: devices, push registrations, quiet hours."""
        tenant, user, ordinal = whose.user
        pushed = [one._asdict() for one in await self._push.devices(tenant, user)]
        quiet = (await self._push.settings(tenant, user))._asdict()
        for row in (*pushed, quiet):
            row.pop("extra", None)
        return {
            "tenant_id": tenant,
            "user_id": user,
            "ordinal": ordinal,
            "devices": await self._devices.of_user(tenant, user),
            "push_devices": pushed,
            "push_settings": quiet,
        }

    async def conversations(self, whose: Whose) -> AsyncIterator[RowView]:
        """His conversations, hidden ones too."""
        cursor: str | None = None
        while True:
            page = await self._lists.page(whose.user, whose.shard, ListQuery(cursor, LIST_PAGE, EVERY))
            for row in page.rows:
                yield row.view
            cursor = page.next_cursor
            if cursor is None:
                return

    async def messages(
        self, whose: Whose, conversation_id: str, *, received: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """His messages of a conversation, also those that he has deleted for himself."""
        tenant, user, _ = whose.user
        reader, anchor = HistoryReader(tenant, user, conversation_id), None
        while True:
            query = PageQuery(True, anchor, limits.HISTORY_MESSAGES_MAX, limits.HISTORY_BYTES_MAX)
            page = await self._histories.page(reader, query)
            for body in page.messages:
                message = msgpack.unpackb(body, raw=False)
                if received or message["sender_id"] == user:
                    yield message
            if not page.has_more:
                return
            anchor = page.next_anchor


def conversation_row(view: RowView) -> dict[str, Any]:
    """A conversation and the user's marks in it, for a file."""
    state, member = view.state, view.member
    return {
        "conversation_id": view.conversation_id,
        "kind": view.kind,
        "name": view.name,
        "peer_id": view.peer_id,
        "role": None if member is None else member.role,
        "member_from_to_seq": [] if member is None else [list(one) for one in member.intervals],
        "read_seq": state.read_seq,
        "muted": state.muted,
        "pinned_at": state.pinned_at,
        "cleared_to_seq": state.deleted_to_seq,
        "deleted_seqs": list(state.deleted),
    }


def message_row(message: dict[str, Any]) -> dict[str, Any]:
    """A message, for a file."""
    shown = {name: value for name, value in message.items() if not isinstance(value, bytes)}
    coded = {
        name: base64.b64encode(value).decode() for name, value in message.items() if isinstance(value, bytes)
    }
    return shown | coded
