"""Metrics of rooms in a gateway: counted per tick, never per recipient. Spec: §10."""

from prometheus_client import Counter, Gauge, Histogram

ROOMS = Gauge("qim_gateway_rooms", "Rooms with a connection here")
SEATS = Gauge("qim_gateway_room_seats", "Connections in rooms here, once per room")
RECORDS = Counter("qim_gateway_room_records", "Room records read for rooms that are here")
FRAMES = Counter("qim_gateway_room_frames", "ROOM_BATCH frames queued")
DELIVERIES = Counter("qim_gateway_room_deliveries", "Messages in those frames")
DROPPED = Counter("qim_gateway_room_dropped", "Messages that a slow reader did not get")
CUT = Counter("qim_gateway_room_cut", "Connections cut because events would have been lost")
TICK_SECONDS = Histogram(
    "qim_gateway_room_tick_seconds",
    "Time to hand one tick's batches to all connections",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
