"""A client's session as those see it that answer its frames.

Spec: §3.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire.codec import Codec
from qim_streams.wire.connection import ServerConnection
from qim_streams.wire.frames import Error, ServerFrame


class AskingSession(Protocol):
    """What every answer needs."""

    connection: ServerConnection

    @property
    def address(self) -> MailboxAddress:
        """Who asks, and whose mailbox. Only after AUTH."""

    def send(self, frame: ServerFrame) -> None:
        """Queue a frame."""

    def spawn(self, work: Callable[[], Awaitable[None]], rid: int, answered: Callable[[], None]) -> None:
        """Run `work`, which answers; if it raises, `answered` is called and the answer is an ERROR."""


class ListSession(AskingSession, Protocol):
    """And what is encoded beforehand."""

    def send_encoded(self, encode: Callable[[Codec], bytes]) -> None:
        """Queue a frame that is encoded by the caller."""


class RefusableSession(AskingSession, Protocol):
    """And what may be refused at once."""

    @property
    def is_open(self) -> bool:
        """Whether frames are still taken."""

    def refuse(self, answer: Error) -> None:
        """Queue an ERROR, and close if its row says so."""


class RoomSession(RefusableSession, Protocol):
    """And what may have to end: a connection that would lose an event."""

    def end(self, ws_close_code: int) -> None:
        """Write what waits if the socket takes it, then close."""


class FrameService(Protocol):
    """Answers frames of its own kind."""

    def handle(self, session: ListSession, frame: Any) -> bool:
        """Answer a frame from a task; False for a frame of another kind."""
