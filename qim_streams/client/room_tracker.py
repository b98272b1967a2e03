"""What a device knows of a room's numbers: what is new, what is lost, and who writes it. Pure.

Invariants: a message is shown once; within an epoch a missing number is told as `Lost`, before what comes
after it; numbers that begin again in a new epoch are told as `NewEpoch` with `restarted`.

Spec: §10.
"""

from collections.abc import Iterable
from typing import NamedTuple

from qim_streams.wire.frames_rooms import Joined, RoomEvent, RoomMessage, RoomPart


class Said(NamedTuple):
    """A message of the room."""

    epoch: int
    message: RoomMessage


class Lost(NamedTuple):
    """Messages `first_seq` to `last_seq`, both inclusive, that this device will not get."""

    epoch: int
    first_seq: int
    last_seq: int
    reason: str  # gap: on the way here; window: away for too long; application: not taken in time


class NewEpoch(NamedTuple):
    """Another process writes the room; what its predecessor acknowledged last may be missing.

    `restarted`: the numbers began again: the room was lost and made anew.
    """

    epoch: int
    restarted: bool = False


class Happened(NamedTuple):
    """An event of the room: mute, close, members, ..."""

    event: RoomEvent


class Entered(NamedTuple):
    """The room was entered, or entered again after a new connection."""

    joined: Joined
    again: bool


class Ended(NamedTuple):
    """The last event: left (empty code), closed, sent out, or refused; `code` of the error table."""

    code: str
    detail: str = ""


RoomDelivery = Said | Lost | NewEpoch | Happened | Entered | Ended


class RoomTracker:
    """Of one room on one device. `position` is (epoch, room_seq) of the last message."""

    def __init__(self) -> None:
        self.position = (0, 0)
        self._announced = 0
        self._entered = False

    def joined(self, frame: Joined) -> list[RoomDelivery]:
        """The answer to a JOIN_ROOM."""
        again, self._entered = self._entered, True
        found: list[RoomDelivery] = [Entered(frame, again)]
        if not again:
            # What was before the replay is not lost, it is past.
            first = next((one for part in frame.parts for one in part.messages), None)
            self._announced = frame.epoch
            epoch = frame.parts[0].epoch if first else frame.epoch
            self.position = (epoch, first.room_seq - 1 if first else frame.room_seq)
        found += self._parts(frame.parts, "window")
        found += self._announce(frame.epoch)
        end = (frame.epoch, frame.room_seq)
        if end > self.position:
            if frame.room_seq > self.position[1]:
                found.append(Lost(frame.epoch, self.position[1] + 1, frame.room_seq, "window"))
            self.position = end
        return found

    def batch(self, part: RoomPart) -> list[RoomDelivery]:
        """A part of a ROOM_BATCH."""
        return self._parts([part], "gap")

    def event(self, frame: RoomEvent) -> list[RoomDelivery]:
        """A ROOM_EVENT. Those come before the messages that wait, so they move no position."""
        if frame.event == "owner":
            return self._announce(frame.epoch)
        return [Happened(frame)]

    def _announce(self, epoch: int, *, restarted: bool = False) -> list[RoomDelivery]:
        if epoch <= self._announced and not restarted:
            return []
        self._announced = max(epoch, self._announced)
        return [NewEpoch(epoch, restarted)]

    def _parts(self, parts: Iterable[RoomPart], reason: str) -> list[RoomDelivery]:
        found: list[RoomDelivery] = []
        for part in parts:
            for message in part.messages:
                found += self._message(part.epoch, message, reason)
        return found

    def _message(self, epoch: int, message: RoomMessage, reason: str) -> list[RoomDelivery]:
        seen_epoch, seen = self.position
        if (epoch, message.room_seq) <= self.position:
            return []
        restarted = epoch > seen_epoch and message.room_seq <= seen
        found = self._announce(epoch, restarted=restarted) if epoch > seen_epoch else []
        expected = 1 if restarted else seen + 1
        if message.room_seq > expected:
            found.append(Lost(epoch, expected, message.room_seq - 1, reason))
        self.position = (epoch, message.room_seq)
        return [*found, Said(epoch, message)]
