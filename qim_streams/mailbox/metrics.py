"""Prometheus metrics of the mailbox stage, updated once per batch. No label is unbounded.

A shard that does not advance is seen in `WATERMARK`; how far the log is ahead of it, in records and seconds,
in the lag of its partition (``streaming.lag``).
"""

import contextlib
from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

from qim_streams.mailbox.intake import Kind, Taken

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)

RECORDS = Counter("qim_mailbox_records_total", "Dispatch records by what became of them", ("outcome",))
ENTRIES = Counter("qim_mailbox_entries_total", "Mailbox entries written")
CALLS = Counter("qim_mailbox_store_calls_total", "Store calls by kind", ("kind",))
MAILBOXED = Histogram(
    "qim_mailbox_mailboxed_seconds",
    "From commit to the W that covers it, oldest of a batch",
    buckets=_SECONDS,
)
SLICES = Counter("qim_mailbox_slices_total", "Slices of large records by their turn", ("turn",))
OLDEST = Gauge(
    "qim_mailbox_oldest_uncovered_seconds",
    "For how long the oldest record that was read waits for W, per shard",
    ("shard",),
)
WATERMARK = Gauge("qim_mailbox_watermark_seq", "W of a MailboxShard: what all of its lanes cover", ("shard",))
ALARMS = Counter("qim_mailbox_alarms_total", "What an operator must look at", ("kind",))
"""Kinds: forged_repeat (a dispatch_id came again with other content), members_missing (a member bitmap is
gone), store_refused (a mailbox refuses its entry), lane_stall (a shard was given up because records waited
for too long), lane_stall_nobody_else (and there is no other worker to take it), store_fell_back (W was found
lower than it was), epoch_fell_back (the lease store gave an old epoch again),
trim_failed (a shard was not trimmed by age in this round)."""

TRIMMED = Counter("qim_mailbox_trimmed_entries_total", "Entries that left their mailboxes by age")
TRIMMED_MAILBOXES = Counter("qim_mailbox_trimmed_mailboxes_total", "Mailboxes looked at to trim by age")
TRIM_STEP = Histogram(
    "qim_mailbox_trim_step_seconds",
    "One step of trimming by age, as its caller sees it",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0),
)
TRIM_ROUND = Gauge("qim_mailbox_trim_round_seconds", "How long the last round over all shards took")


def forget(shard: int) -> None:
    """The shard is somebody else's now: two workers must not both report W."""
    with contextlib.suppress(KeyError):  # never reported
        WATERMARK.remove(str(shard))


def count(taken: Sequence[Taken], now_ms: int, *, with_age: bool) -> None:
    """Count a batch by kinds; `with_age`: W covers it, so it is told how old its oldest new record was."""
    kinds = [one.kind for one in taken]
    for kind in Kind:
        found = kinds.count(kind)
        if found:
            RECORDS.labels(kind.value).inc(found)
    new = Kind.NEW
    ages = [one.dispatch.committed_at for one in taken if one.kind is new and one.dispatch is not None]
    if ages and with_age:
        MAILBOXED.observe(max(0.0, (now_ms - min(ages)) / 1000))
