"""Presence as an application uses it::

    states = await client.presence.watch("team", ["ann", "ben"])
    client.presence.on_change = lambda changed: redraw(changed)
    await client.presence.set_visible(False)

`states` is kept up to date while this device is online. After a new sign-on what was watched is watched
again by itself; until then the last known values stand.

Spec: §6.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from qim_streams.client.requests import Requests
from qim_streams.errors import QimError
from qim_streams.wire.frames import OnlineReady
from qim_streams.wire.frames_presence import (
    PresenceStates,
    SetVisibility,
    UserPresence,
    Visibility,
    WatchPresence,
)

if TYPE_CHECKING:
    from qim_streams.client.session import Session


class PresenceWatcher:
    """Who is online.

    Calls raise AdmissionRefused (NOT_MEMBER, FIELD_INVALID), ClientStopped, or TimeoutError when there is no
    answer: asking again is safe.
    """

    def __init__(self, session: "Session", requests: Requests) -> None:
        self._requests = requests
        self._watched: dict[str, list[str]] = {}
        self._again: asyncio.Task[None] | None = None
        self.states: dict[str, UserPresence] = {}
        self.on_change: Callable[[list[UserPresence]], object] | None = None
        self._session, online = session, session.handlers[OnlineReady]
        session.handlers[PresenceStates] = self._heard
        session.handlers[OnlineReady] = partial(self._on_online, online)

    async def watch(self, conversation_id: str, user_ids: Sequence[str]) -> list[UserPresence]:
        """Watch members of a conversation in place of those watched in it before; how they are seen now.

        Who is no member of it is left out.
        """
        wanted = list(user_ids)
        answer = await self._requests.ask(
            lambda rid: WatchPresence(rid, conversation_id, wanted), PresenceStates
        )
        if wanted:
            self._watched[conversation_id] = wanted
        else:
            self._watched.pop(conversation_id, None)
        self._take(answer.users)
        return answer.users

    async def set_visible(self, visible: bool) -> None:
        """Be seen, or be offline to everybody, on all devices until it is changed again."""
        await self._requests.ask(lambda rid: SetVisibility(rid, visible), Visibility)

    def _on_online(self, then: Callable[[OnlineReady], object], frame: OnlineReady) -> None:
        """A new connection watches nobody yet: ask again for all that was watched."""
        then(frame)
        if self._watched and (self._again is None or self._again.done()):
            self._again = asyncio.get_running_loop().create_task(self._watch_again())

    async def close(self) -> None:
        """Stop what works in the background."""
        if self._again is not None:
            self._again.cancel()
            await asyncio.wait([self._again])

    async def _watch_again(self) -> None:
        for conversation_id, user_ids in list(self._watched.items()):
            try:
                before = dict(self.states)
                users = await self.watch(conversation_id, user_ids)
            except (QimError, TimeoutError):
                continue  # no member any more, or the next sign-on asks again
            self._say([one for one in users if before.get(one.user_id) != one])

    def _heard(self, frame: PresenceStates) -> None:
        if frame.rid is not None:
            self._session.answered(frame)
            return
        self._take(frame.users)
        self._say(frame.users)

    def _take(self, users: Sequence[UserPresence]) -> None:
        self.states |= {one.user_id: one for one in users}

    def _say(self, users: list[UserPresence]) -> None:
        if users and self.on_change is not None:
            self.on_change(users)
