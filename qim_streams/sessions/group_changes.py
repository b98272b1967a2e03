"""Users whose lists a change of a group has changed hear of it, on whichever gateway they have a device.

Who was added or has joined, who was removed or has left; everybody when a group gets another name or ends.
What goes over the bus is a note, not a row: the conversation. A gateway that has a device of the user makes
the row out of what is there by then, so whoever changes a group reads no list, and users who are not
connected cost nothing but the note. Notes may be lost or come twice, as every signal may.

Bounded: of a group that is renamed or ends, `MEMBERS_TOLD_MAX` members hear; larger ones see it with the next
list that they read.

Spec: §9 (SESSION_DELTA).
"""

from collections.abc import Sequence
from typing import Final

from qim_streams.ids import is_text_id
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.membership.ports import OrdinalDirectory
from qim_streams.sessions.ports import SessionUser, Signals
from qim_streams.sessions.receipts import MemberPages

MEMBERS_TOLD_MAX: Final = 500
NOTE: Final = b"\xc1\x01"  # no frame begins with it: msgpack never uses the first byte
_NAMED: Final = (GroupOp.CREATE, GroupOp.ADD, GroupOp.REMOVE)
_ACTOR: Final = (GroupOp.CREATE, GroupOp.JOIN, GroupOp.LEAVE)
_EVERYBODY: Final = (GroupOp.UPDATE, GroupOp.DISMISS)


def encode_note(conversation_id: str) -> bytes:
    """The note as it goes over the bus."""
    return NOTE + conversation_id.encode()


def decode_note(data: bytes) -> str | None:
    """The conversation of a signal that begins with `NOTE`; None for one that is no note of ours."""
    name = data[len(NOTE) :].decode("utf-8", "replace")
    return name if is_text_id(name) else None


class GroupChanges:
    """Tells. `members` are pages of a group's active members."""

    def __init__(self, ordinals: OrdinalDirectory, members: MemberPages, signals: Signals) -> None:
        self._ordinals, self._members, self._signals = ordinals, members, signals

    async def happened(self, command: GroupCommand) -> None:
        """A command was carried out. StoreError: nobody was told."""
        note = encode_note(command.conversation_id)
        for user in await self._concerned(command):
            self._signals.tell_all(user, note)

    async def _concerned(self, command: GroupCommand) -> list[SessionUser]:
        tenant_id = command.tenant_id
        if command.op in _EVERYBODY:
            page = await self._members.page(tenant_id, command.conversation_id, "", MEMBERS_TOLD_MAX + 1)
            if len(page) > MEMBERS_TOLD_MAX:
                return []
            return [SessionUser(tenant_id, one.user_id, one.ordinal) for one in page]
        names = concerned(command)
        found = await self._ordinals.find(tenant_id, names) if names else []
        return [
            SessionUser(tenant_id, name, ordinal)
            for name, ordinal in zip(names, found, strict=True)
            if ordinal is not None
        ]


def concerned(command: GroupCommand) -> Sequence[str]:
    """Whose lists the command changes, of those that it names. Pure."""
    users = list(command.user_ids) if command.op in _NAMED else []
    if command.op in _ACTOR and command.actor_id is not None:
        users.append(command.actor_id)
    return list(dict.fromkeys(users))
