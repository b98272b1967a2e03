"""The frames of offline push: where a device wants notifications, and when a user does not. Parts of
``frames``.

Spec: §6 (offline).
"""

from typing import Annotated, Final, NamedTuple

from qim_streams import limits
from qim_streams.wire.frames_group import Rid
from qim_streams.wire.kinds import Bool, Int, ListOf, OneOf, Text, TextId, Token
from qim_streams.wire.schema import Schema, Struct

PROVIDERS = ("apns", "fcm", "webhook")
_ID = TextId()
_MINUTE = Int(0, 24 * 60 - 1)
_PROVIDER = OneOf(PROVIDERS)


class RegisterPush(NamedTuple):
    """Notify this device while it is not connected. Send it at each start: the token may be another one."""

    rid: Rid
    provider: Annotated[str, _PROVIDER, "whose token it is"]
    token: Annotated[str, Token(limits.PUSH_TOKEN_MAX), "what the provider gave to the application"]
    app: Annotated[str | None, TextId(), "APNs topic (bundle id); null: the server's default"] = None


class UnregisterPush(NamedTuple):
    """Log out: notify a device no more, not even of what is on its way."""

    rid: Rid
    device_id: Annotated[str | None, _ID, "another device of the user; null: this one"] = None


class SetPushSettings(NamedTuple):
    """When this user is not notified, on any device. Both minutes null: no quiet hours."""

    rid: Rid
    quiet_from_min: Annotated[int | None, _MINUTE, "minute of the day, inclusive"] = None
    quiet_to_min: Annotated[int | None, _MINUTE, "minute of the day, exclusive; may be after midnight"] = None
    time_zone: Annotated[str, Token(64), "IANA name of the zone that the minutes are in"] = "UTC"
    mentions_break_quiet: Annotated[bool, Bool(), "messages that name the user come all the same"] = False


class GetPush(NamedTuple):
    """Ask for the user's registrations and settings."""

    rid: Rid


class PushRegistration(NamedTuple):
    """A registered device, without its token."""

    device_id: Annotated[str, _ID, "the device"]
    provider: Annotated[str, _PROVIDER, "its provider"]
    app: Annotated[str | None, _ID, "as registered"] = None
    dead: Annotated[str | None, Text(64), "why the provider takes the token no more; null: it does"] = None


class PushState(NamedTuple):
    """Answer to the four above: how it is now."""

    rid: Rid
    devices: Annotated[
        list[PushRegistration], ListOf(Struct(Schema(PushRegistration)), limits.DEVICES_MAX), "by device"
    ]
    quiet_from_min: Annotated[int | None, _MINUTE, "null: no quiet hours"] = None
    quiet_to_min: Annotated[int | None, _MINUTE, "null: no quiet hours"] = None
    time_zone: Annotated[str, Token(64), "of the two"] = "UTC"
    mentions_break_quiet: Annotated[bool, Bool(), "as set"] = False


PushFrame = RegisterPush | UnregisterPush | SetPushSettings | GetPush
PushAnswer = PushState

CLIENT_FRAMES: Final[dict[str, Schema]] = {
    "REGISTER_PUSH": Schema(RegisterPush),
    "UNREGISTER_PUSH": Schema(UnregisterPush),
    "SET_PUSH_SETTINGS": Schema(SetPushSettings),
    "GET_PUSH": Schema(GetPush),
}
SERVER_FRAMES: Final[dict[str, Schema]] = {"PUSH_STATE": Schema(PushState)}
CLIENT_EXAMPLES: Final[dict[str, PushFrame]] = {
    "REGISTER_PUSH": RegisterPush(
        26, "apns", "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0"
    ),
    "UNREGISTER_PUSH": UnregisterPush(27),
    "SET_PUSH_SETTINGS": SetPushSettings(28, 22 * 60, 7 * 60, "Europe/Berlin", True),
    "GET_PUSH": GetPush(29),
}
SERVER_EXAMPLES: Final[dict[str, PushAnswer]] = {
    "PUSH_STATE": PushState(
        28, [PushRegistration("phone-1", "apns", "com.example.chat")], 22 * 60, 7 * 60, "Europe/Berlin", True
    ),
}
