"""Failpoints: places where a test may kill, pause, delay or break a real process.

``QIM_FAILPOINT=name:nth:action`` arms one (several are separated by commas); `nth` counts hits from 1;
actions are ``kill`` (SIGKILL to itself), ``pause`` (SIGSTOP), ``delay_MS`` and ``raise``. Unarmed, a hit
is one look-up in an empty dictionary. ``QIM_FAILPOINT_LATCH=DIR`` makes each arm fire once across
restarts: a file in DIR marks it as spent, so that a supervised process does not die for ever.

Every name used in the product stands in `NAMES`; a test holds them against the code.

Spec: reliability of §3 to §7.
"""

import os
import signal
import time
from pathlib import Path

from qim_streams.errors import ConfigError

NAMES = frozenset(
    {
        "writer.admitted",
        "writer.committed_in_redis",
        "writer.produce_sent",
        "writer.produce_acked",
        "writer.ack_sent",
        "relay.pending_read",
        "relay.pending_appended",
        "fanout.outbox_polled",
        "fanout.membership_pinned",
        "fanout.dispatch_appended_some",
        "fanout.all_appended",
        "mailbox.dispatch_polled",
        "mailbox.bitmap_loaded",
        "mailbox.entries_partial",
        "mailbox.entries_durable",
        "mailbox.progress_marked",
        "mailbox.slice_written",
        "mailbox.all_chunks_done",
        "mailbox.watermark_advanced",
        "mailbox.pushed",
        "qsession.dispatch_polled",
        "qsession.rows_partial",
        "qsession.rows_written",
        "qsession.checkpoint_moved",
        "qsession.wide_partial",
        "archiver.batch_partial",
        "archiver.batch_durable",
        "archiver.watermark_published",
        "gateway.auth_ok_sent",
        "gateway.mailbox_batch_partial",
        "gateway.sync_complete_checked",
        "gateway.push_partial",
        "webhook.delivered",
        "shard.prepared",
        "shard.marked_some",
        "shard.all_marked",
        "shard.marks_noted",
        "shard.ends_read",
        "shard.settled",
    }
)


class FailpointError(RuntimeError):
    """What an armed ``raise`` throws: an unforeseen error, on purpose outside the error tree."""


_armed: dict[str, tuple[int, str]] = {}
_hits: dict[str, int] = {}
_latch: Path | None = None


def arm(spec: str, latch_dir: str | None = None) -> None:
    """Arm the failpoints of `spec` (see the module text); ConfigError names what is wrong."""
    global _latch
    _armed.clear()
    _hits.clear()
    _latch = Path(latch_dir) if latch_dir else None
    for part in filter(None, (piece.strip() for piece in spec.split(","))):
        name, nth, action = [*part.split(":"), "", ""][:3]
        known = action in {"kill", "pause", "raise"} or action.removeprefix("delay_").isdigit()
        if name not in NAMES or not nth.isdigit() or int(nth) < 1 or not known:
            raise ConfigError(
                f"QIM_FAILPOINT: {part!r} is not NAME:NTH:ACTION with a known name and an action "
                "kill, pause, raise or delay_MS"
            )
        _armed[name] = (int(nth), action)


def armed(name: str) -> bool:
    """Whether `name` is armed: for points that need the work cut in two to exist at all."""
    return name in _armed


def hit(name: str) -> None:
    """Mark that the process is at `name`; does what was armed for this hit, else nothing."""
    if not _armed:
        return
    if name not in _armed:
        return
    _hits[name] = _hits.get(name, 0) + 1
    nth, action = _armed[name]
    if _hits[name] == nth and not _spent(name):
        _act(name, action)


def _spent(name: str) -> bool:
    if _latch is None:
        return False
    try:
        os.close(os.open(_latch / f"{name}.spent", os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return True
    return False


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "raise":
        raise FailpointError(f"failpoint {name}")
    else:
        time.sleep(int(action.removeprefix("delay_")) / 1000)


arm(os.environ.get("QIM_FAILPOINT", ""), os.environ.get("QIM_FAILPOINT_LATCH"))
