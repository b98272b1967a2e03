"""The kill matrix: which point of the product is struck how, and what makes a process pass it. Pure.

A strike is (point, action, seed). The seed decides at which hit of the point the process is struck, which
process is restarted to make one pass a point of its start, and the workload. A plan is a function of the
master seed, so a run can be cut into slices and gone on with.

Spec: §3 to §7, §9 to §11.
"""

import hashlib
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ACTIONS: Final = ("kill", "pause")
ROOMS: Final = "rooms"


@dataclass(frozen=True, slots=True)
class Point:
    """A failpoint as the matrix strikes it.

    `role`: whose processes pass it. `nth_max`: the strike comes at hit 1 to this one of a process's life.
    `restart`: only a start passes it: a process of the role is killed. `before`: another point at which a
    process dies first, so that the one after it has something to do at this point.
    """

    role: str
    nth_max: int
    restart: bool = False
    before: str = ""


def _start(role: str, nth_max: int = 1, before: str = "") -> Point:
    return Point(role, nth_max, restart=not before, before=before)


POINTS: Final[Mapping[str, Point]] = {
    # struck first: what only starts pass, and what was never struck before there was a matrix
    "takeover.lease_granted": _start("mailbox", 2),
    "takeover.watermark_recomputed": _start("mailbox", 2),
    "takeover.readers_told": _start("mailbox", 2),
    "takeover.serving": _start("mailbox", 2),
    "takeover.replay_partial": _start("mailbox"),
    "writer.barrier_appended": _start("writer", 2),
    "writer.hot_tier_repaired": _start("writer", 2),
    "writer.partition_proved": _start("writer", 2),
    "membership.changed_in_redis": Point("writer", 6),
    "membership.change_logged": Point("writer", 6),
    "fanout.dispatch_appended_first": Point("fanout", 20),
    "fanout.dispatch_appended_but_one": Point("fanout", 20),
    "fanout.page_durable": Point("fanout", 5),
    "mailbox.pages_sent": Point("mailbox", 5),
    "gateway.shard_granted": _start("gateway"),
    "gateway.push_log_read": _start("gateway"),
    "gateway.presence_noted": Point("gateway", 3),
    "gateway.presence_appended": Point("gateway", 3),
    "rooms.mark_appended": _start("rooms", 2),
    "rooms.seq_assigned": Point("rooms", 20),
    "rooms.record_written": Point("rooms", 20),
    "rooms.checkpoint_noted": Point("rooms", 3),
    "writer.admitted": Point("writer", 60),
    "writer.committed_in_redis": Point("writer", 60),
    "writer.produce_sent": Point("writer", 60),
    "writer.produce_acked": Point("writer", 60),
    "writer.ack_sent": Point("writer", 60),
    "relay.pending_read": _start("writer", 2),
    "relay.pending_appended": _start("writer", before="writer.committed_in_redis"),
    "fanout.outbox_polled": Point("fanout", 40),
    "fanout.membership_pinned": Point("fanout", 40),
    "fanout.dispatch_appended_some": Point("fanout", 20),
    "fanout.all_appended": Point("fanout", 40),
    "mailbox.dispatch_polled": Point("mailbox", 40),
    "mailbox.bitmap_loaded": Point("mailbox", 40),
    "mailbox.entries_partial": Point("mailbox", 20),
    "mailbox.entries_durable": Point("mailbox", 20),
    "mailbox.progress_marked": Point("mailbox", 5),
    "mailbox.slice_written": Point("mailbox", 10),
    "mailbox.all_chunks_done": Point("mailbox", 4),
    "mailbox.watermark_advanced": Point("mailbox", 40),
    "mailbox.pushed": Point("mailbox", 40),
    "qsession.dispatch_polled": Point("qsession", 20),
    "qsession.rows_partial": Point("qsession", 10),
    "qsession.rows_written": Point("qsession", 20),
    "qsession.checkpoint_moved": Point("qsession", 10),
    "qsession.wide_partial": Point("qsession", 2),
    "archiver.batch_partial": Point("archiver", 8),
    "archiver.batch_durable": Point("archiver", 10),
    "archiver.watermark_published": Point("archiver", 10),
    "gateway.auth_ok_sent": Point("gateway", 12),
    "gateway.mailbox_batch_partial": Point("gateway", 8),
    "gateway.sync_complete_checked": Point("gateway", 8),
    "gateway.push_partial": Point("gateway", 60),
}


@dataclass(frozen=True, slots=True)
class Strike:
    """One cell of the matrix, one repeat of it."""

    point: str
    action: str
    seed: int
    repeat: int = 0

    @property
    def name(self) -> str:
        """What it is called in tables and in the file of results."""
        return f"{self.point}:{self.action}:{self.repeat}"

    @property
    def nth(self) -> int:
        """The hit of a process's life at which it is struck."""
        return random.Random(self.seed).randint(1, POINTS[self.point].nth_max)

    @property
    def arms(self) -> str:
        """What a failpoint file says."""
        before = POINTS[self.point].before
        first = f"{before}:{1 + self.seed % 10}:kill," if before else ""
        return f"{first}{self.point}:{self.nth}:{self.action}"


def plan(
    master_seed: int,
    points: Sequence[str] = tuple(POINTS),
    actions: Sequence[str] = ACTIONS,
    repeats: int = 1,
) -> list[Strike]:
    """Every strike of a run, in order: all points by one action, then by the next, then again."""
    return [
        Strike(point, action, _seed(master_seed, point, action, repeat), repeat)
        for repeat in range(repeats)
        for action in actions
        for point in points
    ]


def _seed(master_seed: int, *parts: object) -> int:
    text = ":".join(map(str, (master_seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 1_000_000


def slice_of(strikes: Sequence[Strike], number: int, of: int) -> list[Strike]:
    """Slice `number` (from 1) of `of`; ValueError for one that does not exist."""
    if not 1 <= number <= of:
        raise ValueError(f"slice {number}/{of}: write N/M with 1 <= N <= M")
    return list(strikes[number - 1 :: of])


def remaining(strikes: Sequence[Strike], done: Collection[str]) -> Iterator[Strike]:
    """What is not done yet, by name."""
    return (one for one in strikes if one.name not in done)
