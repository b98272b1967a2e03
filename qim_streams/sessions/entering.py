"""What session lists learn of a change of a group: newcomers have it at once, and all concerned are told.

Whoever hands a command to the writers and hears that it was carried out (gateways, the admin API) writes the
rows, with the time of the change, before he answers: who asks for a list then finds the group. The rows are
those of the projection: should they not be written, the first message brings the group.

Who leaves or is removed needs no row: it is made when it is read, of the member row as it is by then. He is
told like the others (`group_changes`).

Spec: §9 (first-seen rules).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from qim_streams.errors import QimError
from qim_streams.membership.commands import GroupCommand, GroupOp, GroupState
from qim_streams.membership.ports import OrdinalDirectory
from qim_streams.sessions.group_changes import GroupChanges
from qim_streams.sessions.projection_ports import ProjectionStore
from qim_streams.sessions.projection_records import SessionRow, Slot, slot_of

log = logging.getLogger(__name__)

WAIT_S: Final = 1.0  # an answer to a command waits no longer for a store that is slow
_ENTERING: Final = (GroupOp.CREATE, GroupOp.ADD, GroupOp.JOIN)


class Entering:
    """Writes the rows of new members, then tells. `now_ms` is the wall clock."""

    def __init__(
        self,
        ordinals: OrdinalDirectory,
        projection: ProjectionStore,
        changes: GroupChanges,
        now_ms: Callable[[], int],
    ) -> None:
        self._ordinals, self._projection, self._now_ms = ordinals, projection, now_ms
        self._changes = changes

    async def changed(self, command: GroupCommand, state: GroupState) -> None:
        """A command was carried out. Never fails: the change stands, whatever becomes of lists."""
        await self._enter(command, state)
        try:
            async with asyncio.timeout(WAIT_S):
                await self._changes.happened(command)
        except (QimError, TimeoutError) as error:
            why = error or "no answer in time"
            log.info("nobody is told of a change of %s: %s", command.conversation_id, why)

    async def _enter(self, command: GroupCommand, state: GroupState) -> None:
        if command.op not in _ENTERING:
            return
        users = list(command.user_ids)
        if command.op is not GroupOp.ADD and command.actor_id is not None:
            users.append(command.actor_id)
        head = state.conversation
        try:
            async with asyncio.timeout(WAIT_S):
                await self._write(head.tenant_id, head.conversation_id, head.seq + 1, users)
        except (QimError, TimeoutError) as error:
            why = error or "no answer in time"
            log.warning("lists get %s with its first message only: %s", head.conversation_id, why)

    async def _write(self, tenant_id: str, name: str, first_seq: int, users: Sequence[str]) -> None:
        rows: dict[Slot, list[SessionRow]] = {}
        for ordinal in await self._ordinals.find(tenant_id, users):
            if ordinal is not None:
                row = SessionRow(ordinal, name, self._now_ms(), first_seq)
                rows.setdefault(slot_of(tenant_id, ordinal), []).append(row)
        if rows:
            await self._projection.write(rows)
