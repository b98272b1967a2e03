"""Failpoints: places where a test may kill, pause, delay or break a real process.

``QIM_FAILPOINT=name:nth:action`` arms one (several are separated by commas); `nth` counts hits from 1;
actions are ``kill`` (SIGKILL to itself), ``pause`` (SIGSTOP), ``delay_MS`` and ``raise``. Unarmed, a hit
is one look-up in an empty dictionary. ``QIM_FAILPOINT_LATCH=DIR`` makes each arm fire once across
restarts: a file in DIR, which holds the pid, marks it as spent, so that a supervised process does not die
for ever.

``QIM_FAILPOINT_FILE=PATH`` arms a process while it runs: the file's first line is what QIM_FAILPOINT would
say, its second one the directory of the latch. It is read at the start and, by a thread, whenever it is
replaced; a file that is not there arms nothing.

Every name used in the product stands in `NAMES`; a test holds them against the code. Steps that one script of
a store does at once have one point: the dedup row, the number and the record of a message
(``writer.committed_in_redis``); lease, epoch and boundary of a grant (``takeover.lease_granted``).

Spec: reliability of §3 to §7, §11.
"""

import logging
import os
import signal
import threading
import time
from pathlib import Path

from qim_streams.errors import ConfigError

log = logging.getLogger(__name__)

FOLLOW_EVERY_S = 0.05
NAMES = frozenset(
    {
        "writer.admitted",
        "writer.committed_in_redis",
        "writer.produce_sent",
        "writer.produce_acked",
        "writer.ack_sent",
        "writer.barrier_appended",
        "writer.hot_tier_repaired",
        "writer.partition_proved",
        "membership.changed_in_redis",
        "membership.change_logged",
        "relay.pending_read",
        "relay.pending_appended",
        "fanout.outbox_polled",
        "fanout.membership_pinned",
        "fanout.dispatch_appended_first",
        "fanout.dispatch_appended_some",
        "fanout.dispatch_appended_but_one",
        "fanout.all_appended",
        "fanout.page_durable",
        "takeover.lease_granted",
        "takeover.watermark_recomputed",
        "takeover.readers_told",
        "takeover.serving",
        "takeover.replay_partial",
        "mailbox.dispatch_polled",
        "mailbox.bitmap_loaded",
        "mailbox.entries_partial",
        "mailbox.entries_durable",
        "mailbox.pages_sent",
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
        "gateway.shard_granted",
        "gateway.push_log_read",
        "gateway.presence_noted",
        "gateway.presence_appended",
        "rooms.mark_appended",
        "rooms.seq_assigned",
        "rooms.record_written",
        "rooms.checkpoint_noted",
        "notification.tasks_accepted",
        "notification.sends_begun",
        "notification.answered",
        "notification.results_appended",
        "notification.settled",
        "webhook.batch_read",
        "webhook.delivered",
        "webhook.batch_told",
        "shard.planned",
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


_armed: dict[str, tuple[int, str]] = {}  # replaced as a whole: a thread may do it
_hits: dict[str, int] = {}
_latch: Path | None = None


def arm(spec: str, latch_dir: str | None = None) -> None:
    """Arm the failpoints of `spec` (see the module text); ConfigError names what is wrong."""
    global _armed, _hits, _latch
    armed = {}
    for part in filter(None, (piece.strip() for piece in spec.split(","))):
        name, nth, action = [*part.split(":"), "", ""][:3]
        known = action in {"kill", "pause", "raise"} or action.removeprefix("delay_").isdigit()
        if name not in NAMES or not nth.isdigit() or int(nth) < 1 or not known:
            raise ConfigError(
                f"QIM_FAILPOINT: {part!r} is not NAME:NTH:ACTION with a known name and an action "
                "kill, pause, raise or delay_MS"
            )
        armed[name] = (int(nth), action)
    _armed = {}
    _hits, _latch = {}, Path(latch_dir) if latch_dir else None
    _armed = armed


def armed(name: str) -> bool:
    """Whether `name` is armed: for points that need the work cut in two to exist at all."""
    return name in _armed


def hit(name: str) -> None:
    """Mark that the process is at `name`; does what was armed for this hit, else nothing."""
    if not _armed:
        return
    found = _armed.get(name)
    if found is None:
        return
    nth, action = found
    count = _hits[name] = _hits.get(name, 0) + 1
    if count == nth and not _spent(name):
        _act(name, action)


def follow(path: Path, every_s: float = FOLLOW_EVERY_S) -> threading.Thread:
    """Arm what the file says, now and whenever it is replaced, in a thread of its own until the process ends.

    ConfigError when it says something wrong now; later that is logged, and what was armed stays.
    """
    seen = _read(path, None)

    def run() -> None:
        nonlocal seen
        while True:
            time.sleep(every_s)
            try:
                seen = _read(path, seen)
            except ConfigError as error:
                log.error("%s: %s", path, error)
                seen = _mark(path)

    thread = threading.Thread(target=run, name="failpoints", daemon=True)
    thread.start()
    return thread


def _mark(path: Path) -> tuple[int, int] | None:
    """Tells one file at `path` from the next; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _read(path: Path, seen: tuple[int, int] | None) -> tuple[int, int] | None:
    """Arm what a file that is not `seen` says; its mark."""
    mark = _mark(path)
    if mark == seen:
        return seen
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []  # it is gone: nothing is armed
    spec, latch = [*lines, "", ""][:2]
    arm(spec, latch or None)
    return mark


def _spent(name: str) -> bool:
    if _latch is None:
        return False
    try:
        spent = os.open(_latch / f"{name}.spent", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return True
    os.write(spent, b"%d" % os.getpid())
    os.close(spent)
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
if os.environ.get("QIM_FAILPOINT_FILE"):
    follow(Path(os.environ["QIM_FAILPOINT_FILE"]))
