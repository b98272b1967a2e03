"""What a task becomes, decided from what is known at the moment of sending. Pure.

Who is told nothing: a device that registered no token or has logged out, one that came online since, a user
who has read the message, deleted it or muted its conversation, a user in his quiet hours, a message that was
recalled or is older than the age limit. A mention by name goes through a mute; through quiet hours only if
the user said so.

Spec: §6. Scenarios H5 H10.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from qim_streams.mentions import MENTION_USER
from qim_streams.notification.records import NO_HOURS, PushDevice, PushSettings, PushTask
from qim_streams.placement import key_partition
from qim_streams.records import STATE_RECALLED

# A device that signs on while its message is on the way: AUTH is written before presence reaches the mailbox
# stage, so a session that began this long before the task was online then, too.
SIGNING_ON_MS: Final = 1_000
DAY_MINUTES: Final = 24 * 60
SENT: Final = "sent"  # handed to the provider, nothing more
DEAD: Final = "dead"  # the provider takes the token no more
FAILED: Final = "failed"  # nobody can say that the provider has it
_TOLD: Final = {"sent": SENT, "dead": DEAD} | dict.fromkeys(
    ("refused", "gave_up", "unknown", "expired"), FAILED
)
_TIME_ZONES_MAX: Final = 1_024


class Known(NamedTuple):
    """What is known of a task's user and message. None: there is none.

    `session_epoch`: when the device's newest session began, in ms; `ended`: by another device's login.
    `mention`: how the message names the user. `state`: of the message; None: the message is nowhere to be
    found."""

    device: PushDevice | None
    settings: PushSettings | None
    session_epoch: int
    ended: bool
    read_seq: int
    deleted_to_seq: int
    deleted: tuple[int, ...]
    muted: bool
    mention: int
    state: int | None


def why_not(task: PushTask, known: Known, now_ms: int, age_max_ms: int) -> str | None:
    """Why nobody is told; None: tell the device. The words are those of the metric."""
    device, seq = known.device, task.conversation_seq
    if now_ms - task.committed_at > age_max_ms:
        return "expired"
    if device is None or device.dead:
        return "no_device"
    if known.ended:
        return "logged_out"
    if known.session_epoch >= task.made_at - SIGNING_ON_MS:
        return "online"
    if known.state is None:
        return "no_message"
    if known.state == STATE_RECALLED:
        return "recalled"
    if seq <= max(known.read_seq, known.deleted_to_seq) or seq in known.deleted:
        return "read"
    named = known.mention == MENTION_USER
    if known.muted and not named:
        return "muted"
    settings = known.settings
    if settings is not None and is_quiet(settings, now_ms) and not (named and settings.mentions_break_quiet):
        return "quiet"
    return None


def outcome_of(why: str, *, interrupted: bool) -> str | None:
    """What the application is told of a notification that is over for `why`; None: nothing.

    What its user's own doing let go (read, muted, quiet, online, logged out) is no result, unless an attempt
    was begun of which nobody knows how it ended.
    """
    return _TOLD.get(why, FAILED if interrupted else None)


def is_quiet(settings: PushSettings, now_ms: int) -> bool:
    """Whether the user's quiet hours are on. An unknown time zone counts as UTC."""
    begin, end = settings.quiet_from_min, settings.quiet_to_min
    if NO_HOURS in (begin, end) or begin == end:
        return False
    local = datetime.fromtimestamp(now_ms / 1_000, UTC).astimezone(time_zone(settings.time_zone) or UTC)
    minute = local.hour * 60 + local.minute
    return begin <= minute < end if begin < end else minute >= begin or minute < end


@lru_cache(maxsize=_TIME_ZONES_MAX)
def time_zone(name: str) -> ZoneInfo | None:
    """The zone of an IANA name, None when there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def task_partition(task: PushTask, partitions: int) -> int:
    """The partition of ``qim.push-task.v1`` that a task goes to: all of a device in one, in order."""
    return key_partition(b"qim.push-task.key\0", task.key, partitions)


def backoff_ms(attempt: int, first_ms: int, last_ms: int, chance: float) -> int:
    """Delay before attempt `attempt` + 1 (attempts from 1): doubles up to `last_ms`, half of it by chance."""
    full = min(last_ms, first_ms * 2 ** min(attempt - 1, 20))
    return int(full * (0.5 + chance / 2))
