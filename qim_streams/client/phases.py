"""Where a connection is, why it ends, and who gets its answers: the words of `session`.

Spec: §7.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from qim_streams.wire.frames import Error, ServerFrame

Answered = Callable[[ServerFrame | None], None]
"""Gets the answer to a request, or None when the connection ends first."""


class Phase(Enum):
    """Where a connection is."""

    OFFLINE = "offline"
    AUTHENTICATING = "authenticating"
    SYNCING = "syncing"
    COMPLETING = "completing"
    ONLINE = "online"


@dataclass(frozen=True, slots=True)
class Broken:
    """Why the connection should be closed now; another one is tried after `retry_after_ms`."""

    reason: str
    retry_after_ms: int


def ended_here(name: str, detail: str) -> Error:
    """A terminal end that this side decided on, in the form of the server's."""
    return Error(code=0, name=name, temporary=False, detail=detail[:500])
