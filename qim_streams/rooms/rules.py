"""Who may do what in a room, and how often. Pure.

Standing of a user: owner, moderator, member (of a room that only members may enter) or nobody special, and
beside it until when he is muted or banned. A room is open or for members; it may be muted for all but its
owner and moderators; closed is for ever.

Invariants: the operator (actor None) may do everything but talk; nobody acts on the owner or, unless he
is the owner, on a moderator; every change of a room is one event, whose record tells all gateways.

Spec: §10.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from qim_streams.errors import AdmissionRefused
from qim_streams.ids import is_name, is_text_id
from qim_streams.limits import ROOM_NAME_MAX
from qim_streams.rooms.records import RoomKind

OPEN, MEMBERS = "open", "members"
JOIN_POLICIES: Final = (OPEN, MEMBERS)
OWNER, MODERATOR, MEMBER, PLAIN = "owner", "moderator", "member", ""
FOREVER_MS: Final = 2**53 - 1
STANDINGS_MAX: Final = 5_000  # users of a room with a standing of their own
EVENTS_PER_S: Final = 10.0  # of one room: events are never dropped, so they must be few

ACTIONS: Final[dict[str, RoomKind]] = {
    "mute": RoomKind.MUTE,
    "unmute": RoomKind.UNMUTE,
    "mute_all": RoomKind.MUTE_ALL,
    "unmute_all": RoomKind.UNMUTE_ALL,
    "kick": RoomKind.KICK,
    "add_moderator": RoomKind.MODERATOR,
    "add_member": RoomKind.MEMBER,
    "remove": RoomKind.PLAIN,
    "announce": RoomKind.ANNOUNCE,
    "close": RoomKind.CLOSE,
}
ABOUT_A_USER: Final = frozenset({"mute", "unmute", "kick", "add_moderator", "add_member", "remove"})
_OWNERS_ONLY: Final = frozenset({"add_moderator", "remove", "close"})


class Standing(NamedTuple):
    """What is special about a user in a room. Times are milliseconds since the epoch, 0: not."""

    role: str = PLAIN
    muted_until: int = 0
    banned_until: int = 0


NOBODY: Final = Standing()


class RoomHead(NamedTuple):
    """A room as it stands."""

    name: str
    join_policy: str
    owner_id: str
    created_at: int
    muted_all: bool = False
    closed: bool = False


class Change(NamedTuple):
    """What an action makes of a room: the new head, and the user's new standing (None: as before)."""

    head: RoomHead
    user_id: str = ""
    standing: Standing | None = None
    until_ms: int = 0


def standing_of(head: RoomHead, standings: Mapping[str, Standing], user_id: str) -> Standing:
    """The standing of a user; the owner's cannot be changed."""
    if user_id == head.owner_id and user_id:
        return Standing(OWNER)
    return standings.get(user_id, NOBODY)


def check_name(name: str) -> None:
    """AdmissionRefused unless every joiner can be told this name."""
    if not is_name(name, ROOM_NAME_MAX):
        raise AdmissionRefused("FIELD_INVALID", f"name: at most {ROOM_NAME_MAX} characters, none of control")


def check_join(head: RoomHead, standing: Standing, now_ms: int) -> None:
    """AdmissionRefused unless the user may enter now."""
    if head.closed:
        raise AdmissionRefused("ROOM_CLOSED", "the room is closed")
    if standing.banned_until > now_ms:
        raise AdmissionRefused("BANNED", "you were sent out of this room")
    if head.join_policy == MEMBERS and standing.role == PLAIN:
        raise AdmissionRefused("NOT_ALLOWED", "this room is for its members")


def check_send(head: RoomHead, standing: Standing, now_ms: int) -> None:
    """AdmissionRefused unless the user may talk now."""
    check_join(head, standing, now_ms)
    if standing.muted_until > now_ms:
        raise AdmissionRefused("MUTED", "you are muted in this room")
    if head.muted_all and standing.role not in (OWNER, MODERATOR):
        raise AdmissionRefused("MUTED", "only owner and moderators may talk now")


def apply_action(
    head: RoomHead,
    standings: Mapping[str, Standing],
    actor_id: str | None,
    action: str,
    user_id: str,
    until_ms: int,
) -> Change:
    """What an action of `actor_id` (None: the operator) changes; AdmissionRefused when it may not be.

    `until_ms` 0: for ever (mute) or not at all (kick: sent out, and may come back).
    """
    if action in ABOUT_A_USER and not is_text_id(user_id):
        raise AdmissionRefused("FIELD_INVALID", "user_id: name the user whom it is about")
    if head.closed and action != "close":
        raise AdmissionRefused("ROOM_CLOSED", "the room is closed")
    before = standing_of(head, standings, user_id)
    _check_actor(head, standings, actor_id, action, before)
    if action in ABOUT_A_USER:
        after = _standing_after(action, before, until_ms)
        if user_id not in standings and after != NOBODY and len(standings) >= STANDINGS_MAX:
            raise AdmissionRefused("GROUP_TOO_LARGE", f"{STANDINGS_MAX} users of this room have a standing")
        shown = after.muted_until if action == "mute" else after.banned_until if action == "kick" else 0
        return Change(head, user_id, after, shown)
    if action in ("mute_all", "unmute_all"):
        return Change(head._replace(muted_all=action == "mute_all"))
    return Change(head._replace(closed=True)) if action == "close" else Change(head)


def _check_actor(
    head: RoomHead, standings: Mapping[str, Standing], actor_id: str | None, action: str, target: Standing
) -> None:
    if action in ABOUT_A_USER and target.role == OWNER:
        raise AdmissionRefused("NOT_ALLOWED", "nobody acts on the owner of a room")
    if actor_id is None:
        return
    role = standing_of(head, standings, actor_id).role
    if role == OWNER:
        return
    if role != MODERATOR or action in _OWNERS_ONLY or target.role == MODERATOR:
        raise AdmissionRefused("NOT_ALLOWED", "your role in this room does not permit this")


def _standing_after(action: str, before: Standing, until_ms: int) -> Standing:
    match action:
        case "mute":
            return before._replace(muted_until=until_ms or FOREVER_MS)
        case "unmute":
            return before._replace(muted_until=0)
        case "kick":
            return Standing(PLAIN, before.muted_until, until_ms)
        case "add_moderator":
            return before._replace(role=MODERATOR, banned_until=0)
        case "add_member":
            kept = MODERATOR if before.role == MODERATOR else MEMBER
            return before._replace(role=kept, banned_until=0)
        case _:
            return before._replace(role=PLAIN)


class TokenBucket:
    """At most `per_s` in a second, `burst` at once. Time comes in as an argument (seconds, any zero)."""

    __slots__ = ("_at_s", "_left", "burst", "per_s")

    def __init__(self, per_s: float, burst: float | None = None) -> None:
        self.per_s, self.burst = per_s, per_s if burst is None else burst
        self._left, self._at_s = self.burst, 0.0

    def wait_ms(self, now_s: float) -> int:
        """0: taken; else the milliseconds until there is one."""
        self._left = min(self.burst, self._left + max(0.0, now_s - self._at_s) * self.per_s)
        self._at_s = now_s
        if self._left >= 1.0:
            self._left -= 1.0
            return 0
        return max(1, int((1.0 - self._left) / self.per_s * 1_000) + 1)
