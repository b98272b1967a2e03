"""Metrics of the gateway: plain counters on the hot path, read when Prometheus asks.

Spec: §6, §7.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

PUSHED_SECONDS = Histogram(
    "qim_gateway_pushed_seconds",
    "From committed_at to the socket, the oldest event of each batch",
    buckets=_SECONDS,
)
PULL_SECONDS = Histogram("qim_gateway_pull_seconds", "Time to answer a PULL_MAILBOX", buckets=_SECONDS)

COUNTERS: Final[dict[str, str]] = {
    "connections": "Sockets accepted",
    "connections_refused": "Sockets refused because the gateway was full or draining",
    "door_refused": "Connections refused because their address had too many, or opened them too fast",
    "auths": "Sessions opened",
    "auths_refused": "AUTH frames answered with an error",
    "sends": "SEND_MESSAGE handed to writers",
    "sends_acked": "SEND_ACK sent",
    "sends_refused": "Sends answered with an error",
    "pulls": "PULL_MAILBOX answered with a batch",
    "pulled_events": "Events in those batches",
    "pushed_events": "Events sent by push",
    "fills": "Stretches of mailboxes sent as push",
    "watermark_fills": "Of these, begun because W was seen to move where the push log did not tell",
    "live_lost": "LIVE_LOST sent",
    "stale_recipients": "Recipients of push batches that no connection here answers to",
    "poison_batches": "Push records that could not be decoded",
    "presence_appended": "Presence records and tombstones written",
    "presence_failed": "Presence records and tombstones that could not be written",
    "presence_repeated": "Presences written anew because no PresenceReady came",
    "sessions_replaced": "Sessions that a newer one of the same device ended",
    "sessions_ended": "Sessions that the login of another device ended, by the tenant's rule",
    "idle_closed": "Sockets closed because nothing came or nothing could be written",
}

_GAUGES: Final[dict[str, str]] = {
    "sockets": "Open sockets",
    "sessions": "Authenticated sessions",
    "ready": "1 while /readyz answers 200, as of the last second",
    "push_silent_seconds": "For how long the push log has not answered",
    "push_lag_records": "Records of the push log behind the last one that was read",
    "unpushed_sessions": "Sessions that go by W because the push log does not tell",
}


class GatewayCounters(Collector):
    """Counts as attributes: ``counters.sends += 1``. What `_GAUGES` names is set, not counted."""

    def __init__(self) -> None:
        self.connections = self.connections_refused = self.door_refused = self.auths = self.auths_refused = 0
        self.sends = self.sends_acked = self.sends_refused = 0
        self.pulls = self.pulled_events = self.pushed_events = self.fills = self.live_lost = 0
        self.watermark_fills = 0
        self.stale_recipients = self.poison_batches = 0
        self.presence_appended = self.presence_failed = self.presence_repeated = 0
        self.sessions_replaced = self.sessions_ended = self.idle_closed = 0
        self.sockets = self.sessions = 0
        self.ready = self.push_lag_records = self.unpushed_sessions = 0
        self.push_silent_seconds = 0.0

    def collect(self) -> Iterator[Metric]:
        """All counters, for Prometheus."""
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"qim_gateway_{name}", text, value=getattr(self, name))
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"qim_gateway_{name}", text, value=getattr(self, name))
