"""Metrics of the writer. Counted per group, never per message; no label with unbounded values."""

from prometheus_client import Counter, Gauge, Histogram

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

SENDS = Counter("qim_writer_sends", "Answers to sends", ["outcome"])
GROUP = Histogram("qim_writer_group_messages", "Messages in one commit call", buckets=_SIZES)
COMMIT_SECONDS = Histogram("qim_writer_commit_seconds", "Commit calls until settled", buckets=_SECONDS)
APPEND_SECONDS = Histogram("qim_writer_append_seconds", "Outbox appends until acknowledged", buckets=_SECONDS)
WAITING = Gauge("qim_writer_waiting_sends", "Sends without an answer yet")
RELAYED = Counter("qim_writer_relayed_messages", "Messages appended again by the relay")
RESTORED = Counter("qim_writer_restored_messages", "Messages that the hot tier had lost, put back")
ORPHANS = Counter("qim_writer_orphan_messages", "Reserved messages that this process did not know of")
UNSURE = Counter("qim_writer_unsure_commits", "Commit calls repeated because their outcome was unknown")
PARTITIONS = Gauge("qim_writer_partitions", "Outbox partitions owned")
GROUP_COMMANDS = Counter("qim_writer_group_commands", "Group commands", ["outcome"])
LIMITED = Counter("qim_writer_limited_sends", "Sends that a rate or quota refused", ["code"])
