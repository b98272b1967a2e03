"""What both workers of the baseline share: names, where the servers are, and a stock Faust application."""

import os
from typing import Any

import faust

OUTBOX, DISPATCH, PUSH = "baseline.outbox", "baseline.dispatch", "baseline.push"
PINNED_CHANGELOG = "baseline-fanout-pinned-changelog"  # as Faust names them
WATERMARKS_CHANGELOG = "baseline-mailbox-watermarks-changelog"
ENTRY_KEYS = "baseline:mb:"
BROKERS, REDIS_URL, DATA_DIR = "BASELINE_BROKERS", "BASELINE_REDIS_URL", "BASELINE_DATA_DIR"
OUTBOX_PARTITIONS, SHARDS, PUSH_PARTITIONS = "BASELINE_OUTBOX", "BASELINE_SHARDS", "BASELINE_PUSH"


def number(name: str) -> int:
    """A count from the environment."""
    return int(os.environ[name])


def make_app(name: str) -> Any:
    """A Faust application with the settings that the comparison needs, defaults for all others."""
    return faust.App(
        f"baseline-{name}",
        broker=f"kafka://{os.environ[BROKERS]}",
        store="rocksdb://",
        datadir=os.environ[DATA_DIR],
        key_serializer="raw",
        value_serializer="raw",
        producer_acks=-1,
        consumer_auto_offset_reset="earliest",
        table_standby_replicas=0,  # one worker: there is nowhere to put a replica
        topic_disable_leader=True,
        web_enabled=False,
        autodiscover=False,
    )
