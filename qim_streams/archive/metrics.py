"""Metrics of the archiver, updated once per batch.

Spec: §1 ARCHIVED.
"""

from prometheus_client import Counter, Histogram

_MESSAGES = Counter("qim_archiver_messages_total", "Outbox records by what became of them", ("outcome",))
_ARCHIVED = _MESSAGES.labels("archived")
_REPEATED = _MESSAGES.labels("repeated")
_POISON = _MESSAGES.labels("poison")
_FENCED = _MESSAGES.labels("fenced")

AGE_SECONDS = Histogram(
    "qim_archiver_age_seconds",
    "From committed_at of a batch's first message to its being archived",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3_600),
)


def count(archived: int, repeated: int, poison: int, fenced: int) -> None:
    """Count the records of one batch."""
    _ARCHIVED.inc(archived)
    _REPEATED.inc(repeated)
    _POISON.inc(poison)
    _FENCED.inc(fenced)


TARGETS_MISSING = Counter(
    "qim_archiver_targets_missing_total", "Edits and recalls whose target neither batch nor archive has"
)
TRIMMED = Counter("qim_archiver_trimmed_messages_total", "Archived messages removed from the hot tier")
TRIM_DIFFERING = Counter(
    "qim_archiver_trim_differing_total", "Messages left in the hot tier because the archive has another state"
)
TRIM_UNNOTED = Counter(
    "qim_archiver_trim_unnoted_total", "Messages whose conversation was not noted for trimming: too many wait"
)
TRIM_FAILURES = Counter("qim_archiver_trim_failures_total", "Rounds of trimming that a store refused")
