"""Q-IM streams: the messaging core of an instant messenger as a streams pipeline.

A reading order for newcomers:

1. ``ids``, ``hlc``, ``placement``, ``records``: the vocabulary (who, when, where, what).
2. ``commit``: SEND_MESSAGE becomes durable and is acknowledged (Spec: §3).
3. ``fanout``, ``mailbox``: one dispatch per shard, one entry per recipient, the watermark (Spec: §4, §5).
4. ``push``, ``gateway``, ``sync``: to the screen, and back after an absence (Spec: §6, §7).
5. ``streaming``, ``agents``, ``tables``: how the stages run on Faust without losing a record.
6. ``embedded``, ``cli``: one machine, one command.
"""

__version__ = "0.1.0"
