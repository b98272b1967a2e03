"""From notes of changed groups to SESSION_DELTA frames for the devices that this gateway has.

A note names a conversation of a user. A moment later his rows of all that was named meanwhile are made once,
for all of his devices here, and told in one frame with absolute values; then what is unread in all, since who
was let go has less. Somebody who is put into fifty groups at once costs one reading and gets one frame.

A device drops a delta that is below one that it has. So the order is given out first, then W is read, then
the rows; and if something of the user was changed meanwhile, all of it is done again: what is told then is
above every delta that was told before, and the next one is above this.

Invariants: nothing here waits or fails for a store that is away: the list says the same when it is read next.

Spec: §9 (SESSION_DELTA).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from qim_streams.errors import QimError
from qim_streams.gateway.session_rows import delta_frame
from qim_streams.gateway.session_totals import SessionTotalsTeller
from qim_streams.gateway.soon import Soon
from qim_streams.sessions.group_changes import decode_note
from qim_streams.sessions.ports import ChangeOrders, SessionUser, user_of
from qim_streams.sessions.reading import SessionLists
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire.frames import ServerFrame
from qim_streams.wire.frames_sessions import SessionDelta

log = logging.getLogger(__name__)

MOMENT_S: Final = 0.05
USERS_MAX: Final = 10_000  # that wait; more are left out
TOGETHER_MAX: Final = 16  # users
ROWS_MAX: Final = 100  # of a user at once; more are left out
TRIES_MAX: Final = 4

Send = Callable[[ServerFrame], object]


@dataclass(slots=True)
class _Waiting:
    """What one user's devices are to be told. `devices`: by device id, how to send to each."""

    shard: int
    names: dict[str, None] = field(default_factory=dict)
    devices: dict[str, Send] = field(default_factory=dict)


class ListChanges:
    """Of all users of a gateway."""

    def __init__(self, lists: SessionLists, orders: ChangeOrders, totals: SessionTotalsTeller) -> None:
        self._lists, self._orders, self._totals = lists, orders, totals
        self._soon: Soon[SessionUser, _Waiting] = Soon(
            "list-changes", self._tell, moment_s=MOMENT_S, together=TOGETHER_MAX, most=USERS_MAX
        )

    @property
    def is_done(self) -> bool:
        """Whether a note was heard, and nobody waits to be told."""
        return self._soon.is_done

    def heard(self, address: MailboxAddress, note: bytes, send: Send) -> None:
        """A device's session has heard a note; `send` gives the device a frame, if it can. Never waits."""
        user, conversation_id = user_of(address), decode_note(note)
        if conversation_id is None:
            return
        waiting = self._soon.waiting(user) or _Waiting(address.shard)
        waiting.shard = address.shard
        waiting.devices[address.device_id] = send
        if len(waiting.names) < ROWS_MAX:
            waiting.names[conversation_id] = None
        self._soon.put(user, waiting)

    async def _tell(self, user: SessionUser, waiting: _Waiting) -> None:
        try:
            frame = await self._frame(user, waiting)
        except QimError as error:
            log.info("devices are not told of changed groups: %s", error)
            return
        if frame.rows:
            for send in waiting.devices.values():
                send(frame)
            self._totals.changed(user, waiting.shard)

    async def _frame(self, user: SessionUser, waiting: _Waiting) -> SessionDelta:
        for _ in range(TRIES_MAX):
            order = await self._orders.next_order(user)
            seq, rows = await self._lists.rows_of(user, waiting.shard, list(waiting.names))
            if await self._orders.last_order(user) == order:
                break
        return delta_frame(seq, order, rows)

    async def close(self) -> None:
        """Give up what is under way."""
        await self._soon.close()
