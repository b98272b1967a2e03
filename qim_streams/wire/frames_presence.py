"""The frames of presence: who of a conversation is online, and when others were last seen. Parts of
``frames``.

Spec: §6.
"""

from typing import Annotated, Final, NamedTuple

from qim_streams import limits
from qim_streams.wire.frames_group import Conversation, Rid
from qim_streams.wire.kinds import Bool, Int, ListOf, TextId
from qim_streams.wire.schema import Schema, Struct

_ID = TextId()


class WatchPresence(NamedTuple):
    """Watch members of a conversation, in place of those watched in it before. Ends with the connection."""

    rid: Rid
    conversation_id: Conversation
    user_ids: Annotated[
        list[str], ListOf(_ID, limits.PRESENCE_WATCH_MAX), "whom; empty: nobody of it any more"
    ]


class SetVisibility(NamedTuple):
    """Be seen or be invisible: an invisible user is offline to everybody. Holds for all devices, for good."""

    rid: Rid
    visible: Annotated[bool, Bool(), "whether others see this user"]


class UserPresence(NamedTuple):
    """How others see a user."""

    user_id: Annotated[str, _ID, "who"]
    online: Annotated[bool, Bool(), "whether one of his devices is online"]
    last_seen_ms: Annotated[
        int | None, Int(0), "milliseconds since the epoch; null: online, or never seen"
    ] = None


class PresenceStates(NamedTuple):
    """Answer to WATCH_PRESENCE: everybody watched in the conversation. Without rid: who has changed."""

    users: Annotated[
        list[UserPresence],
        ListOf(Struct(Schema(UserPresence)), limits.PRESENCE_WATCHED_MAX),
        "absolute values",
    ]
    rid: Annotated[int | None, Int(0, 2**32 - 1), "of WATCH_PRESENCE; null: a change"] = None


class Visibility(NamedTuple):
    """Answer to SET_VISIBILITY."""

    rid: Rid
    visible: Annotated[bool, Bool(), "as set"]


PresenceFrame = WatchPresence | SetVisibility
PresenceAnswer = PresenceStates | Visibility

CLIENT_FRAMES: Final[dict[str, Schema]] = {
    "WATCH_PRESENCE": Schema(WatchPresence),
    "SET_VISIBILITY": Schema(SetVisibility),
}
SERVER_FRAMES: Final[dict[str, Schema]] = {
    "PRESENCE_STATES": Schema(PresenceStates),
    "VISIBILITY": Schema(Visibility),
}
CLIENT_EXAMPLES: Final[dict[str, PresenceFrame]] = {
    "WATCH_PRESENCE": WatchPresence(50, "team", ["ann", "ben"]),
    "SET_VISIBILITY": SetVisibility(51, False),
}
SERVER_EXAMPLES: Final[dict[str, PresenceAnswer]] = {
    "PRESENCE_STATES": PresenceStates(
        [UserPresence("ann", True), UserPresence("ben", False, 1_764_400_000_000)], 50
    ),
    "VISIBILITY": Visibility(51, False),
}
