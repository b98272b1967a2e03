"""The book of presence: for each user the devices that are online, until when, and when he was last seen.

A gateway notes a device when its session opens, again with each refresh, and when it ends. A note holds for
a while and then counts for nothing: a gateway that dies takes its devices with it, at the latest when their
notes run out. What the push path goes by is another thing (`push.presence`): this book is for people.

Invariants: an invisible user is offline to everybody, last seen when he became invisible; a user is told to
have changed only when his first device came or his last one went.

Spec: §6.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from qim_streams.sessions.ports import SessionUser

REFRESHES_MISSED: Final = 2.5  # a note holds for so many refreshes


class Sight(NamedTuple):
    """A device of a user. `until_ms`: how long the note holds; 0: the device is gone."""

    user: SessionUser
    device_id: str
    until_ms: int


class Seen(NamedTuple):
    """A user as others see him. `last_seen_ms` 0: online now, or never seen."""

    online: bool
    last_seen_ms: int = 0


class PresenceBook(Protocol):
    """Where presence is kept. StoreUnavailable: nothing is known, ask again."""

    async def note(self, sights: Sequence[Sight], now_ms: int) -> list[Seen | None]:
        """Note devices; for each how its user is seen now if that changed by it, else None."""

    async def seen(self, users: Sequence[SessionUser], now_ms: int) -> list[Seen]:
        """How users are seen, in their order."""

    async def set_visible(self, user: SessionUser, visible: bool, now_ms: int) -> Seen | None:
        """Show a user or not; how he is seen now if that changed."""
