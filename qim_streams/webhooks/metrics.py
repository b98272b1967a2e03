"""Metrics of webhooks, counted per request. `endpoint` is a name of the webhooks file, which bounds it."""

from prometheus_client import Counter, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0, 3_600.0)

EVENTS = Counter("qim_webhook_events_total", "Events by what became of them", ("endpoint", "outcome"))
REQUESTS = Counter("qim_webhook_requests_total", "Requests by what came of them", ("endpoint", "outcome"))
REQUEST_SECONDS = Histogram(
    "qim_webhook_request_seconds", "Time to the answer", ("endpoint",), buckets=_SECONDS
)
AGE_SECONDS = Histogram(
    "qim_webhook_age_seconds",
    "From committed_at to the endpoint's answer, the oldest of a request",
    ("endpoint",),
    buckets=_SECONDS,
)
QUESTIONS = Counter("qim_webhook_questions_total", "before_send questions by outcome", ("outcome",))
QUESTION_SECONDS = Histogram(
    "qim_webhook_question_seconds", "Time of a before_send question", buckets=_SECONDS
)
