"""Metrics of RoomWriters. Spec: §10."""

from prometheus_client import Counter, Gauge, Histogram

PARTITIONS = Gauge("qim_rooms_partitions", "Room partitions that this process owns")
ROOMS = Gauge("qim_rooms_kept", "Rooms in the memory of this process")
MESSAGES = Counter("qim_rooms_messages", "Messages that are in the room log")
REFUSED = Counter("qim_rooms_refused", "Requests that were refused", ["code"])
EVENTS = Counter("qim_rooms_events", "Actions that are in the room log", ["action"])
APPENDS_FAILED = Counter("qim_rooms_appends_failed", "Records that the room log did not acknowledge")
ACK_SECONDS = Histogram(
    "qim_rooms_ack_seconds",
    "From a send's arrival to its answer",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0),
)
