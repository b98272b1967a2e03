"""A tenant that is attacked from another one: what it has, and what tells that somebody was at it.

Everything that others must not learn holds `mark`: bodies, names, ids of users and devices. Whoever is shown
the mark was shown something of this tenant. Its rows in the hot tier are at rest: a change is somebody's.
"""

import secrets
import time
from contextlib import AsyncExitStack
from typing import Final

from qim_streams.wire.frames_group import GroupCreate, GroupState
from qim_streams.wire.frames_rooms import CreateRoom, Joined, JoinRoom, RoomAck, RoomState, SendRoom
from qim_streams.wire.frames_sessions import SessionState, SetMute
from tests.support.battlefield import Battlefield
from tests.support.waiting import eventually, eventually_sync

TEAM, HALL, REST_S = "team", "hall", 0.4
USERS: Final = ("ann", "ben")


class Victim:
    """People of tenant `tenant`. `direct`: the id of the chat of ann and ben."""

    def __init__(self, field: Battlefield) -> None:
        run = secrets.token_hex(4)
        self.field, self.tenant, self.mark = field, f"victim{run}", f"only{run}"
        self.direct = ""
        self._rows: dict[bytes, str] = {}

    async def begin(self) -> None:
        """Say and make something of everything."""
        async with AsyncExitStack() as stack:
            ann, ben = [
                await stack.enter_async_context(self.field.wire(self.tenant, user, f"{self.mark}-phone"))
                for user in USERS
            ]
            await ann.go_online()
            await ben.go_online()
            self.direct = (await ann.say("v1", self.said("direct"), to="ben")).conversation_id
            await ann.request(
                GroupCreate(ann.next_rid(), ["ben", f"{self.mark}-cleo"], TEAM, f"The {self.mark} team"),
                GroupState,
            )
            for number in range(3):
                await ben.say(f"v{number}", self.said("group"), conversation=TEAM)
            await ann.request(CreateRoom(ann.next_rid(), HALL, f"The {self.mark} hall"), RoomState)
            await ann.request(JoinRoom(ann.next_rid(), HALL), Joined)
            await ann.request(SendRoom(ann.next_rid(), HALL, "r1", self.said("room")), RoomAck)
            await ann.request(SetMute(ann.next_rid(), TEAM, True), SessionState)
            await eventually(
                lambda: len(ann.pushed()) == 3 and len(ben.pushed()) == 1, 60, "what others said"
            )

    def said(self, what: str) -> bytes:
        """A body that is for this tenant only."""
        return f"{what} {self.mark}".encode()

    def rest(self) -> None:
        """Wait until nothing of it changes any more."""
        eventually_sync(self._rests, 120, "the victim's rows to rest")

    def _rests(self) -> bool:
        before, _ = self.field.rows(self.tenant)
        time.sleep(REST_S)
        self._rows, passing = self.field.rows(self.tenant)
        return before == self._rows and len(before) > 5 and not [one for one in passing if b"{q" in one]

    def untouched(self) -> None:
        """AssertionError unless every row is as it was, and there is no other."""
        now, _ = self.field.rows(self.tenant)
        changed = [key for key in {*now, *self._rows} if now.get(key) != self._rows.get(key)]
        assert not changed, f"rows of another tenant were written: {changed}"
