"""How many partitions an embedded log is made with. Pure, but for the file that remembers it.

A batch costs on both sides of the log whatever is in it, so more partitions than cores that work on them
only cost: on two cores, 5,000 direct messages a second took 391 µs each with 2 Outbox partitions and 4
shards, and 366 with 1 and 2 (`docs/performance.md`). Counts are fixed once used; a stack keeps its own in
its state directory.
"""

from collections.abc import Mapping
from pathlib import Path

from qim_streams.embedded import files

SIZES_FILE = "partitions.json"
LOG_FOLDERS = ("kafka", "tansu")
CORES_PER_OUTBOX = 2
OUTBOXES_MAX = 16
SHARDS_PER_OUTBOX = 2
# What a stack was made with by versions that did not write it down.
UNWRITTEN = {"outbox_partitions": 2, "mailbox_shards": 4}
NAMES = tuple(UNWRITTEN)  # of the settings that are counts
_READERS = {"outbox_partitions": ("fanout",), "mailbox_shards": ("mailbox", "qsession")}


def fresh_sizes(cores: int, workers: Mapping[str, int]) -> dict[str, int]:
    """Partitions of a new log for `cores` and for that many `workers` of a role, each of which gets some."""
    outboxes = min(max(cores // CORES_PER_OUTBOX, 1), OUTBOXES_MAX)
    counts = {"outbox_partitions": outboxes, "mailbox_shards": outboxes * SHARDS_PER_OUTBOX}
    return {
        name: max(count, *(workers.get(role, 1) for role in _READERS[name])) for name, count in counts.items()
    }


def sizes_to_use(state_dir: Path, fresh: Mapping[str, int], given: Mapping[str, int]) -> dict[str, int]:
    """Of the stack in `state_dir`: what is `given`, else what its log was made with, else `fresh`."""
    used_before = any((state_dir / folder).exists() for folder in LOG_FOLDERS)
    kept = files.read_json(state_dir / SIZES_FILE) or (UNWRITTEN if used_before else {})
    return {name: given.get(name, int(kept.get(name, count))) for name, count in fresh.items()}


def remember_sizes(state_dir: Path, sizes: Mapping[str, int]) -> None:
    """Keep what the log was made with, for the next start."""
    files.write_private_json(state_dir / SIZES_FILE, dict(sizes))
