"""Prometheus metrics of the fan-out stage, updated once per batch. No label is unbounded."""

from prometheus_client import Counter, Histogram

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)

RECORDS = Counter("qim_fanout_records_total", "Outbox records by what became of them", ("outcome",))
DISPATCHES = Counter("qim_fanout_dispatches_total", "GroupDispatch records appended")
DISPATCHED = Histogram(
    "qim_fanout_dispatched_seconds", "From commit to the dispatch log, oldest of a batch", buckets=_SECONDS
)
ALARMS = Counter("qim_fanout_alarms_total", "What an operator must look at", ("kind",))
"""Kinds: forged_repeat (a message_id came again with other content), seq_hole (a conversation_seq is
missing in the Outbox), version_missing (a membership version is gone)."""
