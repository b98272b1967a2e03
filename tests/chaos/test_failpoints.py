"""Every named point of the product dies once by SIGKILL, on itself, at exactly that point, under traffic.

The points are armed in every process of one stack; a latch makes each fire once over all restarts. Traffic
runs until all have fired; a point that never does is named. The long form freezes instead of killing.

T-K2; reliability of §3 to §7.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from qim_streams import failpoints
from tests.chaos.conftest import StartStack, UnderTraffic, new_seed
from tests.support.looking import Looking
from tests.support.processes import is_stopped
from tests.support.stack import StackProcess
from tests.support.traffic import Plan

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

DEADLINE_S = 300.0
LOOK_S = 0.1
FREEZE_S = 7.0  # more than twice the lease and the session timeout of the test stack
# Which hit of a process's life kills it. The points of one role are staggered, so that it gets somewhere
# between two deaths; a point that only a start passes dies at its first hit.
NTH = {
    "writer.admitted": 60,
    "writer.committed_in_redis": 10,
    "writer.produce_sent": 18,
    "writer.produce_acked": 26,
    "writer.ack_sent": 34,
    "relay.pending_read": 2,  # a start reads once per partition at least, and there are two
    "relay.pending_appended": 1,
    "fanout.outbox_polled": 14,
    "fanout.membership_pinned": 10,
    "fanout.dispatch_appended_some": 6,
    "fanout.all_appended": 20,
    "mailbox.dispatch_polled": 26,
    "mailbox.bitmap_loaded": 20,
    "mailbox.entries_partial": 6,
    "mailbox.entries_durable": 10,
    "mailbox.progress_marked": 32,
    "mailbox.slice_written": 7,
    "mailbox.all_chunks_done": 3,
    "mailbox.watermark_advanced": 16,
    "mailbox.pushed": 13,
    "qsession.dispatch_polled": 14,
    "qsession.rows_partial": 6,
    "qsession.rows_written": 18,
    "qsession.checkpoint_moved": 10,
    "qsession.wide_partial": 2,
    "archiver.batch_partial": 4,
    "archiver.batch_durable": 8,
    "archiver.watermark_published": 12,
    "gateway.auth_ok_sent": 12,
    "gateway.mailbox_batch_partial": 8,
    "gateway.sync_complete_checked": 5,
    "gateway.push_partial": 60,
}


# Points of what a common stack does not do, and the tests that arm them.
ELSEWHERE = {
    **{
        f"shard.{step}": "tests/chaos/test_shard_split.py"
        for step in (
            "planned",
            "prepared",
            "marked_some",
            "all_marked",
            "marks_noted",
            "ends_read",
            "settled",
        )
    },
    **dict.fromkeys(
        (
            "webhook.batch_read",
            "webhook.delivered",
            "webhook.batch_told",
            "notification.tasks_accepted",
            "notification.sends_begun",
            "notification.answered",
            "notification.results_appended",
            "notification.settled",
        ),
        "tests/chaos/test_push_results.py",
    ),
    **dict.fromkeys(
        (
            "takeover.lease_granted",
            "takeover.watermark_recomputed",
            "takeover.readers_told",
            "takeover.serving",
            "takeover.replay_partial",
            "writer.barrier_appended",
            "writer.hot_tier_repaired",
            "writer.partition_proved",
            "membership.changed_in_redis",
            "membership.change_logged",
            "fanout.dispatch_appended_first",
            "fanout.dispatch_appended_but_one",
            "fanout.page_durable",
            "mailbox.pages_sent",
            "gateway.shard_granted",
            "gateway.push_log_read",
            "gateway.presence_noted",
            "gateway.presence_appended",
            "rooms.mark_appended",
            "rooms.seq_assigned",
            "rooms.record_written",
            "rooms.checkpoint_noted",
        ),
        "tests/support/strikes.py",  # one by one, by the kill matrix
    ),
}


def start(start_stack: StartStack, latch: Path, action: str, *args: str) -> StackProcess:
    """A stack in which every point is armed. `latch` is the directory of what has fired."""
    latch.mkdir()
    env = {
        "QIM_FAILPOINT": ",".join(f"{name}:{nth}:{action}" for name, nth in NTH.items()),
        "QIM_FAILPOINT_LATCH": str(latch),
        # Few shards and a small write batch: the group of everybody is a large record in each shard.
        "QIM_MAILBOX_SHARDS": "4",
        "QIM_MAILBOX_WRITEBATCH_MAX_ENTRIES": "3",
        "QIM_SESSION_ROWS_PER_DISPATCH_MAX": "2",
    }
    return start_stack(f"failpoints-{action}", "--quick", *args, env=env)


def missing(latch: Path) -> list[str]:
    """The points that have not fired yet."""
    return sorted(name for name in NTH if not (latch / f"{name}.spent").exists())


def note(figures: dict[str, Any], latch: Path) -> None:
    """What fired, and what took longest."""
    fired = sorted((path.stat().st_mtime, path.stem) for path in latch.iterdir())
    figures["points fired"] = len(fired)
    figures["fired last"] = ", ".join(f"{name} after {at - fired[0][0]:.0f} s" for at, name in fired[-4:])
    print(f"points that did not fire: {missing(latch)}")


def test_every_name_is_armed() -> None:
    """The list above and the product's own agree."""
    assert NTH.keys() == failpoints.NAMES - ELSEWHERE.keys()


async def test_a_kill_at_every_point(
    start_stack: StartStack, tmp_path: Path, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-K2: between any two of its steps a process may die, and nothing is lost, doubled or reordered."""
    latch = tmp_path / "latch"
    stack = start(start_stack, latch, "kill")
    try:
        async with under_traffic(stack, Plan("points", new_seed(), silent=12)) as traffic:
            await traffic.until(lambda: not missing(latch), DEADLINE_S, "every point to fire")
            await traffic.more_acks(50)
    finally:
        note(figures, latch)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_a_freeze_at_every_point(
    start_stack: StartStack, tmp_path: Path, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-K2, T-Z1: at every point a process freezes till others have its partitions, then wakes a zombie."""
    latch = tmp_path / "latch"
    stack = start(start_stack, latch, "pause", "--workers", "fanout=2", "--workers", "mailbox=2")
    with Thaw(stack) as thaw:
        try:
            async with under_traffic(stack, Plan("freezes", new_seed(), silent=12)) as traffic:
                await traffic.until(lambda: not missing(latch), 2 * DEADLINE_S, "every point to fire")
                await traffic.until(lambda: not thaw.asleep(), 4 * FREEZE_S, "everybody to be awake")
                await traffic.more_acks(50)
        finally:
            note(figures, latch)
            figures["freezes"] = thaw.count


class Thaw(Looking):
    """Wakes what has stopped itself, `FREEZE_S` after it was seen. A thread: nothing else may be late."""

    def __init__(self, stack: StackProcess) -> None:
        super().__init__("thaw", LOOK_S)
        self._stack = stack
        self._since_s: dict[int, float] = {}
        self.count = 0

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for pid in self.asleep():
            os.kill(pid, signal.SIGCONT)

    def asleep(self) -> list[int]:
        """The pids of roles that are stopped now."""
        return [role.pid for role in self._stack.status().roles if role.pid and is_stopped(role.pid)]

    def look(self) -> None:
        """Who stands still for long enough goes on."""
        now_s = time.monotonic()
        for pid in self.asleep():
            if now_s - self._since_s.setdefault(pid, now_s) >= FREEZE_S:
                del self._since_s[pid]
                self.count += 1
                os.kill(pid, signal.SIGCONT)
