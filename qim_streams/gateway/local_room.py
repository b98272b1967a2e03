"""LocalRoom: a room that has a connection on this gateway; what it has said, and what the next tick will say.

A room is loaded from its writer once, by the first who enters; from then on the log tells. All connections
are always at the same position: who enters is shown what earlier ticks have said and is part of the next
one, so one encoding serves all.

Invariants: messages are taken in order of (epoch, room_seq), each once; what waits for the tick and what is
kept for joiners is bounded, the oldest goes first, which the numbers show.

Spec: §10.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from qim_streams import limits
from qim_streams.rooms.commands import RoomView
from qim_streams.rooms.records import RoomKind, RoomRecord, decode_room
from qim_streams.wire.codec import Codec
from qim_streams.wire.frames_rooms import RoomMessage, RoomPart
from qim_streams.wire.room_batches import batch_of, encode_part

if TYPE_CHECKING:
    from qim_streams.gateway.room_seat import RoomSeat

WAITING_MAX: Final = 400  # messages of a room that wait for a tick
WAITING_BYTES_MAX: Final = 512 * 1024
KEPT_BYTES_MAX: Final = 256 * 1024
RoomName = tuple[str, str]


class Encoded:
    """A part of a tick, encoded at most once per encoding, however many connections get it."""

    __slots__ = ("_frames", "_parts", "count", "part")

    def __init__(self, part: RoomPart) -> None:
        self.part, self.count = part, len(part.messages)
        self._parts: dict[bool, bytes] = {}
        self._frames: dict[bool, bytes] = {}

    def bytes_for(self, codec: Codec) -> bytes:
        """The part."""
        found = self._parts.get(codec.binary)
        if found is None:
            found = self._parts[codec.binary] = encode_part(codec, self.part)
        return found

    def frame_for(self, codec: Codec) -> bytes:
        """A whole ROOM_BATCH of this part alone."""
        found = self._frames.get(codec.binary)
        if found is None:
            found = self._frames[codec.binary] = batch_of(codec, [self.bytes_for(codec)])
        return found


class LocalRoom:
    """`seats` are the connections in it, `entering` counts those that are on their way in."""

    def __init__(self, name: RoomName, partition: int) -> None:
        self.name, self.partition = name, partition
        self.seats: dict[RoomSeat, None] = {}
        self.entering = 0
        self.view: RoomView | None = None  # None: not loaded
        self.loading: asyncio.Task[None] | None = None
        self.position = (0, 0)  # (epoch, room_seq) that everybody here has been told
        self.total, self.total_said = 0, 0
        self._heard = (0, 0)
        self._kept: deque[RoomRecord] = deque()
        self._kept_bytes = 0
        self._waiting: deque[RoomRecord] = deque()
        self._waiting_bytes = 0
        self.dropped = 0  # messages that no connection here will get

    @property
    def is_empty(self) -> bool:
        """Whether nobody is here or on the way."""
        return not self.seats and not self.entering

    def load(self, view: RoomView) -> None:
        """What the writer says of the room; what the log has told meanwhile and is newer stays."""
        self.view = view
        self.position = (view.epoch, view.room_seq)
        self._heard = max(self._heard, self.position)
        for data in view.records:
            self._keep(decode_room(data))
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        for record in waiting:
            if (record.epoch, record.room_seq) > self.position:
                self._wait(record)

    def hear(self, record: RoomRecord) -> bool:
        """A message from the log; whether a tick is due."""
        at = (record.epoch, record.room_seq)
        if at <= self._heard:
            return False
        self._heard = at
        self._wait(record)
        return self.view is not None

    def changed(self, record: RoomRecord) -> None:
        """An event from the log: joiners are told the room as it is by now."""
        if self.view is None:
            return
        match record.kind:
            case RoomKind.MUTE_ALL | RoomKind.UNMUTE_ALL:
                self.view = self.view._replace(muted_all=record.kind == RoomKind.MUTE_ALL)
            case RoomKind.CLOSE:
                self.view = self.view._replace(closed=True)
            case _:
                pass

    def tick(self) -> list[Encoded]:
        """What is to be said now: one part, or one per epoch."""
        records, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        if self.view is None or not records:
            return []
        last = records[-1]
        self.position = (last.epoch, last.room_seq)
        for record in records:
            self._keep(record)
        return [Encoded(part) for part in self._parts(records)]

    def shown(self, limit: int, after: tuple[int, int]) -> list[RoomPart]:
        """What a joiner is shown: at most `limit` messages, newer than `after`, up to the position."""
        newer = [one for one in self._kept if (one.epoch, one.room_seq) > after]
        return self._parts(newer[max(0, len(newer) - limit) :] if limit else [])

    def _parts(self, records: Iterable[RoomRecord]) -> list[RoomPart]:
        by_epoch: dict[int, list[RoomMessage]] = {}
        for one in records:
            by_epoch.setdefault(one.epoch, []).append(_message(one))
        parts = [RoomPart(self.name[1], epoch, messages) for epoch, messages in by_epoch.items()]
        return parts[-limits.ROOM_PARTS_MAX :]

    def _keep(self, record: RoomRecord) -> None:
        self._kept.append(record)
        self._kept_bytes += len(record.body)
        while len(self._kept) > limits.ROOM_REPLAY_MAX or self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popleft().body)

    def _wait(self, record: RoomRecord) -> None:
        self._waiting.append(record)
        self._waiting_bytes += len(record.body)
        while len(self._waiting) > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            self._waiting_bytes -= len(self._waiting.popleft().body)
            self.dropped += 1

    def trim(self, since_ms: int) -> None:
        """Forget what is older than the log would keep."""
        while self._kept and self._kept[0].at_ms < since_ms:
            self._kept_bytes -= len(self._kept.popleft().body)


def _message(record: RoomRecord) -> RoomMessage:
    return RoomMessage(
        record.room_seq,
        record.message_id,
        record.sender_id,
        record.at_ms,
        record.body,
        record.client_message_id,
    )


def messages_in(parts: Sequence[Encoded]) -> int:
    """How many messages parts have."""
    return sum(part.count for part in parts)
