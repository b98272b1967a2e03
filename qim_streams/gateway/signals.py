"""Signals: frames for all devices of a user that are connected now, on whichever gateway.

They may be lost and are never repeated; nothing depends on them. Order between two signals of one sender
to one user is kept while the bus holds.

Spec: §9 (SESSION_DELTA).
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from qim_streams.errors import QimError
from qim_streams.sessions import keys
from qim_streams.sessions.ports import SessionUser

log = logging.getLogger(__name__)

Receive = Callable[[str, bytes], object]
"""Called with the device that the signal is not for ("" = none) and the frame's msgpack bytes."""


OWN: Final = "sig"


class SignalBus(Protocol):
    """Between the gateways. Nothing here waits or raises for a bus that is away."""

    def tell(self, user: SessionUser, but_device: str, data: bytes, what: str = OWN) -> None:
        """Hand a msgpack frame to every listener of the user: of his own devices, or of `what` about him."""

    def tell_all(self, user: SessionUser, data: bytes) -> None:
        """Hand a frame or a note to every device of the user."""

    def listen(self, user: SessionUser, receive: Receive, what: str = OWN) -> None:
        """From soon on `receive` is called for what is told to the user."""

    def unlisten(self, user: SessionUser, receive: Receive, what: str = OWN) -> None:
        """The end of it. Harmless for one that does not listen."""


class Listeners:
    """Who listens to which channel of this gateway."""

    def __init__(self) -> None:
        self._by_channel: dict[str, list[Receive]] = {}

    @property
    def channels(self) -> list[str]:
        """Channels with a listener."""
        return list(self._by_channel)

    def add(self, channel: str, receive: Receive) -> bool:
        """Whether it is the channel's first."""
        there = self._by_channel.setdefault(channel, [])
        there.append(receive)
        return len(there) == 1

    def remove(self, channel: str, receive: Receive) -> bool:
        """Whether it was the channel's last."""
        there = self._by_channel.get(channel, [])
        if receive not in there:
            return False
        there.remove(receive)
        if there:
            return False
        del self._by_channel[channel]
        return True

    def deliver(self, channel: str, message: bytes) -> None:
        """Give a message to the channel's listeners; one that nobody can read is dropped.

        A signal may be lost anyway; a gateway must not end by one.
        """
        device, nul, data = message.partition(b"\0")
        for receive in list(self._by_channel.get(channel, ())) if nul else ():
            try:
                receive(device.decode("ascii", "replace"), data)
            except QimError as error:
                log.error("a signal of %d bytes cannot be read: %s", len(data), error)


def channel_of(user: SessionUser, what: str = OWN) -> str:
    """The channel of a user's devices, or of who wants to hear `what` about him."""
    return keys.of_user(user.tenant_id, user.ordinal, what)


def message_of(but_device: str, data: bytes) -> bytes:
    """A signal's bytes on the bus. Device ids contain no NUL."""
    return but_device.encode() + b"\0" + data
