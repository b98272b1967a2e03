"""What the demonstration needs from the stack that it runs on.

Spec: §1 (levels).
"""

from collections.abc import Callable, Mapping
from typing import Protocol

MintToken = Callable[[str], str]
"""An access token for a user of the demonstration's tenant."""

Say = Callable[[str], None]
"""Shows a line of progress."""

LEVELS = ("COMMITTED", "ARCHIVED", "MAILBOXED", "PUSHED")


class LevelProbe(Protocol):
    """Asks the stores and logs how far a message came."""

    async def levels(self, conversation_id: str, message_id: bytes) -> Mapping[str, int | None]:
        """Milliseconds from committed_at to each of `LEVELS`, None for a level not proven (yet).

        Called once the message was delivered; an implementation may wait a moment for the archive.
        """
