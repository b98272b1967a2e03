"""Records of offline push, field by field; a record is a frozen value with `encode()` and a `decode_*`.

* `PushTask`: a message for a device that had no valid presence (``qim.push-task.v1``).
* `PushDevice`: a device that asked for notifications, and where a provider finds it.
* `PushSettings`: when a user does not want to be disturbed.
* `PushResult`: what became of a notification, for the application (``qim.push-result.v1``).

Devices and settings lie in ``qim.push-device.v1`` (compacted) and, for reading, in Redis. Tokens are secrets
of a kind: nobody logs a `PushDevice`, and its repr leaves the token out.

Spec: §6.
"""

from typing import Any, NamedTuple

from blake3 import blake3

from qim_streams.codec import Layout, pack_fields
from qim_streams.errors import RecordError
from qim_streams.ids import ID_BYTES
from qim_streams.records import record_key

SETTINGS_NAME = "."  # stands where a device's name stands; no id begins with it
NO_HOURS = -1
TASK_ID_BYTES = 16
_ID_DOMAIN = b"qim.push-task.v1\0"

_new = tuple.__new__


class PushTask(NamedTuple):
    """Tell one device of one message, without its body; the Kafka key is ``tenant NUL user NUL device``."""

    tenant_id: str
    user_id: str
    ordinal: int
    device_id: str
    message_id: bytes
    conversation_id: str
    conversation_seq: int
    sender_id: str
    committed_at: int  # milliseconds
    made_at: int  # milliseconds: when the device was found without presence
    mailbox_shard: int
    extra: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """The record's bytes."""
        return pack_fields(self[:11] + self.extra)

    @property
    def key(self) -> bytes:
        """The Kafka key."""
        return record_key(self.tenant_id, self.user_id, self.device_id)

    @property
    def task_id(self) -> bytes:
        """16 bytes: the same for the same (tenant, user, device, message), whatever made the task again."""
        return blake3(_ID_DOMAIN + self.key + b"\0" + self.message_id).digest(TASK_ID_BYTES)


_TASK = Layout("PushTask", str, str, int, str, bytes, str, int, str, int, int, int)


def decode_task(data: bytes) -> PushTask:
    """A PushTask from its bytes; RecordError if they are not one."""
    fields = _TASK.read(data)
    if len(fields[4]) != ID_BYTES:
        raise RecordError(f"PushTask: an id of {len(fields[4])} bytes, expected {ID_BYTES}")
    return _new(PushTask, (*fields[:11], fields[11:]))


class PushDevice(NamedTuple):
    """A registered device. `version` orders registrations of a device (milliseconds, larger than before).

    `app`: what the provider calls the application (APNs topic); empty: the provider's default.
    `dead`: why the provider refused the token for good; empty while it is good. A dead one has no token.
    """

    tenant_id: str
    user_id: str
    ordinal: int
    device_id: str
    provider: str
    app: str
    token: str
    version: int
    dead: str = ""
    extra: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """The record's bytes."""
        return pack_fields(self[:9] + self.extra)

    def __repr__(self) -> str:
        return f"PushDevice({self.tenant_id}, {self.user_id}, {self.device_id}, {self.provider})"


_DEVICE = Layout("PushDevice", str, str, int, str, str, str, str, int, str)


def decode_device(data: bytes) -> PushDevice:
    """A PushDevice from its bytes; RecordError if they are not one."""
    fields = _DEVICE.read(data)
    return _new(PushDevice, (*fields[:9], fields[9:]))


class PushSettings(NamedTuple):
    """When a user is left alone. Minutes of the day in `time_zone` (IANA); `NO_HOURS`: never.

    `mentions_break_quiet`: a message that names the user comes all the same in those hours.
    """

    tenant_id: str
    user_id: str
    quiet_from_min: int = NO_HOURS  # inclusive
    quiet_to_min: int = NO_HOURS  # exclusive; below quiet_from_min: over midnight
    time_zone: str = "UTC"
    mentions_break_quiet: bool = False
    version: int = 0
    extra: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """The record's bytes."""
        return pack_fields(self[:7] + self.extra)


_SETTINGS = Layout("PushSettings", str, str, int, int, str, bool, int)


def decode_settings(data: bytes) -> PushSettings:
    """PushSettings from their bytes; RecordError if they are not that."""
    fields = _SETTINGS.read(data)
    return _new(PushSettings, (*fields[:7], fields[7:]))


class PushResult(NamedTuple):
    """What became of a notification; the Kafka key is ``tenant NUL user``.

    `outcome`: a word of `rules.outcome_of`. `reason`: the provider's own word, or ours; empty for "sent".
    """

    tenant_id: str
    user_id: str
    device_id: str
    notification_id: bytes  # the task's id: 16 bytes, the same in each attempt
    message_id: bytes
    conversation_id: str
    conversation_seq: int
    provider: str
    outcome: str
    reason: str
    committed_at: int  # milliseconds
    at: int  # milliseconds: when it was over
    extra: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """The record's bytes."""
        return pack_fields(self[:12] + self.extra)

    @property
    def key(self) -> bytes:
        """The Kafka key."""
        return record_key(self.tenant_id, self.user_id)


_RESULT = Layout("PushResult", str, str, str, bytes, bytes, str, int, str, str, str, int, int)


def decode_result(data: bytes) -> PushResult:
    """A PushResult from its bytes; RecordError if they are not one."""
    fields = _RESULT.read(data)
    if (len(fields[3]), len(fields[4])) != (TASK_ID_BYTES, ID_BYTES):
        raise RecordError(f"PushResult: ids of {len(fields[3])} and {len(fields[4])} bytes, expected 16 each")
    return _new(PushResult, (*fields[:12], fields[12:]))
