"""Chat rooms: fast, lossy and without a trace in any mailbox (Spec: §10).

Reading order: `records` (what lies in the log), `rules` (who may do what), `partition` and `writer`
(RoomWriter), `links` (how gateways reach it). What gateways do with the log is in `gateway/rooms.py`.
"""
