"""RoomLinks: how gateways and the admin API reach the RoomWriter of a room.

Spec: §10.
"""

from typing import Final, TypeVar

from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.placement import room_partition
from qim_streams.rooms.commands import (
    RoomAct,
    RoomCreate,
    RoomJoin,
    RoomOp,
    RoomReceipt,
    RoomSend,
    RoomView,
    read_answer,
)

R = TypeVar("R", RoomReceipt, RoomView)
LEASES: Final = "rm"
_OVERHEAD: Final = 512


class RoomLinks:
    """Each call raises AdmissionRefused, or StoreUnavailable when no owner answers in time; repeating is
    safe.

    `links` look for owners of ``rm:<partition>``; `deadline_s` bounds a call with its repeats.
    """

    def __init__(self, links: WriterLinks, partitions: int, deadline_s: float) -> None:
        self._links, self._partitions, self._deadline_s = links, partitions, deadline_s

    async def send(self, request: RoomSend) -> RoomReceipt:
        """Send a message; its receipt says that the log has it."""
        return await self._ask(RoomOp.SEND, request, RoomReceipt, len(request.body))

    async def join(self, request: RoomJoin) -> RoomView:
        """Whether a user may enter, and the room as it stands."""
        return await self._ask(RoomOp.JOIN, request, RoomView)

    async def create(self, request: RoomCreate) -> RoomView:
        """Make a room; making the same one again changes nothing."""
        return await self._ask(RoomOp.CREATE, request, RoomView)

    async def act(self, request: RoomAct) -> RoomView:
        """Mute, kick, close, ...: `rules.ACTIONS`."""
        return await self._ask(RoomOp.ACT, request, RoomView, len(request.text))

    async def _ask(
        self,
        op: RoomOp,
        request: RoomSend | RoomJoin | RoomCreate | RoomAct,
        kind: type[R],
        nbytes: int = 0,
    ) -> R:
        partition = room_partition(request.tenant_id, request.room_id, self._partitions)
        fields = await self._links.call(
            int(op), tuple(request), partition, _OVERHEAD + nbytes, self._deadline_s
        )
        return read_answer(kind, fields)
