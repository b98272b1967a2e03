"""What was said last in rooms: for those who join, and to know a repeated send. Pure.

Invariants: a window holds at most `REPLAY_MAX` messages and `WINDOW_BYTES_MAX` bytes, all windows of a
partition together about `BUDGET_BYTES`; what is older than the log keeps is never given out.

Spec: §10.
"""

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from qim_streams.rooms.commands import REPLAY_MAX, RoomReceipt
from qim_streams.rooms.records import RoomKind, RoomRecord

WINDOW_BYTES_MAX: Final = 256 * 1024
REMEMBERED_MAX: Final = 256  # sends of a room that are known again
BUDGET_BYTES: Final = 64 * 1024 * 1024
_OVERHEAD: Final = 200


class Kept(NamedTuple):
    """A message of a window."""

    record: RoomRecord
    data: bytes  # the same, encoded


class Window:
    """The newest messages of one room, oldest first."""

    __slots__ = ("_items", "_sent", "nbytes")

    def __init__(self) -> None:
        self._items: deque[Kept] = deque()
        self._sent: OrderedDict[tuple[str, str], RoomReceipt] = OrderedDict()
        self.nbytes = 0

    def add(self, record: RoomRecord, data: bytes) -> int:
        """Keep a message that is in the log; by how much `nbytes` grew."""
        if record.kind != RoomKind.MESSAGE:
            return 0
        before = self.nbytes
        self._items.append(Kept(record, data))
        self.nbytes += len(data) + _OVERHEAD
        while len(self._items) > REPLAY_MAX or (self.nbytes > WINDOW_BYTES_MAX and len(self._items) > 1):
            self.nbytes -= len(self._items.popleft().data) + _OVERHEAD
        receipt = RoomReceipt(record.message_id, record.room_seq, record.epoch, record.at_ms)
        self._sent[record.sender_id, record.client_message_id] = receipt
        if len(self._sent) > REMEMBERED_MAX:
            self._sent.popitem(last=False)
        return self.nbytes - before

    def sent(self, sender_id: str, client_message_id: str) -> RoomReceipt | None:
        """The receipt of a message that this window knows."""
        return self._sent.get((sender_id, client_message_id))

    def newest(self, limit: int, since_ms: int) -> list[Kept]:
        """At most `limit` messages not older than `since_ms`, oldest first."""
        found = [one for one in self._items if one.record.at_ms >= since_ms]
        return found[len(found) - limit :] if 0 < limit < len(found) else found if limit else []

    def clear(self) -> int:
        """Forget the messages, not the sends; how many bytes that freed."""
        freed, self.nbytes = self.nbytes, 0
        self._items.clear()
        return freed
