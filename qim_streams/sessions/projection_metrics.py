"""Prometheus metrics of the session projection, updated once per sweep. No label is unbounded."""

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)

RECORDS = Counter("qim_qsession_records_total", "Dispatch records by what became of them", ("outcome",))
"""Outcomes: projected, poison, members_missing."""

ROWS = Counter("qim_qsession_rows_total", "Rows of users written, after folding")
REGISTERED = Counter("qim_qsession_registrations_total", "Conversations that were new to a user")
PROJECTED = Histogram(
    "qim_qsession_projected_seconds", "From commit to the row, oldest of a sweep", buckets=_SECONDS
)
WIDE_PENDING = Gauge("qim_qsession_wide_pending", "Wide conversations whose new members wait for their rows")
EPOCHS = Counter("qim_qsession_epochs_total", "Projection epochs begun, by reason", ("reason",))
"""Reasons: first, lost (no checkpoint), outside_log (the checkpoint is not in the log any more)."""

REBUILDS = Counter("qim_sessions_rebuilds_total", "Users whose rows were rebuilt")
