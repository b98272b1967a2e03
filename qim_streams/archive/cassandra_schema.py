"""The schema of the Cassandra/ScyllaDB archive: CQL texts and the arithmetic of buckets. No driver here.

Five tables (``docs/archive.md`` has the reasons):

* ``messages``: one row per message, partitioned by (tenant, conversation, bucket), ordered by seq.
  bucket = conversation_seq // bucket_seqs, so a partition holds at most `bucket_seqs` rows.
* ``conversation_buckets``: which buckets above 0 a conversation has. A conversation that has not come so
  far needs no row; bucket 0 is always looked into.
* ``archive_watermarks``: the archive watermark of each Outbox partition; under the number -1 - partition the
  epoch of the last barrier that the archiver has passed (`ownership.log_fence`).
* ``user_conversation_state``: one row per user and conversation (Spec: §9), partitioned by user; the write
  timestamp is the state's version, so the highest stands.
* ``archive_layout``: the layout's version and `bucket_seqs`, written once by ``qim archive init``.

Every value that may be written more than once carries a write timestamp of its own instead of the clock's:
that of a message grows with its revision and, within one revision, falls with its Outbox offset; that of a
watermark is the watermark + 1. The store keeps the value with the highest timestamp, whatever the order in
which writes arrive or are repeated. So the highest revision stands, of two records of one revision the first
one in the log, and the highest watermark: no read before a write, no lightweight transaction. Hence no row
may be removed with DELETE and written again (the tombstone's timestamp, a time of day, is above ours);
TRUNCATE leaves none.

Spec: §2, §14.8.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qim_streams.errors import ConfigError

LAYOUT_VERSION = 1
LAYOUT_ID = "archive"
# With 12 bits of revision above, every stamp is a time before 2006: servers refuse times in the future, and
# what an operator deletes stays deleted. 38 bits of offset last 8 years at 1,000 records/s in a partition;
# beyond, the larger of two records of one seq stands.
_OFFSET_BITS: Final = 38
_OFFSET_MAX: Final = (1 << _OFFSET_BITS) - 2
BUCKET_SEQS_DEFAULT = 1_000  # 1 KB messages: 1 MB a partition; 64 KiB ones: 64 MB, below the advised 100
BUCKET_SEQS_MIN, BUCKET_SEQS_MAX = 10, 100_000
REPLICAS_MAX = 10
KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")
_DATACENTER = re.compile(r"[A-Za-z0-9_.-]{1,64}")

INSERT_MESSAGE = (
    "INSERT INTO messages (tenant_id, conversation_id, bucket, conversation_seq, record) "
    "VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
INSERT_BUCKET = (
    "INSERT INTO conversation_buckets (tenant_id, conversation_id, bucket) VALUES (?, ?, ?) USING TIMESTAMP 1"
)
INSERT_WATERMARK = (
    "INSERT INTO archive_watermarks (outbox_partition, watermark) VALUES (?, ?) USING TIMESTAMP ?"
)
SELECT_WATERMARK = "SELECT watermark FROM archive_watermarks WHERE outbox_partition = ?"
SELECT_RECORDS = (
    "SELECT conversation_seq, record FROM messages "
    "WHERE tenant_id = ? AND conversation_id = ? AND bucket = ? AND conversation_seq IN ?"
)
_RANGE = (
    "SELECT conversation_seq, record, WRITETIME(record) AS stamp FROM messages "
    "WHERE tenant_id = ? AND conversation_id = ? AND bucket = ? "
    "AND conversation_seq >= ? AND conversation_seq <= ? ORDER BY conversation_seq {order} LIMIT ?"
)
SELECT_RANGE = _RANGE.format(order="ASC")
SELECT_RANGE_BACK = _RANGE.format(order="DESC")
_BUCKETS = (
    "SELECT bucket FROM conversation_buckets WHERE tenant_id = ? AND conversation_id = ? "
    "AND bucket >= ? AND bucket <= ? ORDER BY bucket {order} LIMIT ?"
)
SELECT_BUCKETS = _BUCKETS.format(order="ASC")
SELECT_BUCKETS_BACK = _BUCKETS.format(order="DESC")
INSERT_STATE = (
    "INSERT INTO user_conversation_state (tenant_id, user_id, conversation_id, version, state) "
    "VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
SELECT_STATES = (
    "SELECT conversation_id, version, state FROM user_conversation_state "
    "WHERE tenant_id = ? AND user_id = ? AND conversation_id > ? ORDER BY conversation_id ASC LIMIT ?"
)
SELECT_LAYOUT = "SELECT layout, bucket_seqs FROM archive_layout WHERE id = %s"


@dataclass(frozen=True, slots=True)
class Layout:
    """What ``archive_layout`` says."""

    version: int
    bucket_seqs: int


def message_stamp(revision: int, offset: int) -> int:
    """The write timestamp of a message: revision above, Outbox offset below and reversed. Never below 1."""
    reversed_offset = _OFFSET_MAX - min(max(offset, 0), _OFFSET_MAX)
    return (revision << _OFFSET_BITS) + reversed_offset + 1


def revision_of_stamp(stamp: int) -> int:
    """The revision that was written with `stamp`."""
    return stamp >> _OFFSET_BITS


def fence_row(partition: int) -> int:
    """Where the fence of a partition lies among the watermarks."""
    return -1 - partition


def watermark_stamp(watermark: int) -> int:
    """The write timestamp of a watermark from 0 on."""
    return watermark + 1


def replication(replicas: Mapping[str, int], factor: int) -> dict[str, str]:
    """The replication map of the keyspace: `replicas` by data centre, else `factor` in each.

    ConfigError names what is wrong.
    """
    for name, count in (replicas or {"replication_factor": factor}).items():
        if not _DATACENTER.fullmatch(name):
            raise ConfigError(f"--replicas: {name!r} is not the name of a data centre")
        if not 1 <= count <= REPLICAS_MAX:
            raise ConfigError(f"replicas of {name}: {count} is not between 1 and {REPLICAS_MAX}")
    counts = {name: str(count) for name, count in replicas.items()} or {"replication_factor": str(factor)}
    return {"class": "NetworkTopologyStrategy"} | counts


def create_statements(keyspace: str, replication_map: Mapping[str, str]) -> list[str]:
    """The CQL that makes keyspace and tables; each statement changes nothing where its object exists."""
    if not KEYSPACE.fullmatch(keyspace):
        raise ConfigError(
            f"cassandra_keyspace: {keyspace!r} must be a lower-case letter and up to 47 letters, digits or "
            "underscores; set QIM_CASSANDRA_KEYSPACE"
        )
    options = ", ".join(f"'{name}': '{value}'" for name, value in replication_map.items())
    return [
        f"CREATE KEYSPACE IF NOT EXISTS {keyspace}\n  WITH replication = {{{options}}}",
        f"CREATE TABLE IF NOT EXISTS {keyspace}.messages (\n"
        "  tenant_id text,\n"
        "  conversation_id text,\n"
        "  bucket bigint,\n"
        "  conversation_seq bigint,\n"
        "  record blob,\n"
        "  PRIMARY KEY ((tenant_id, conversation_id, bucket), conversation_seq)\n"
        ") WITH CLUSTERING ORDER BY (conversation_seq DESC)\n"
        "  AND compaction = {'class': 'LeveledCompactionStrategy'}",
        f"CREATE TABLE IF NOT EXISTS {keyspace}.conversation_buckets (\n"
        "  tenant_id text,\n"
        "  conversation_id text,\n"
        "  bucket bigint,\n"
        "  PRIMARY KEY ((tenant_id, conversation_id), bucket)\n"
        ") WITH CLUSTERING ORDER BY (bucket DESC)\n"
        "  AND compaction = {'class': 'LeveledCompactionStrategy'}",
        f"CREATE TABLE IF NOT EXISTS {keyspace}.archive_watermarks (\n"
        "  outbox_partition int PRIMARY KEY,\n"
        "  watermark bigint\n"
        ")",
        f"CREATE TABLE IF NOT EXISTS {keyspace}.user_conversation_state (\n"
        "  tenant_id text,\n"
        "  user_id text,\n"
        "  conversation_id text,\n"
        "  version bigint,\n"
        "  state blob,\n"
        "  PRIMARY KEY ((tenant_id, user_id), conversation_id)\n"
        ") WITH CLUSTERING ORDER BY (conversation_id ASC)\n"
        "  AND compaction = {'class': 'LeveledCompactionStrategy'}",
        f"CREATE TABLE IF NOT EXISTS {keyspace}.archive_layout (\n"
        "  id text PRIMARY KEY,\n"
        "  layout int,\n"
        "  bucket_seqs int\n"
        ")",
    ]


def layout_statement(keyspace: str, bucket_seqs: int) -> str:
    """The CQL that writes the layout's row, for a keyspace that has none."""
    columns = "(id, layout, bucket_seqs)"
    return (
        f"INSERT INTO {keyspace}.archive_layout {columns} "  # noqa: S608 - a checked name and two numbers
        f"VALUES ('{LAYOUT_ID}', {LAYOUT_VERSION}, {bucket_seqs:d}) USING TIMESTAMP 1"
    )


def require_layout(found: Layout | None, keyspace: str) -> int:
    """The bucket size of the keyspace; ConfigError when it has none, or of another version."""
    if found is None:
        raise ConfigError(f"keyspace {keyspace} has no archive yet: run `qim archive init`")
    if found.version != LAYOUT_VERSION:
        raise ConfigError(
            f"keyspace {keyspace} has archive layout {found.version}, this version knows {LAYOUT_VERSION}; "
            "use the version that wrote it, or set another QIM_CASSANDRA_KEYSPACE"
        )
    return found.bucket_seqs
