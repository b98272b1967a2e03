"""Prometheus metrics of offline push. Labels are bounded: providers, and words of the rules."""

from prometheus_client import Counter, Gauge, Histogram

REGISTRATIONS = Counter("qim_push_registrations_total", "Devices by what became of them", ("outcome",))
"""outcome: registered, removed, dead."""
TASKS = Counter("qim_push_tasks_total", "PushTasks appended: devices without presence, per message")
REGISTERED = Gauge("qim_push_registered_devices", "Registered devices in the memory of this worker")
REGISTERED_REFUSED = Counter(
    "qim_push_registered_refused_total", "Records of the device log not taken, by why", ("why",)
)
"""why: malformed, full."""
ACCEPTED = Counter("qim_notification_accepted_total", "PushTasks read, by what became of them", ("outcome",))
"""outcome: queued, known (came again), overflow (too many wait), no_device, no_provider, expired, poison."""
SENDS = Counter("qim_notification_sends_total", "Requests to providers, by answer", ("provider", "answer"))
"""answer: sent, dead, refused, busy, down."""
OVER = Counter("qim_notification_over_total", "Notifications that are over, by why", ("provider", "why"))
"""why: sent, or the word of the rule that let it go, or refused, gave_up, unknown."""
REPEATED = Counter(
    "qim_notification_repeated_total", "Attempts after one whose end nobody knows", ("provider",)
)
WAITING = Gauge(
    "qim_notification_waiting", "Notifications that wait, in the slots of this worker", ("provider",)
)
IN_FLIGHT = Gauge("qim_notification_in_flight", "Requests to providers under way", ("provider",))
OPEN = Gauge("qim_notification_circuit_open", "1 while a provider is left alone", ("provider",))
SEND_SECONDS = Histogram(
    "qim_notification_send_seconds",
    "Time of a request to a provider",
    ("provider",),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
AFTER_SECONDS = Histogram(
    "qim_notification_after_commit_seconds",
    "NOTIFIED: from committed_at to the provider's answer",
    buckets=(0.5, 1, 2, 2.5, 3, 4, 5, 10, 30, 60, 300, 1800),
)
