"""Prometheus metrics of the streaming layer, updated once per chunk, batch or call, never per record.

Labels are bounded: `role` and `topic` come from the declared roles and topics, `branch` and `why`
from the literals in this package; `partition` is that of a declared topic, and only where a partition may
stand still alone. Nothing is labelled by key or error text.
"""

from prometheus_client import Counter, Gauge, Histogram

_BATCH_RECORDS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

CHUNKS = Counter("qim_stream_chunks_total", "Chunks by what the consumer did with them", ("role", "branch"))
REBALANCES = Counter("qim_stream_rebalances_total", "Revocations seen by this worker", ("role",))
DRAIN_SECONDS = Histogram(
    "qim_stream_drain_seconds", "Drain and commit at a revocation", ("role",), buckets=_SECONDS
)
COMMITS = Counter("qim_stream_commits_total", "Offset commits by outcome", ("role", "outcome"))
STARTS = Counter("qim_stream_partition_starts_total", "Partition starts by outcome", ("role", "outcome"))
BATCHES = Counter("qim_stream_batches_total", "Batches handled by outcome", ("role", "topic", "outcome"))
BATCH_RECORDS = Histogram(
    "qim_stream_batch_records", "Records in one handled batch", ("role", "topic"), buckets=_BATCH_RECORDS
)
BATCH_SECONDS = Histogram(
    "qim_stream_batch_seconds", "Time in the handler, retries included", ("role", "topic"), buckets=_SECONDS
)
QUEUED_RECORDS = Gauge("qim_stream_queued_records", "Records waiting in lanes", ("role", "topic"))
LAG_RECORDS = Gauge(
    "qim_stream_lag_records", "Records written and not done yet", ("role", "topic", "partition")
)
LAG_SECONDS = Gauge(
    "qim_stream_lag_seconds", "Since the log ended where the worker is now", ("role", "topic", "partition")
)
STUCK = Counter(
    "qim_stream_avoided_partitions_kept_total",
    "Partitions given back to the worker that could not go on with them: there was no other one",
    ("partition",),
)
RETRIES = Counter("qim_stream_retries_total", "Handler retries in place", ("role", "topic"))
APPENDS = Counter("qim_log_appends_total", "Append calls by outcome", ("client", "outcome"))
APPENDED_RECORDS = Counter("qim_log_appended_records_total", "Records acknowledged by the log", ("client",))
APPEND_SECONDS = Histogram(
    "qim_log_append_seconds", "Time from append to the last acknowledgement", ("client",), buckets=_SECONDS
)
DEAD_LETTERS = Counter("qim_stream_dead_letters_total", "Records sent to the dead letters", ("role", "topic"))
TABLE_WRITES = Counter("qim_table_writes_total", "Table keys written", ("table",))
