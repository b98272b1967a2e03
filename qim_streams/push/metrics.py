"""Prometheus metrics of the push stage, updated once per batch."""

from prometheus_client import Counter, Gauge

RECIPIENTS = Counter("qim_push_recipients_total", "Devices that an event was pushed to")
ITEMS = Counter("qim_push_items_total", "Events pushed, by ConnectionShard and event")
BATCHES = Counter("qim_push_batches_total", "PushBatch records appended")
BODIES_MISSING = Counter("qim_push_bodies_missing_total", "Events not pushed: the hot tier has no body")
READY = Counter("qim_push_ready_total", "Connections told that they are pushed to")
PRESENCE = Counter("qim_push_presence_records_total", "Presence records by what became of them", ("outcome",))
ONLINE = Gauge("qim_push_online_devices", "Devices in the presence cache of this worker, dead ones included")
"""outcome: online, unchanged, gone, stale (an older session), malformed, full (over the bound)."""
